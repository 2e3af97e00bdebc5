"""Seconds by phase, kept apart from the mathematics.

A phase's seconds are what the rank did in it itself, the moving of its own messages included; the time in which it could only wait for
others, in whatever phase, is the phase ``wait``.
"""

import time
from contextlib import contextmanager

import numpy as np

PHASES = ("broadcast", "local factor", "step size", "shared factor", "average", "evaluation", "control", "wait")
WAIT = PHASES.index("wait")


class Clock:
    """Adds up this rank's seconds by phase and round.

    Parameters
    ----------
    waited : callable() -> float
        The seconds that this rank has waited so far, in all.

    Attributes
    ----------
    rounds : list of ndarray (phases,)
        One entry a finished round; the first is what came before round 1.
    """

    def __init__(self, waited=lambda: 0.0):
        self.rounds = []
        self._waited = waited
        self._now = np.zeros(len(PHASES))

    @contextmanager
    def __call__(self, phase):
        """Time a block as part of a phase of :data:`PHASES`."""
        start, waited_before = time.perf_counter(), self._waited()
        try:
            yield
        finally:
            waited = self._waited() - waited_before
            self._now[PHASES.index(phase)] += time.perf_counter() - start - waited
            self._now[WAIT] += waited

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
