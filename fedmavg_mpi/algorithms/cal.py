"""CAL: k-means of summaries with outliers (Chen, Azer and Zhang 2018, Algorithms 1 to 3).

The protocol ledger: the uplink is the points of all summaries and a weight for each; nothing goes down.
"""

import numpy as np

from fedmavg_mpi import rng
from fedmavg_mpi.algorithms.kmeans import DistributedKMeans
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.models.summaries import ball_growing
from fedmavg_mpi.models.trimmed_kmeans import trimmed_kmeans


class Cal(DistributedKMeans):
    """In one round each client sends a summary; k-means-- on them, with t outliers in all, is the server's.

    t is a share of N, and a client's own t is 2 t N_p / N: what the paper's analysis gives clients that hold equal parts of the data at
    random. Where the parts are not random it asks for t at each client, below which no client grows a ball that holds fewer than
    8 t samples: with many clients all would then send all their data.
    """

    def find_centres(self, s):
        """The summaries, and the centres."""
        ledger = ProtocolLedger()
        points, weights = [], []
        for client, _, samples in self.own_clients():
            chosen, counts = self.summarize(client, samples)
            points.append(samples[chosen])
            weights.append(counts)
        points, weights = self.send_rows(ledger, points, weights)
        if self.comm.is_server:
            outlier_weight = self.config.outlier_share * weights.sum()
            random = rng.generator(self.sampler.seed, rng.CENTRES)
            centres, _ = trimmed_kmeans(points, weights, self.model.n_components, outlier_weight, random)
            self.w = centres.astype(self.w.dtype)
        return ledger

    def summarize(self, client, samples):
        """A client's summary: the indices of its points, and their weights."""
        n = samples.shape[0]
        kappa = max(np.log(max(n, 1)), self.model.n_components)
        n_draws = self.config.summary_size or int(np.ceil(2 * kappa))
        return ball_growing(samples, 2 * self.config.outlier_share * n, n_draws, self.random(client, 1))
