"""How the clients' parts become one at the server: one class a method.

``sum_over_clients`` adds small per-client values (K x K matrices, terms of the objective). ``contribution`` and ``average`` add the drawn
clients' weighted copies of W. All are called by every rank with the same draw; in ``average`` only the ranks that own drawn clients, and
the server, take part.
"""

import numpy as np

from fedmavg_mpi.models.sums import in_order_sum

CLIENTS_AT_ONCE = 1024  # whose small values are held at the same time
COPIES_BYTES = 1 << 28  # of W, that the server holds at the same time


class Reduce:
    """Each rank adds its own clients' parts, and the sums meet on the way to the server."""

    client_by_client = False
    upload_itemsize = None  # bytes of a value that a client sends, if it isn't the run's own precision

    def __init__(self, comm, placement):
        self.comm = comm
        self.placement = placement
        self.latest = {}  # kind -> the last values of every client, kept at the server by those who need them
        clients = placement.clients_of(comm.rank)
        self.first_client, self.n_clients = clients.start, len(clients)

    def sum_over_clients(self, values, clients, kind, add=in_order_sum):
        """The sum of all clients' values, at the server.

        Parameters
        ----------
        values : callable(ndarray of int) -> ndarray of float64 (n x ...)
            The values of n clients of this rank, given by their indices on it.
        clients : ndarray of int
            Ids of the clients whose values are new since the last call with this kind (at the first call: all).
        kind : str
        add : callable(ndarray (n x ...)) -> ndarray of float64
            What n clients' values add up to.

        Returns
        -------
        ndarray of float64, of the shape that ``add`` gives
            Meaningful at the server only.
        """
        total = add(values(np.arange(min(CLIENTS_AT_ONCE, self.n_clients))))
        for start in range(CLIENTS_AT_ONCE, self.n_clients, CLIENTS_AT_ONCE):
            total += add(values(np.arange(start, min(start + CLIENTS_AT_ONCE, self.n_clients))))
        self.comm.reduce(total, kind, self.comm.everyone)
        return total

    def contribution(self, shard, draw, curvature, steps):
        """What this rank gives to the average, from its drawn clients' steps on W.

        Parameters
        ----------
        shard : the rank's part of a model
        draw : Draw
        curvature : float or None
            The shared step's d; None: each client's own.
        steps : int
            Q2 of this round.

        Returns
        -------
        ndarray or None
            The weighted sum over the drawn clients here, as ``shard.contribution`` gives it; None on a rank that takes no part.
        """
        here, weights = self._drawn_here(draw)
        if here.size:
            return shard.contribution(here, weights, curvature, steps)
        return shard.no_contribution() if self.comm.is_server else None

    def average(self, part, draw, shard):
        """The drawn clients' weighted sum from the ranks' contributions.

        Returns
        -------
        ndarray
            As ``model.next_shared`` takes it, on the server and on :meth:`holders`; meaningless elsewhere.
        """
        self.comm.reduce(part, "model_up", self.placement.ranks_of(draw.clients))
        return part

    def holders(self, draw):
        """Ranks beside the server that hold the average once it is formed."""
        return ()

    def state_by_client(self):
        """What a checkpoint keeps of each client here: dict of str to ndarray (clients here x ...)."""
        return {}

    def restore_by_client(self, state):
        """Take what :meth:`state_by_client` gave."""

    def _drawn_here(self, draw):
        """Indices on this rank, and weights, of the drawn clients that live here."""
        begin, end = self.placement.clients_on(self.comm.rank, draw.clients)
        return draw.clients[begin:end] - self.first_client, draw.weights[begin:end]


class Allreduce(Reduce):
    """As :class:`Reduce`, and the drawn ranks hold the average at once, so that the next broadcast passes them by."""

    def average(self, part, draw, shard):
        """As in :class:`Reduce`."""
        self.comm.allreduce(part, "model_up", self.placement.ranks_of(draw.clients))
        return part

    def holders(self, draw):
        """Ranks beside the server that hold the average once it is formed."""
        return self.placement.ranks_of(draw.clients)


