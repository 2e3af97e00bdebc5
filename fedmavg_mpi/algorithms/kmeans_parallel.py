"""KM||: k-means from oversampled seeds (Bahmani et al. 2012, Algorithm 2).

The protocol ledger, with P clients, C_s candidates that are new in round s (C_1 = 1) and a point of M values (sparse: its values and
their indices): in round s <= R the downlink is P C_s points and P values (the cost), the uplink P values (costs) and C_{s+1} points; in round 1
the uplink has the first centre besides. In round R + 1 the downlink is P C_{R+1} points, the uplink a weight for each client and candidate.
"""

import numpy as np

from fedmavg_mpi import rng
from fedmavg_mpi.algorithms.kmeans import DistributedKMeans
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.models.distances import nearest, squared_norms
from fedmavg_mpi.models.summaries import oversample
from fedmavg_mpi.models.sums import in_order_sum
from fedmavg_mpi.pooling import stack


class KMeansParallel(DistributedKMeans):
    """R rounds of seeding, in each of which clients offer about l candidates, and one in which they weigh them.

    The first candidate is uniform over all samples. A candidate's weight is the number of samples that are nearest to it; weighted
    k-means on the candidates is the server's.

    Attributes
    ----------
    distances : ndarray of float64 (n,)
        d^2(x, C) of each sample here.
    nearest : ndarray of int64 (n,)
        The candidate that it is nearest to.
    offered : list of ndarray or csr_array (C_s x M)
        The candidates so far, by round, at the server.
    """

    @classmethod
    def rounds_of(cls, settings):
        """Rounds of seeding, and one of weights."""
        return settings.seeding_rounds + 1

    def __init__(self, settings, comm, placement, sampler, aggregation, model, shard, clock, w):
        super().__init__(settings, comm, placement, sampler, aggregation, model, shard, clock, w)
        self.expected = settings.summary_size or 2 * model.n_components
        n = shard.samples.shape[0]
        self.norms = np.concatenate([np.zeros(0), *(squared_norms(samples) for _, _, samples in self.own_clients())])
        self.distances, self.nearest = np.full(n, np.inf), np.zeros(n, np.int64)
        self.n_candidates, self.offered = 0, []

    def find_centres(self, s):
        """One round of seeding, or the weights and the centres."""
        ledger = ProtocolLedger()
        if s == 1:
            self.offered = [self.draw_first(ledger)]
        self.compare(self.receive_rows(ledger, self.offered[-1]))
        if s < self.n_rounds:
            self.offered.append(self.draw_more(s, ledger))
            return ledger
        weights = self.send_weights(ledger)
        if self.comm.is_server:
            self.cluster_at_server(stack(self.offered), weights)
        return ledger

    def draw_first(self, ledger):
        """A sample of a client that is drawn by size: uniform over all."""
        drawn = rng.generator(self.sampler.seed, rng.CENTRES, 1).choice(self.sampler.all_clients.size, p=self.sampler.shares)
        parts = []
        for client, _, samples in self.own_clients():
            taken = self.random(client, 0).integers(samples.shape[0], size=1) if client == drawn else np.arange(0)
            parts.append(samples[taken])
        return self.send_rows(ledger, parts)[0]

    def draw_more(self, s, ledger):
        """Samples that are far from the candidates so far, by chance."""
        costs = self.send_numbers(ledger, [self.distances[rows].sum() for _, rows, _ in self.own_clients()])
        total = np.array([in_order_sum(costs) if self.comm.is_server else 0.0])
        self.comm.broadcast(total, "control", self.everyone)
        ledger.downlink(self.sampler.all_clients.size, 8)
        parts = []
        for client, rows, samples in self.own_clients():
            taken = oversample(self.distances[rows], total[0], self.expected, self.random(client, s))
            parts.append(samples[taken])
        return self.send_rows(ledger, parts)[0]

    def compare(self, new):
        """Take these candidates into account, at each client."""
        if new.shape[0]:
            for _, rows, samples in self.own_clients():
                found, distances = nearest(samples, self.norms[rows], new)
                closer = distances < self.distances[rows]
                self.nearest[rows][closer] = self.n_candidates + found[closer]
                self.distances[rows][closer] = distances[closer]
        self.n_candidates += new.shape[0]

    def send_weights(self, ledger):
        """How many samples are nearest to each candidate: ndarray of float64 (C,) at the server."""
        counts = [np.bincount(self.nearest[rows], minlength=self.n_candidates) for _, rows, _ in self.own_clients()]
        ledger.uplink(self.sampler.all_clients.size * self.n_candidates, 8)
        counts = np.array(counts, np.float64).reshape(len(counts), self.n_candidates)
        by_client = self.comm.gather(counts, np.diff(self.placement.cut), "model_up")
        return by_client.sum(axis=0) if self.comm.is_server else None
