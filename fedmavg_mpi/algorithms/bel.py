"""BEL: k-means of a distributed coreset (Balcan, Ehrlich and Liang 2013, Algorithm 1).

The protocol ledger, with P clients: in round 1 the uplink is P values (costs); in round 2 the downlink is P values (how many points to
sample), the uplink the points of all coresets and a weight for each.
"""

import numpy as np
from scipy import sparse

from fedmavg_mpi.algorithms.kmeans import DistributedKMeans, cluster
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.models.distances import nearest, squared_norms
from fedmavg_mpi.models.summaries import allot, coreset
from fedmavg_mpi.pooling import stack


class Bel(DistributedKMeans):
    """In round 1 each client finds K centres of its own and sends their cost; in round 2 it sends them and samples, t in all, by cost.

    Weighted k-means on all clients' coresets is the server's. A client of at most K samples sends these, which cost nothing.

    Attributes
    ----------
    solutions : list of (ndarray or csr_array (K x M), ndarray of int64 (N_p,), ndarray of float64 (N_p,))
        For each client here its own centres, and each sample's nearest one with its squared distance.
    costs : ndarray of float64 (P,)
        At the server.
    """

    @classmethod
    def rounds_of(cls, settings):
        """One round of costs, one of coresets."""
        return 2

    def find_centres(self, s):
        """The clients' own solutions; or their coresets, and the centres."""
        ledger = ProtocolLedger()
        if s == 1:
            self.solutions = [self.solve(client, samples) for client, _, samples in self.own_clients()]
            self.costs = self.send_numbers(ledger, [distances.sum() for _, _, distances in self.solutions])
            return ledger
        n_draws = self.receive_allotment(ledger)
        points, weights = [], []
        for (client, _, samples), (centres, labels, distances) in zip(self.own_clients(), self.solutions, strict=True):
            chosen, sampled, remaining = coreset(labels, distances, centres.shape[0], n_draws[client], self.random(client, 2))
            points.append(stack([samples[chosen], centres]))
            weights.append(np.r_[sampled, remaining])
        points, weights = self.send_rows(ledger, points, weights)
        if self.comm.is_server:
            self.cluster_at_server(points, weights)
        return ledger

    def solve(self, client, samples):
        """A client's own centres, and each of its samples' nearest one and squared distance."""
        n = samples.shape[0]
        if n <= self.model.n_components:
            return samples, np.arange(n), np.zeros(n)
        centres = cluster(samples, np.ones(n), self.model.n_components, self.random(client, 1)).astype(samples.dtype)
        centres = sparse.csr_array(centres) if sparse.issparse(samples) else centres  # travels with the samples
        return centres, *nearest(samples, squared_norms(samples), centres)

    def receive_allotment(self, ledger):
        """How many points each client is to sample: ndarray of int64 (P,)."""
        n_draws = np.zeros(self.sampler.all_clients.size, np.int64)
        if self.comm.is_server:
            n_draws[:] = allot(self.costs, self.config.summary_size or 10 * self.model.n_components)
        self.comm.broadcast(n_draws, "control", self.everyone)
        ledger.downlink(n_draws.size, 8)
        return n_draws
