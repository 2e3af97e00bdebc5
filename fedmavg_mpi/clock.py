"""Seconds by phase, kept apart from the mathematics."""

import time
from contextlib import contextmanager

import numpy as np

PHASES = ("broadcast", "local factor", "step size", "shared factor", "average", "evaluation", "control")


class Clock:
    """Adds up this rank's seconds by phase and round.

    Attributes
    ----------
    rounds : list of ndarray (phases,)
        One entry a finished round; the first is what came before round 1.
    """

    def __init__(self):
        self.rounds = []
        self._now = np.zeros(len(PHASES))

    @contextmanager
    def __call__(self, phase):
        """Time a block as part of a phase of :data:`PHASES`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._now[PHASES.index(phase)] += time.perf_counter() - start

    def state(self):
        """What a checkpoint keeps, the open entry included: ndarray (entries x phases)."""
        return np.array([*self.rounds, self._now])

    def restore(self, state):
        """Take what :meth:`state` gave."""
        *self.rounds, self._now = state.copy()

    def end_round(self):
        """Close the entry of this round."""
        self.rounds.append(self._now)
        self._now = np.zeros(len(PHASES))