class ReduceRows(Reduce):
    """Each rank adds its own clients' parts and sends only the rows that one of them has changed; the server adds in rank order."""

    def average(self, part, draw, shard):
        """As in :class:`Reduce`."""
        ranks = self.placement.ranks_of(draw.clients)
        one_each = np.isin(np.arange(self.comm.size), ranks).astype(np.int64)
        changed = np.arange(0) if part is None or self.comm.rank not in ranks else shard.changed_rows(part)
        counts = self.comm.gather(np.array([changed.size])[: one_each[self.comm.rank]], one_each, "control")
        rows = np.zeros(self.comm.size, np.int64)
        if self.comm.is_server:
            rows[list(ranks)] = counts
        self.comm.broadcast(rows, "control", ranks)
        items = self.comm.gather(changed.astype(np.int32), rows, "model_up", ranks)
        values = self.comm.gather(changed if part is None else part[changed], rows, "model_up", ranks)
        if not self.comm.is_server:
            return None
        total = shard.no_contribution()
        ends = np.cumsum(rows)
        for begin, end in zip(ends - rows, ends, strict=True):
            total[items[begin:end]] += values[begin:end]
        return total


class Gather(Reduce):
    """Every client's copy is sent, and the server adds them in client order: the same bits on any number of ranks."""

    client_by_client = True

    def sum_over_clients(self, values, clients, kind, add=in_order_sum):
        """As in :class:`Reduce`; only the new values travel."""
        begin, end = np.searchsorted(clients, [self.first_client, self.first_client + self.n_clients])
        mine = values(clients[begin:end] - self.first_client)
        new = self.comm.gather(mine, self.placement.split(clients), kind)
        if not self.comm.is_server:
            return None
        latest = self.latest.setdefault(kind, np.zeros((len(self.placement.sizes), *new.shape[1:])))
        latest[clients] = new
        return add(latest)

    def contribution(self, shard, draw, curvature, steps):
        """A function of client indices here that gives their own copies. Parameters as in :class:`Reduce`."""
        return lambda here: shard.client_models(here, curvature, steps)

    def average(self, part, draw, shard):
        """As in :class:`Reduce`, from the copies themselves, as many at a time as the server can hold."""
        total = shard.no_contribution() if self.comm.is_server else None
        at_once = max(1, COPIES_BYTES // max(1, shard.w.nbytes))
        for start in range(0, draw.clients.size, at_once):
            clients, weights = draw.clients[start : start + at_once], draw.weights[start : start + at_once]
            begin, end = np.searchsorted(clients, [self.first_client, self.first_client + self.n_clients])
            copies = part(clients[begin:end] - self.first_client)
            copies = self.comm.gather(copies, self.placement.split(clients), "model_up")
            if self.comm.is_server:
                self.add(shard, total, weights, copies)
        return total

    def add(self, shard, total, weights, copies):
        """Add weighted copies to a total, one after the other."""
        shard.add_copies(total, weights, copies)


class GatherRows(Gather):
    """As :class:`Gather`, of each client's changed rows only; the same bits."""

    def contribution(self, shard, draw, curvature, steps):
        """The drawn clients' changed rows: their indices, and the rows, client after client."""
        here, _ = self._drawn_here(draw)
        return shard.client_rows(here, curvature, steps)

    def average(self, part, draw, shard):
        """As in :class:`Reduce`."""
        items, values = part
        counts = shard.counts[draw.clients]  # of all clients, known to all ranks
        ends = np.concatenate([[0], np.cumsum(counts)])[np.searchsorted(draw.clients, self.placement.cut)]
        items = self.comm.gather(items, np.diff(ends), "model_up")
        values = self.comm.gather(values, np.diff(ends), "model_up")
        if not self.comm.is_server:
            return None
        total = shard.no_contribution()
        shard.add_rows(total, draw.weights, counts, items, values)
        return total


METHODS = {
    ("reduce", "dense"): Reduce,
    ("reduce", "rows"): ReduceRows,
    ("allreduce", "dense"): Allreduce,
    ("gather", "dense"): Gather,
    ("gather", "rows"): GatherRows,
}
