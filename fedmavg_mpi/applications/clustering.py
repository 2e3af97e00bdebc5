"""Data clustering in a run: the samples of this rank, accuracy against known classes, and the clusters that are kept."""

import numpy as np

from fedmavg_mpi import metrics
from fedmavg_mpi.applications.evaluation import Evaluation
from fedmavg_mpi.applications.fastest import NAMES, check_compiler, fastest_products
from fedmavg_mpi.applications.magnitude import check_magnitude
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.kernels import dense
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.models.clustering import ClusteringModel, ClusteringShard, DataTotals, client_totals
from fedmavg_mpi.models.sums import in_order_sum
from fedmavg_mpi.pooling import count_rows, pool
from fedmavg_mpi.schedule import PenaltyContinuation, StopRule
from fedmavg_mpi.store import in_data_order

LARGEST_PENALTY = 100  # of penalty continuation, in units of |X|^2 / N


class Clustering:
    """One rank's part of a clustering run. All ranks make the same calls.

    Parameters
    ----------
    comm : Communicator
    settings : Config
    store : ClientStore
    origin, placement : Placement
        Where the clients' data are, and where they are worked on.
    average : one of ``aggregation.METHODS``

    Attributes
    ----------
    model : ClusteringModel
    shard : ClusteringShard
    measures : tuple of str
        What an evaluation may measure.
    fingerprint : str
        Of the data, at the server.
    setup_ledger : ProtocolLedger
        What clients and server exchange before the first round.

    Raises
    ------
    DataError
        Fewer samples than components, or a store that can't be read.
    """

    measures = ("accuracy",)

    def __init__(self, comm, settings, store, origin, placement, average):
        self.comm, self.placement, self.average = comm, placement, average
        self.settings = settings
        self.label_names = store.label_names
        with comm.together():
            if store.rating_range is not None:
                raise DataError(
                    f"{store.path}: holds ratings, expected samples; set model.kind = 'ratings', or make another store"
                )
            if store.n_samples < settings.model.n_components:
                raise DataError(
                    f"{store.n_samples} samples for {settings.model.n_components} components, expected at least as many; "
                    "lower model.n_components"
                )
            clients = origin.clients_of(comm.rank)
            samples = store.slab(clients, np.dtype(settings.run.dtype))
            self.labels = store.labels(clients)
        self.setup_ledger = ProtocolLedger()
        if placement is origin:
            self.setup_ledger.uplink(3 * store.sizes.size, 8)
            self.setup_ledger.downlink(3 * store.sizes.size, 8)
        else:
            samples = pool(comm, origin.rows, samples, "model_up")
            count_rows(self.setup_ledger.uplink, samples)
            self.labels = None if self.labels is None else pool(comm, origin.rows, self.labels, "evaluation")
        clients = placement.clients_of(comm.rank)
        offsets = store.offsets[clients.start : clients.stop + 1] - store.offsets[clients.start]
        totals = self._exchange_totals(client_totals(samples, offsets), store)
        self.model = ClusteringModel(settings.model, totals, settings.algorithm.curvature_factor_w)
        self.products = "blas"  # of no account to sparse samples, and dense ones as wide may not fit
        if not store.sparse:
            self.products = fastest_products(comm, settings.run, settings.model.n_components, store.n_features)
        self.shard = ClusteringShard(
            samples, offsets, clients.start, self.model, settings.run.seed, average.client_by_client, self.products
        )
        self.stage_clusters = self.shard.assignments()
        self.table = None  # the last contingency table, at the server
        if comm.is_server and self.label_names is not None:
            metrics.load_libraries()

    def _exchange_totals(self, by_client, store):
        """What all need to know of the pooled data: three scalars a client up, their sums down."""
        rows = self.comm.gather(by_client, np.diff(self.placement.cut), "control")
        totals = np.empty(3)
        with self.comm.together():
            if self.comm.is_server:
                self.fingerprint = store.fingerprint(rows)
                with np.errstate(all="ignore"):
                    totals[:] = *in_order_sum(rows[:, :2]), rows[:, 2].max()
                advice = "scale the data, or set data.normalize = 'unit'"
                check_magnitude(totals[0], totals[2], store.n_samples, self.settings.run.dtype, advice)
        self.comm.broadcast(totals, "control", self.comm.everyone)
        return DataTotals(store.n_samples, store.n_features, *totals.tolist())

    def stop_rule(self, limit_reason):
        """How the server decides between rounds."""
        algorithm, stop = self.settings.algorithm, self.settings.stop
        if algorithm.penalty_continuation:
            return PenaltyContinuation(stop, limit_reason, LARGEST_PENALTY, algorithm.stage_rounds)
        return StopRule(stop, limit_reason)

    def evaluate(self):
        """Look at the present factors, which every rank holds.

        Returns
        -------
        Evaluation or None
            At the server; None elsewhere.
        """
        clusters = self.shard.assignments()
        changed = np.empty(self.shard.sizes.size, np.int64)
        dense.count_changes(clusters, self.stage_clusters, self.shard.offsets, changed)
        terms = np.empty((changed.size, 4))
        terms[:, :3], terms[:, 3] = self.shard.objective_terms(), changed
        sums = self.average.sum_over_clients(lambda clients: terms[clients], np.arange(self.placement.sizes.size), "evaluation")
        if self.label_names is not None:
            self.table = metrics.contingency(clusters, self.labels, self.model.n_components, len(self.label_names))
            self.comm.reduce(self.table, "evaluation", self.comm.everyone)
        if not self.comm.is_server:
            return None
        accuracy = np.nan if self.table is None else metrics.accuracy(self.table)
        return Evaluation(lambda rho: self.model.objective(sums, rho), int(sums[3]), {"accuracy": accuracy})

    def local_curvature(self, w, rho):
        """The local step of the rounds to come, at the server."""
        return self.model.local_curvature(w, rho)

    def take_step(self, rho, curvature, new_stage):
        """Take the server's penalty and local step; in a new penalty stage, count changes of clusters from here."""
        if new_stage:
            self.stage_clusters = self.shard.assignments()
        self.shard.take_step(rho, curvature)

    def state(self):
        """What a checkpoint keeps of the server's part: how products are formed, on which the last bits depend."""
        return {"products": np.array(NAMES.index(self.products))}

    def private_state(self):
        """What a checkpoint keeps of this rank's clients: dict of str to ndarray (rows here x ...)."""
        return {"h": self.shard.private_factors(), "stage_clusters": self.stage_clusters}

    def restore(self, state, private):
        """Take what :meth:`state` and :meth:`private_state` gave; ``private`` is empty on a rank without clients."""
        self.products = NAMES[int(state["products"])]  # also for the next checkpoint
        with self.comm.together():
            check_compiler(self.products)
        self.shard.form_products_by(self.products)
        if private:
            self.shard.restore_private_factors(private["h"])
            self.stage_clusters = private["stage_clusters"]

    def outcome(self, rows, of_row):
        """What the run file keeps beside the factors.

        Parameters
        ----------
        rows : ndarray of int (ranks,)
            Samples of every rank.
        of_row : ndarray of int64 (N,) or None
            The data set's index of each sample in client order, at the server.

        Returns
        -------
        attributes, datasets : dict
        """
        clusters = self.comm.gather(self.shard.assignments(), rows, "control")
        if not self.comm.is_server:
            return {}, {}
        attributes = {"nmi": np.nan, "ari": np.nan, "products": self.shard.products.name}
        if self.table is not None:
            attributes |= {
                "nmi": metrics.normalized_mutual_information(self.table),
                "ari": metrics.adjusted_rand_index(self.table),
            }
        return attributes, {"labels": in_data_order(clusters, of_row)}
