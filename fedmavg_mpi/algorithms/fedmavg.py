"""FedMAvg (Wang, Suwandi and Chang 2021): federated matrix factorization by model averaging."""

import numpy as np

from fedmavg_mpi.algorithms.algorithm import Algorithm
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.schedule import shared_steps


class FedMAvg(Algorithm):
    """One run's state on one rank, and the round that changes it. Parameters as in :class:`Algorithm`."""

    takes_start = True

    def __init__(self, settings, comm, placement, sampler, aggregation, model, shard, clock, w):
        super().__init__(settings, comm, placement, sampler, aggregation, model, shard, clock, w)
        self.holders = set()  # ranks beside the server that hold the present W
        shard.receive(w)
        if settings.step_size_w == "global" and sampler.participation == "pcp" and not sampler.full:
            # Clients that are not drawn for long count in HH' with their start.
            self.aggregation.sum_over_clients(shard.gram_values, sampler.all_clients, "step_size", model.add_grams)
            self.setup_ledger.uplink(sampler.all_clients.size * model.n_gram_values, 8)

    def run_round(self, s):
        """Carry out communication round ``s`` (paper, Algorithm FedMAvg).

        Returns
        -------
        draw : Draw
        steps : int
            Steps on W in this round.
        ledger : ProtocolLedger
        """
        draw = self.sampler.draw(s)
        steps = shared_steps(self.config.q2_schedule, self.config.q2, s)
        here = self.clients_here(draw.updating)

        with self.clock("broadcast"):  # to whom an evaluation or an allreduce has not brought it already
            self.share_model(draw.updating, "model_down")
        with self.clock("local factor"):
            self.shard.update_local_factors(here, self.config.q1)
        with self.clock("step size"):
            curvature = self.exchange_step_size(draw)
        with self.clock("shared factor"):
            part = self.aggregation.contribution(self.shard, draw, curvature, steps)
        with self.clock("average"):
            average = self.aggregation.average(part, draw, self.shard)
            self.hold_model(average, self.aggregation.holders(draw))
        return draw, steps, self.record(draw)

    def share_model(self, clients, kind):
        """Broadcast W to the ranks of these clients that don't hold it yet."""
        ranks = set(self.placement.ranks_of(clients)) - self.holders
        if not ranks:
            return
        self.comm.broadcast(self.w, kind, ranks)
        self.holders |= ranks
        if self.comm.rank in ranks and not self.comm.is_server:
            self.shard.receive(self.w)

    def exchange_step_size(self, draw):
        """The shared step's d from HH' of all clients, at the drawn ranks; None where each client uses its own."""
        if self.config.step_size_w == "local":
            return None
        total = self.aggregation.sum_over_clients(self.shard.gram_values, draw.updating, "step_size", self.model.add_grams)
        curvature = np.array([self.model.shared_curvature(total) if self.comm.is_server else 0.0])
        self.comm.broadcast(curvature, "step_size", self.placement.ranks_of(draw.clients))
        return float(curvature[0])

    def hold_model(self, average, holders):
        """Make the average W, at the server and at ``holders``."""
        self.holders = set(holders)
        if self.comm.is_server or self.comm.rank in self.holders:
            self.w = self.model.next_shared(self.w, average)
            self.shard.receive(self.w)

    def state(self):
        """As in :class:`Algorithm`, and which ranks hold the present W."""
        return {**super().state(), "holders": np.array(sorted(self.holders), np.int64)}

    def restore(self, state, private, same_ranks):
        """As in :class:`Algorithm`."""
        super().restore(state, private, same_ranks)
        self.holders = set(state["holders"].tolist()) if same_ranks else set()

    def record(self, draw):
        """What the protocol moved in this round (closed form, whatever the number of ranks)."""
        ledger = ProtocolLedger()
        itemsize = self.w.itemsize
        ledger.downlink(draw.updating.size * self.w.size, itemsize)
        self.model.count_upload(ledger, draw.clients, self.aggregation.upload_itemsize or itemsize)
        if self.config.step_size_w == "global":
            ledger.uplink(draw.updating.size * self.model.n_gram_values, 8)
            ledger.downlink(draw.clients.size, 8)
        return ledger
