"""Factorization of pooled data, the target that federated algorithms approach (ratings: Koren, Bell and Volinsky 2009)."""

from fedmavg_mpi.algorithms.algorithm import Algorithm
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.participation import Nobody


class Centralized(Algorithm):
    """All clients' data go to the server once; from then on it works alone, by alternating projected-gradient steps on the same F.

    In a round it takes Q1 steps on all of H, then Q2 steps on W whose size follows from the pooled data. Parameters as in
    :class:`Algorithm`.
    """

    pooled = True
    fixed = {
        "algorithm": {
            "clients_per_round": 0,
            "participation": "pcc",
            "q2_schedule": "constant",
            "step_size_w": "local",
            "curvature_factor_w": 5.0,
            "upload": "dense",
        },
        "aggregation": {"method": "gather", "weighting": "clients"},  # an objective summed in client order ends all runs alike
    }

    def __init__(self, settings, comm, placement, sampler, aggregation, model, shard, clock, w):
        super().__init__(settings, comm, placement, Nobody(sampler), aggregation, model, shard, clock, w)
        shard.receive(w)

    def run_round(self, s):
        """Carry out round ``s``, at the server. As in :class:`Algorithm`; no client is drawn and nothing is sent."""
        if self.comm.is_server:
            with self.clock("local factor"):
                self.shard.update_local_factors(self.shard.all_clients, self.config.q1)
            with self.clock("shared factor"):
                self.shard.update_shared_factor(self.config.q2)
                self.w = self.shard.w
        return self.sampler.draw(s), self.config.q2, ProtocolLedger()

    def share_model(self, clients, kind):
        """Nothing to share: the server has all clients."""
