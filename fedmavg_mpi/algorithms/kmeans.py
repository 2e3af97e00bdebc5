"""What the k-means algorithms have in common, and k-means++ on pooled data."""

import warnings

import numpy as np

from fedmavg_mpi import config, rng
from fedmavg_mpi.algorithms.algorithm import Algorithm
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.participation import Nobody


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
            self.w = cluster(samples, np.ones(samples.shape[0]), self.model.n_components, self.sampler.seed).astype(self.w.dtype)
        return ProtocolLedger()


def cluster(points, weights, n_clusters, seed):
    """Weighted k-means from one k-means++ start, by scikit-learn.

    Parameters
    ----------
    points : ndarray (n x M) or scipy.sparse.csr_array (n x M)
        n >= 1.
    weights : ndarray (n,)
        At least 0.
    n_clusters : int
        K; where there are fewer points, some centres stand at the same place.
    seed : int

    Returns
    -------
    ndarray of float64 (K x M)
        The centres.
    """
    import sklearn.cluster  # here, because only the server needs it, and it costs a rank 50 MB and a second
    from sklearn.exceptions import ConvergenceWarning

    found = sklearn.cluster.KMeans(
        min(n_clusters, points.shape[0]), n_init=1, random_state=int(rng.generator(seed, rng.CENTRES).integers(2**31))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than centres
        centres = found.fit(points, sample_weight=weights).cluster_centers_
    return centres[np.arange(n_clusters) % len(centres)].astype(np.float64)
