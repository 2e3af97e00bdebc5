"""What the k-means algorithms have in common, those without and those with clients' work, and k-means++ on pooled data."""

import warnings
from functools import cache

import numpy as np
from scipy import sparse

from fedmavg_mpi import config, rng
from fedmavg_mpi.algorithms.algorithm import Algorithm
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.participation import Nobody
from fedmavg_mpi.pooling import count_rows, pool_by_client, spread


class KMeans(Algorithm):
    """An algorithm that ends with K centres and gives each sample to the nearest one.

    The centres are W, and H the samples' clusters as indicators, so that the objective's fit is the k-means cost. There is nothing
    to evaluate before the last round.

    Attributes
    ----------
    n_rounds : int
        Communication rounds until the centres are found.
    """

    kinds = ("clustering",)
    fixed = {
        "algorithm": {"clients_per_round": 0, "participation": "pcc", "penalty_continuation": False},
        "aggregation": {"method": "gather"},  # sums in client order
        "run": {"evaluate_every": 0},
    }
    limit_reason = "centres found"
    resumable = False

    @classmethod
    def resolve(cls, settings):
        """The configuration with what this algorithm fixes."""
        return config.replace(super().resolve(settings), "stop", max_rounds=cls.rounds_of(settings.algorithm))

    @classmethod
    def rounds_of(cls, settings):
        """Communication rounds until the centres are found, from the ``[algorithm]`` section."""
        return 1

    def __init__(self, settings, comm, placement, sampler, aggregation, model, shard, clock, w):
        super().__init__(settings, comm, placement, Nobody(sampler), aggregation, model, shard, clock, w)
        self.n_rounds = self.rounds_of(settings)
        shard.receive(w)

    def run_round(self, s):
        """Carry out communication round ``s``. As in :class:`Algorithm`; all clients take part and none is drawn."""
        with self.clock("shared factor"):
            ledger = self.find_centres(s)
        return self.sampler.draw(s), 0, ledger

    def find_centres(self, s):
        """This round's part of the way to the centres; after the last one ``w`` holds them at the server.

        Returns
        -------
        ProtocolLedger
            What the protocol moved.
        """
        raise NotImplementedError

    def cluster_at_server(self, points, weights):
        """Make the centres of weighted k-means W."""
        found = cluster(points, weights, self.model.n_components, rng.generator(self.sampler.seed, rng.CENTRES))
        self.w = found.astype(self.w.dtype)

    def share_model(self, clients, kind):
        """Bring the centres to the ranks of these clients, which give each sample to the nearest one."""
        ranks = self.placement.ranks_of(clients)
        self.comm.broadcast(self.w, kind, ranks)
        if self.comm.rank in ranks:
            self.shard.receive(self.w)
            self.shard.assign_to_nearest()


class KMeansPlusPlus(KMeans):
    """k-means on pooled data from a k-means++ start (Arthur and Vassilvitskii 2007)."""

    pooled = True

    def find_centres(self, s):
        """All samples are at the server, and nothing is sent."""
        if self.comm.is_server:
            samples = self.shard.samples
            self.cluster_at_server(samples, np.ones(samples.shape[0]))
        return ProtocolLedger()


class DistributedKMeans(KMeans):
    """k-means whose clients each send something small, from which the server finds the centres.

    What a client draws and computes depends on no other client of its rank, and what clients send is in client order: the result has
    the same bits on any number of ranks. In the MPI ledger points and their weights are ``model_up``, points that the server sends
    ``model_down``, single numbers and counts ``control``.
    """

    @property
    def everyone(self):
        """The ranks that own clients."""
        return self.placement.ranks_of(self.sampler.all_clients)

    def own_clients(self):
        """Id, row range and samples of each client here."""
        offsets = self.shard.offsets.tolist()
        for client, begin, end in zip(self.placement.clients_of(self.comm.rank), offsets[:-1], offsets[1:], strict=True):
            yield client, slice(begin, end), self.shard.samples[begin:end]

    def random(self, client, stage):
        """A client's generator for one stage of the algorithm."""
        return rng.generator(self.sampler.seed, rng.SUMMARIES, client, stage)

    def send_rows(self, ledger, *fields):
        """Rows of each client, client after client, at the server; a field is a list of parts, one a client here."""
        nothing = self.shard.samples[:0], np.zeros(0)
        fields = [parts or [empty] for parts, empty in zip(fields, nothing, strict=False)]
        fields = pool_by_client(self.comm, self.placement, "model_up", *fields)
        for rows in fields:
            count_rows(ledger.uplink, rows)
        return fields

    def send_numbers(self, ledger, numbers):
        """One number of each client, in client order at the server: ndarray of float64 (P,); None elsewhere."""
        ledger.uplink(self.sampler.all_clients.size, 8)
        return self.comm.gather(np.array(numbers, np.float64), np.diff(self.placement.cut), "control")

    def receive_rows(self, ledger, rows):
        """Rows of the server, at each client."""
        rows = spread(self.comm, rows, "model_down", self.everyone)
        count_rows(ledger.downlink, rows, self.sampler.all_clients.size)
        return rows


def cluster(points, weights, n_clusters, random):
    """Weighted k-means from one k-means++ start, by scikit-learn.

    Parameters
    ----------
    points : ndarray (n x M) or scipy.sparse.csr_array (n x M)
        n >= 1.
    weights : ndarray (n,)
        At least 0, and one above it.
    n_clusters : int
        K; where there are fewer points, some centres stand at the same place.
    random : numpy.random.Generator

    Returns
    -------
    ndarray of float64 (K x M)
        The centres.
    """
    import sklearn.cluster  # here, because it costs a rank that doesn't need it 50 MB and a second
    from sklearn.exceptions import ConvergenceWarning

    if not weights.all():
        points, weights = points[weights > 0], weights[weights > 0]
    if sparse.issparse(points):  # scikit-learn takes indices of 32 bits only
        parts = points.data, points.indices.astype(np.int32), points.indptr.astype(np.int32)
        points = sparse.csr_array(parts, shape=points.shape)
    found = sklearn.cluster.KMeans(min(n_clusters, points.shape[0]), n_init=1, random_state=int(random.integers(2**31)))
    with warnings.catch_warnings(), _thread_pools().limit(limits=1):  # its threads add up in any order
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than centres
        centres = found.fit(points, sample_weight=weights).cluster_centers_
    return centres[np.arange(n_clusters) % len(centres)].astype(np.float64)


@cache
def _thread_pools():
    """The thread pools of this process once scikit-learn is there: looking for them takes as long as a small client's k-means."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
