"""How the clients' parts become one at the server: one class a method.

``sum_over_clients`` adds small per-client values (K x K matrices, terms of the objective). ``contribution`` and ``average`` add the drawn
clients' weighted copies of W. All are called by every rank with the same draw; in ``average`` only the ranks that own drawn clients, and
the server, take part.
"""

import numpy as np

CLIENTS_AT_ONCE = 1024  # whose values are held at the same time


class Reduce:
    """Each rank adds its own clients' parts, and the sums meet on the way to the server."""

    client_by_client = False

    def __init__(self, comm, placement):
        self.comm = comm
        self.placement = placement
        clients = placement.clients_of(comm.rank)
        self.first_client, self.n_clients = clients.start, len(clients)

    def sum_over_clients(self, values, clients, kind):
        """The sum of all clients' values, at the server.

        Parameters
        ----------
        values : callable(ndarray of int) -> ndarray of float64 (n x ...)
            The values of n clients of this rank, given by their indices on it.
        clients : ndarray of int
            Ids of the clients whose values are new since the last call with this kind (at the first call: all).
        kind : str

        Returns
        -------
        ndarray of float64 (...)
            Meaningful at the server only.
        """
        total = values(np.arange(0)).sum(axis=0)
        for start in range(0, self.n_clients, CLIENTS_AT_ONCE):
            total += values(np.arange(start, min(start + CLIENTS_AT_ONCE, self.n_clients))).sum(axis=0)
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
        ndarray (K x M) or None
            The weighted sum of the drawn clients here; None on a rank that takes no part.
        """
        here, weights = self._drawn_here(draw)
        if here.size:
            return shard.contribution(here, weights, curvature, steps)
        return np.zeros_like(shard.w) if self.comm.is_server else None

    def average(self, part, draw):
        """The drawn clients' average, sum_p a_p W_p, from the ranks' contributions.

        Returns
        -------
        ndarray (K x M)
            On the server and on :meth:`holders`; meaningless elsewhere.
        """
        if part is not None:
            self.comm.reduce(part, "model_up", self.placement.ranks_of(draw.clients))
        return part

    def holders(self, draw):
        """Ranks beside the server that hold the average once it is formed."""
        return ()

    def _drawn_here(self, draw):
        """Indices on this rank, and weights, of the drawn clients that live here."""
        begin, end = np.searchsorted(draw.clients, [self.first_client, self.first_client + self.n_clients])
        return draw.clients[begin:end] - self.first_client, draw.weights[begin:end]


class Allreduce(Reduce):
    """As :class:`Reduce`, and the drawn ranks hold the average at once, so that the next broadcast passes them by."""

    def average(self, part, draw):
        """As in :class:`Reduce`."""
        if part is not None:
            self.comm.allreduce(part, "model_up", self.placement.ranks_of(draw.clients))
        return part

    def holders(self, draw):
        """Ranks beside the server that hold the average once it is formed."""
        return self.placement.ranks_of(draw.clients)


class Gather(Reduce):
    """Every client's part is sent, and the server adds them in client order: the same bits on any number of ranks."""

    client_by_client = True

    def __init__(self, comm, placement):
        super().__init__(comm, placement)
        self.latest = {}  # kind -> the last values of every client, kept at the server

    def sum_over_clients(self, values, clients, kind):
        """As in :class:`Reduce`; only the new values travel."""
        begin, end = np.searchsorted(clients, [self.first_client, self.first_client + self.n_clients])
        mine = np.ascontiguousarray(values(clients[begin:end] - self.first_client))
        new = self.comm.gather(mine, self.placement.split(clients), kind)
        if not self.comm.is_server:
            return None
        latest = self.latest.setdefault(kind, np.zeros((len(self.placement.sizes), *new.shape[1:])))
        latest[clients] = new
        return in_order_sum(latest)

    def contribution(self, shard, draw, curvature, steps):
        """The drawn clients' own copies, ndarray (drawn clients here x K x M). Parameters as in :class:`Reduce`."""
        here, _ = self._drawn_here(draw)
        return shard.client_models(here, curvature, steps) if here.size else np.empty((0, *shard.w.shape), shard.w.dtype)

    def average(self, part, draw):
        """As in :class:`Reduce`, from the copies themselves."""
        copies = self.comm.gather(part, self.placement.split(draw.clients), "model_up")
        if not self.comm.is_server:
            return None
        total = np.zeros_like(copies[0])
        for weight, copy in zip(draw.weights, copies, strict=True):
            total += total.dtype.type(weight) * copy
        return total


def in_order_sum(values):
    """The sum over the first axis, one after the other in its order."""
    total = np.zeros(values.shape[1:])
    for value in values:
        total += value
    return total


METHODS = {"reduce": Reduce, "allreduce": Allreduce, "gather": Gather}
