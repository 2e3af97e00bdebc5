"""Gossip learning (Hegedus, Danner and Jelasity 2019; on matrix factorization: the same, 2020): recommendation without a server."""

import numpy as np

from fedmavg_mpi import memory, rng
from fedmavg_mpi.algorithms.algorithm import Algorithm
from fedmavg_mpi.kernels.merging import merge_rows
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.schedule import shared_steps

IN_FLIGHT_BYTES = 1 << 27  # of all nodes' messages at the same time


class Gossip(Algorithm):
    """Every user is a node with its private [h_p, c_p], its own W, and an age t for each row of it: how often the row was updated.

    In a round each node sends its W and ages to one other node, drawn at random; merges what it received, in order of the sender's id;
    and takes Q1 steps on h_p, then Q2 steps on the rows that it has rated, which thereby age by one. As in the papers a merge weighs
    the two copies by age and the merged age is the larger of the two: not the sum, since both may stem from the same updates. A row of
    age 0 tells nothing and is not merged. Unlike the papers' nodes, which send and receive at times of their own, these go in step.

    All nodes start from the same W, as draws from one seed. ``w`` is that until the run's end, and then the nodes' average by age.

    Attributes
    ----------
    copies : ndarray (nodes here x items x L)
    ages : ndarray of int32 (nodes here x items)
    """

    kinds = ("ratings",)
    fixed = {
        "algorithm": {"clients_per_round": 0, "participation": "pcc", "step_size_w": "local"},
        "aggregation": {"method": "gather", "weighting": "clients"},  # an objective summed in client order ends all runs alike
    }

    def __init__(self, settings, comm, placement, sampler, aggregation, model, shard, clock, w):
        super().__init__(settings, comm, placement, sampler, aggregation, model, shard, clock, w)
        self.by_rows = settings.upload == "rows"
        self.nodes = np.arange(*placement.cut[comm.rank : comm.rank + 2])
        row_bytes = w.shape[1] * w.itemsize + np.dtype(np.int32).itemsize
        n_nodes = placement.sizes.size
        self.rows_at_once = max(1, min(w.shape[0], IN_FLIGHT_BYTES // max(1, n_nodes * row_bytes)))
        in_flight = n_nodes * self.rows_at_once * row_bytes * (2 if self.by_rows else 1)  # rows are packed, and unpacked
        memory.require(
            comm,
            (self.nodes.size * w.shape[0] * row_bytes + in_flight) if self.nodes.size else 0,
            f"gossip, with a copy of W ({w.shape[0]} x {w.shape[1]}) at each of {n_nodes} nodes,",
            "use more hosts, run.dtype = 'float32' or a lower model.n_components",
        )
        self.copies = np.empty((self.nodes.size, *w.shape), w.dtype)
        self.copies[:] = w
        self.ages = np.zeros((self.nodes.size, w.shape[0]), np.int32)
        shard.receive(self.copies)

    def run_round(self, s):
        """Carry out round ``s``. As in :class:`Algorithm`; the draw is of all nodes."""
        draw = self.sampler.draw(s)
        steps = shared_steps(self.config.q2_schedule, self.config.q2, s)
        here = self.clients_here(draw.updating)

        with self.clock("average"):
            n_rows = self.exchange_models(self.draw_peers(s))
        with self.clock("local factor"):
            self.shard.update_local_factors(here, self.config.q1)
        with self.clock("shared factor"):
            self.update_copies(here, steps)
        with self.clock("control"):
            ledger = self.record(n_rows)
        return draw, steps, ledger

    def draw_peers(self, s):
        """To whom each node sends in round ``s``, uniform over the others: ndarray of int (P,); empty where there are none."""
        n = self.placement.sizes.size
        if n == 1:
            return np.arange(0)
        return (np.arange(n) + rng.generator(self.sampler.seed, rng.PEERS, s).integers(1, n, n)) % n

    def exchange_models(self, peers):
        """Send each node's W and ages to its peer, and merge those that arrive; returns the number of rows sent from here.

        A merge goes row by row, so this goes by parts of W: all have sent a part before anybody changes it, and only the messages of one
        part are in memory.
        """
        owner = np.searchsorted(self.placement.cut, np.arange(self.placement.sizes.size), side="right") - 1
        senders = np.flatnonzero(np.isin(peers, self.nodes))  # whose messages come here
        to_ranks = owner[peers[self.nodes]] if peers.size else []
        received = np.empty((senders.size, self.rows_at_once, self.w.shape[1]), self.w.dtype)
        received_ages = np.empty((senders.size, self.rows_at_once), np.int32)
        n_rows = 0
        for start in range(0, self.w.shape[0], self.rows_at_once):
            part = slice(start, min(start + self.rows_at_once, self.w.shape[0]))
            outgoing = [self.packed(i, part) for i in range(len(to_ranks))]
            counts = self.exchange_counts(outgoing, to_ranks, owner[senders], part)
            incoming = [
                (received_ages[j, :count], received[j, :count], *([np.empty(count, np.int32)] if self.by_rows else []))
                for j, count in enumerate(counts)
            ]
            self.comm.exchange(
                [(rank, buffer) for rank, message in zip(to_ranks, outgoing, strict=True) for buffer in message],
                [(rank, buffer) for rank, message in zip(owner[senders], incoming, strict=True) for buffer in message],
                "model_up",
            )
            for sender, message in zip(senders, incoming, strict=True):
                i = peers[sender] - self.nodes[0]
                merge_rows(self.ages[i, part], self.copies[i, part], *message)
            n_rows += sum(message[0].size for message in outgoing)
        return n_rows

    def packed(self, i, part):
        """A part of node i's W as it travels: ages and rows; with ``upload = "rows"`` only those of age > 0, and which they are."""
        ages, w = self.ages[i, part], self.copies[i, part]
        if not self.by_rows:
            return ages, w
        rows = np.flatnonzero(ages).astype(np.int32)
        return ages[rows], w[rows], rows

    def exchange_counts(self, outgoing, to_ranks, from_ranks, part):
        """How many rows of a part each message to here has."""
        if not self.by_rows:
            return [part.stop - part.start] * len(from_ranks)
        counts = np.empty((len(from_ranks), 1), np.int64)
        sent = [np.array([message[0].size], np.int64) for message in outgoing]
        self.comm.exchange(list(zip(to_ranks, sent, strict=True)), list(zip(from_ranks, counts, strict=True)), "control")
        return counts[:, 0].tolist()

    def update_copies(self, here, steps):
        """Q2 steps of each node on the rows that it has rated."""
        for i in here:
            items, rows = self.shard.client_rows(here[i : i + 1], None, steps)
            self.copies[i, items] = rows
            self.ages[i, items] += 1

    def record(self, n_rows):
        """What the nodes sent and received in this round; complete at the server's rank, which here only keeps the books."""
        ledger = ProtocolLedger()
        total = np.array([n_rows], np.int64)
        self.comm.reduce(total, "control", self.comm.everyone)
        for count in (ledger.uplink, ledger.downlink):
            count(total[0] * self.w.shape[1], self.w.itemsize)
            count(total[0] * (2 if self.by_rows else 1), 4)  # the ages, and which rows they are
        return ledger

    def share_model(self, clients, kind):
        """Nothing to share: each user works with its own W and is judged by it."""

    def private_state(self):
        """As in :class:`Algorithm`: the nodes' own W and ages."""
        return {"copies": self.copies, "ages": self.ages}

    def restore(self, state, private, same_ranks):
        """As in :class:`Algorithm`."""
        super().restore(state, private, same_ranks)
        if private:
            self.copies[:], self.ages[:] = private["copies"], private["ages"]
        self.shard.receive(self.copies)

    def finish(self):
        """Form W = sum_p t_p W_p / sum_p t_p row by row, at the server: for the run file only, no node has it.

        The sum goes from rank to rank, each adding its nodes in order: the same bits on any number of ranks. A row that nobody has
        updated is as it was at the start.
        """
        total = np.zeros((self.w.shape[0], self.w.shape[1] + 1))  # the last column adds up ages, exactly
        last = self.comm.size - 1
        if self.comm.rank > 1:
            self.comm.exchange([], [(self.comm.rank - 1, total)], "evaluation")
        for w, ages in zip(self.copies, self.ages, strict=True):
            total[:, :-1] += ages[:, None] * w
            total[:, -1] += ages
        if self.comm.size > 1:
            outgoing = [] if self.comm.is_server else [((self.comm.rank + 1) % self.comm.size, total)]
            self.comm.exchange(outgoing, [(last, total)] if self.comm.is_server else [], "evaluation")
        if self.comm.is_server:
            updated = total[:, -1] > 0
            self.w[updated] = total[updated, :-1] / total[updated, -1:]
