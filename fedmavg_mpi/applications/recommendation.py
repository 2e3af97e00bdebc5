"""Item recommendation in a run: this rank's users, errors on training and held-out ratings, and what predictions will need."""

import numpy as np
from scipy import sparse

from fedmavg_mpi.applications.evaluation import Evaluation
from fedmavg_mpi.applications.magnitude import check_magnitude
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.models.rating_blocks import RatingTotals, check_sides, client_totals, split
from fedmavg_mpi.models.ratings import RatingsModel, RatingsShard
from fedmavg_mpi.models.sums import in_order_sum
from fedmavg_mpi.pooling import count_rows, pool
from fedmavg_mpi.schedule import StopRule
from fedmavg_mpi.store import in_data_order, texts

NAMES = {"users/ids": "sample_names", "items/ids": "feature_names", "items/titles": "titles"}  # run file: store


class Recommendation:
    """One rank's part of a recommendation run. All ranks make the same calls.

    Parameters
    ----------
    comm : Communicator
    settings : Config
    store : ClientStore
        Of ratings, a client a user.
    origin, placement : Placement
        Where the users' ratings are, and where they are worked on.
    average : one of ``aggregation.METHODS``

    Attributes
    ----------
    model : RatingsModel
    shard : RatingsShard
    measures : tuple of str
        What an evaluation measures.
    fingerprint : str
        Of the data, at the server.
    setup_ledger : ProtocolLedger
        What clients and server exchange before the first round.

    Raises
    ------
    DataError
        A store without ratings, or one that can't be read.
    """

    measures = ("rmse_train", "mae_train", "rmse_test", "mae_test")

    def __init__(self, comm, settings, store, origin, placement, average):
        self.comm, self.origin, self.placement, self.average = comm, origin, placement, average
        self.settings, self.store = settings, store
        clients = origin.clients_of(comm.rank)
        with comm.together():
            if store.rating_range is None:
                raise DataError(f"{store.path}: holds samples, expected ratings; make it with fedmavg data prepare movielens")
            largest = max(map(abs, store.rating_range))
            check_magnitude(largest * largest * store.n_values, largest, store.n_values, settings.run.dtype, "scale the ratings")
            self.ratings = store.slab(clients, np.dtype(settings.run.dtype))
            # read now: the store may be a temporary one
            self.names = {path: store.names(kind) for path, kind in NAMES.items()} if comm.is_server else {}
        train, test = split(self.ratings, clients.start, settings.run.seed, settings.data.test_fraction)
        self.setup_ledger = ProtocolLedger()
        if placement is origin:
            self.setup_ledger.uplink(6 * store.sizes.size, 8)
            self.setup_ledger.downlink(4 * store.sizes.size, 8)
        else:
            train, test = pool(comm, origin.rows, train, "model_up"), pool(comm, origin.rows, test, "evaluation")
            count_rows(self.setup_ledger.uplink, train)
            clients = placement.clients_of(comm.rank)
        totals, counts = self._exchange_totals(client_totals(train))
        self.model = RatingsModel(settings, totals, counts)
        known_items = np.bincount(train.indices, minlength=store.n_features)
        comm.reduce(known_items, "evaluation", comm.everyone)
        comm.broadcast(known_items, "evaluation", comm.everyone)
        self.known_items = known_items > 0
        self.shard = RatingsShard(train, test, clients.start, self.model, settings.run.seed, self.known_items)

    def _exchange_totals(self, by_client):
        """What all need to know of the pooled training ratings: six scalars a client up; their sums, and each client's count, down."""
        rows = self.comm.gather(by_client, np.diff(self.placement.cut), "control")
        totals, counts = np.empty(4), np.empty(self.placement.sizes.size, np.int64)
        with self.comm.together():
            if self.comm.is_server:
                self.fingerprint = self.store.fingerprint(rows)
                totals[:] = in_order_sum(rows[:, :4])
                counts[:] = rows[:, 0]
                check_sides(self.settings.data.test_fraction, int(totals[0]), self.store.n_values)
        self.comm.broadcast(totals, "control", self.comm.everyone)
        self.comm.broadcast(counts, "control", self.comm.everyone)
        n_ratings, *sums = totals.tolist()
        return RatingTotals(self.store.n_samples, self.store.n_features, int(n_ratings), *sums, *self.store.rating_range), counts

    def stop_rule(self, limit_reason):
        """How the server decides between rounds."""
        return StopRule(self.settings.stop, limit_reason)

    def local_curvature(self, w, rho):
        """None for all: each user's step follows from the items that it has rated."""
        return 0.0

    def take_step(self, rho, curvature, new_stage):
        """Nothing to take: see :meth:`local_curvature`."""

    def evaluate(self):
        """Look at the present factors, which every rank holds.

        Returns
        -------
        Evaluation or None
            At the server; None elsewhere.
        """
        terms = np.hstack([self.shard.objective_terms(), self.shard.error_sums()])
        everyone = np.arange(self.placement.sizes.size)
        sums = self.average.sum_over_clients(lambda clients: terms[clients], everyone, "evaluation")
        if not self.comm.is_server:
            return None
        measured = {}
        for part, (count, squared, absolute) in {"train": sums[5:8], "test": sums[8:11]}.items():
            measured[f"rmse_{part}"] = np.sqrt(squared / count) if count else np.nan
            measured[f"mae_{part}"] = absolute / count if count else np.nan
        objective = self.model.objective(sums[:5])
        return Evaluation(lambda rho: objective, 0, measured)

    def state(self):
        """What a checkpoint keeps of the server's part: nothing."""
        return {}

    def private_state(self):
        """What a checkpoint keeps of this rank's clients: dict of str to ndarray (rows here x ...)."""
        return {"h": self.shard.private_factors()}

    def restore(self, state, private):
        """Take what :meth:`state` and :meth:`private_state` gave; ``private`` is empty on a rank without clients."""
        if private:
            self.shard.restore_private_factors(private["h"])

    def outcome(self, rows, of_row):
        """What the run file keeps beside the factors: the users' and items' own ids, and, where H is kept, what each user has rated.

        Parameters
        ----------
        rows : ndarray of int (ranks,)
            Users of every rank.
        of_row : ndarray of int64 (N,) or None
            The data set's index of each user in client order, at the server.

        Returns
        -------
        attributes, datasets : dict
        """
        rated = {}
        if self.settings.run.save_local_factors:
            counts = self.comm.gather(np.diff(self.ratings.indptr).astype(np.int64), self.origin.rows, "control")
            values = np.zeros(self.comm.size, np.int64)
            if self.comm.is_server:
                values[:] = np.diff(np.r_[0, np.cumsum(counts)][np.r_[0, np.cumsum(self.origin.rows)]])
            self.comm.broadcast(values, "control", self.comm.everyone)
            items = self.comm.gather(self.ratings.indices.astype(np.int32), values, "control")
            if self.comm.is_server:
                shape = of_row.size, self.store.n_features
                rows = sparse.csr_array((np.ones(items.size, bool), items, np.r_[0, np.cumsum(counts)]), shape=shape)
                rows = rows[np.argsort(of_row)]
                rated = {"users/rated_offsets": rows.indptr.astype(np.int64), "users/rated_items": rows.indices}
        if not self.comm.is_server:
            return {}, {}
        attributes = {"mean_rating": self.model.totals.mean, "biases": self.model.form.biased}
        attributes["rating_minimum"], attributes["rating_maximum"] = self.store.rating_range
        names = {path: texts(found) for path, found in self.names.items() if found}
        by_user = {"users/known": self.model.counts > 0, **{path: names.pop(path) for path in ("users/ids",) if path in names}}
        by_user = {path: in_data_order(values, of_row) for path, values in by_user.items()}
        return attributes, {**names, **by_user, **rated, "items/known": self.known_items}
