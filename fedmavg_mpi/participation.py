"""Who takes part in a round. Every rank draws it from the seed and the round, without traffic."""

from dataclasses import dataclass

import numpy as np

from fedmavg_mpi import rng


@dataclass(frozen=True)
class Draw:
    """One round's clients, all ids sorted.

    Attributes
    ----------
    draws : ndarray of int64 (m,)
        The draws as they fell; a client drawn twice stands twice. Under full participation every client once.
    clients : ndarray of int64
        The distinct drawn clients, which upload once each.
    weights : ndarray of float64
        Weight of each distinct drawn client in the average.
    updating : ndarray of int64
        Clients that update their H_p, and so get the new W: all under PCC, the drawn ones under PCP.
    """

    draws: np.ndarray
    clients: np.ndarray
    weights: np.ndarray
    updating: np.ndarray


class Sampler:
    """Draws m clients with replacement, client p with probability N_p / N (paper).

    Parameters
    ----------
    sizes : ndarray (P,)
        Samples of each client.
    clients_per_round : int
        m; 0 or at least P: all clients once, weighted by N_p / N.
    participation : {"pcc", "pcp"}
    seed : int
    """

    def __init__(self, sizes, clients_per_round, participation, seed):
        self.shares = np.asarray(sizes, np.float64) / np.sum(sizes)
        self.all_clients = np.arange(len(sizes))
        self.full = clients_per_round == 0 or clients_per_round >= len(sizes)
        self.m = len(sizes) if self.full else clients_per_round
        self.participation = participation
        self.seed = seed
        self._last = None  # (round, its draw): a round is looked up before it and in it

    def draw(self, s):
        """The clients of round ``s``.

        Returns
        -------
        Draw
        """
        if self.full:
            return Draw(self.all_clients, self.all_clients, self.shares, self.all_clients)
        if self._last is None or self._last[0] != s:
            self._last = s, self._draw_partial(s)
        return self._last[1]

    def _draw_partial(self, s):
        draws = rng.generator(self.seed, rng.SAMPLING, s).choice(self.all_clients.size, self.m, p=self.shares)
        clients, times = np.unique(draws, return_counts=True)
        return Draw(draws, clients, times / self.m, self.all_clients if self.participation == "pcc" else clients)


class Nobody(Sampler):
    """No client is drawn in any round: for algorithms that work at the server, or with all clients in their own way.

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
