"""Pooled matrix factorization of ratings (Koren, Bell and Volinsky 2009), the target that the federated algorithms approach."""

import numpy as np
from scipy import sparse

from fedmavg_mpi.algorithms.algorithm import Algorithm
from fedmavg_mpi.communicator import SERVER
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.models.ratings import RatingsShard
from fedmavg_mpi.participation import Draw, Sampler


class Centralized(Algorithm):
    """All training ratings go to the server once; from then on it works alone, by alternating gradient steps on the same F.

    In a round it takes Q1 steps on the [h_p, c_p] of all users, then Q2 steps on each row of W with a step size of its own. The users'
    factors go to the ranks for evaluation only, since the held-out ratings stay there.

    Attributes
    ----------
    pooled : RatingsShard or None
        All users, at the server.
    """

    fixed = {"clients_per_round": 0, "participation": "pcc", "q2_schedule": "constant", "step_size_w": "local", "upload": "dense"}
    fixed_aggregation = {"method": "gather", "weighting": "clients"}  # an objective summed in client order ends all runs alike

    def __init__(self, config, comm, placement, sampler, aggregation, model, shard, clock, w):
        super().__init__(config, comm, placement, Nobody(sampler), aggregation, model, shard, clock, w)
        shard.receive(w)
        self.pooled = self.pool_ratings()
        n_ratings = int(model.counts.sum())
        self.setup_ledger.uplink(n_ratings, 4)  # which item
        self.setup_ledger.uplink(n_ratings, w.itemsize)

    def pool_ratings(self):
        """Bring all training ratings to the server: a RatingsShard there, None elsewhere."""
        ends = np.concatenate([[0], np.cumsum(self.model.counts)])
        ratings = self.shard.train
        by_rank = np.diff(ends[self.placement.cut])
        items = self.comm.gather(ratings.indices.astype(np.int32), by_rank, "model_up")
        values = self.comm.gather(ratings.values, by_rank, "model_up")
        if not self.comm.is_server:
            return None
        shape = self.model.counts.size, self.w.shape[0]
        train, test = sparse.csr_array((values, items, ends), shape=shape), sparse.csr_array(shape, dtype=values.dtype)
        pooled = RatingsShard(train, test, 0, self.model, self.sampler.seed)
        pooled.receive(self.w)
        return pooled

    def run_round(self, s):
        """Carry out round ``s``, at the server. As in :class:`Algorithm`; no client is drawn and nothing is sent."""
        draw = self.sampler.draw(s)
        if self.comm.is_server:
            with self.clock("local factor"):
                self.pooled.update_local_factors(self.pooled.all_clients, self.config.q1)
            with self.clock("shared factor"):
                self.pooled.update_shared_factor(self.config.q2)
        return draw, self.config.q2, ProtocolLedger()

    def share_model(self, clients, kind):
        """Bring W, and the users' own factors, to the ranks of these clients."""
        ranks = self.placement.ranks_of(clients)
        self.comm.broadcast(self.w, kind, ranks)
        cut, outgoing = self.placement.cut, []
        if self.comm.is_server:
            outgoing = [(rank, self.pooled.h[cut[rank] : cut[rank + 1]]) for rank in ranks]
        self.comm.exchange(outgoing, [(SERVER, self.shard.h)] if self.comm.rank in ranks else [], kind)


class Nobody(Sampler):
    """No client takes part in a round.

    Parameters
    ----------
    sampler : Sampler
        Whose clients and seed these are.
    """

    def __init__(self, sampler):
        vars(self).update(vars(sampler))

    def draw(self, s):
        """An empty draw."""
        nobody = np.arange(0)
        return Draw(nobody, nobody, np.zeros(0), nobody)
