"""Which rank owns which clients."""

from copy import copy

import numpy as np


def balanced_cut(sizes, n_workers):
    """Cut the clients, in order, into one contiguous run a worker, balanced on size.

    Contiguous, because then a worker's samples are one slab of the store and client order is rank order.

    Parameters
    ----------
    sizes : ndarray (P,)
        Samples (or measured cost) of each client.
    n_workers : int

    Returns
    -------
    ndarray of int64 (n_workers + 1,)
        Worker i owns clients ``cut[i]:cut[i + 1]``; with more workers than clients some own none.
    """
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.float64)])
    targets = ends[-1] * np.arange(1, n_workers) / n_workers
    # the client boundary nearest to each target
    right = np.searchsorted(ends, targets).clip(1, len(ends) - 1)
    nearest = np.where(targets - ends[right - 1] <= ends[right] - targets, right - 1, right)
    return np.concatenate([[0], nearest, [len(sizes)]]).astype(np.int64)


class Placement:
    """The clients of every rank.

    Parameters
    ----------
    sizes : ndarray (P,)
        Samples of each client.
    n_ranks : int
        With more than one, rank 0 is the server and owns no client.
    costs : ndarray (P,), optional
        What each client's round costs, if that is not its number of samples.

    Attributes
    ----------
    sizes : ndarray (P,)
    cut : ndarray of int64 (ranks + 1,)
        Rank r owns clients ``cut[r]:cut[r + 1]``.
    """

    def __init__(self, sizes, n_ranks, costs=None):
        self.sizes = sizes
        costs = sizes if costs is None else costs
        first = [0] if n_ranks > 1 else []
        self.cut = np.concatenate([first, balanced_cut(costs, max(1, n_ranks - 1))]).astype(np.int64)

    @property
    def rows(self):
        """Samples of every rank: ndarray of int64 (ranks,)."""
        return np.diff(np.concatenate([[0], np.cumsum(self.sizes)])[self.cut]).astype(np.int64)

    def at_server(self):
        """A placement with the same clients, all of them on rank 0: for algorithms that work on pooled data."""
        pooled = copy(self)
        pooled.cut = np.concatenate([[0], np.full(self.cut.size - 1, self.cut[-1])])
        return pooled

    def clients_of(self, rank):
        """The run of clients of a rank, as a range."""
        return range(self.cut[rank], self.cut[rank + 1])

    def ranks_of(self, clients):
        """The ranks that own any of these clients (sorted ids), in order, as a tuple."""
        return tuple(np.flatnonzero(self.split(clients)).tolist())

    def split(self, clients):
        """How many of these clients (sorted ids) each rank owns: ndarray of int64 (ranks,)."""
        return np.diff(np.searchsorted(clients, self.cut))
