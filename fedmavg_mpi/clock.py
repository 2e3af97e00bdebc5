"""Seconds by phase, kept apart from the mathematics.

A phase's seconds are what the rank did in it itself, the moving of its own messages included; the time in which it could only wait for
others, in whatever phase, is the phase ``wait``.
"""

import time

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
        self.waited = waited
        self._now = np.zeros(len(PHASES))
        self._spans = {phase: _Span(self, phase) for phase in PHASES}

    def __call__(self, phase):
        """Time a block (``with``) as part of a phase of :data:`PHASES`; not one inside of another of the same phase."""
        return self._spans[phase]

    def add(self, phase, seconds, waited):
        """Add to a phase what of these seconds was not spent waiting."""
        self._now[PHASES.index(phase)] += seconds - waited
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


class _Span:
    """A block in one phase. Not a generator: there are many a round, and it costs a third of one."""

    def __init__(self, clock, phase):
        self.clock, self.phase = clock, phase

    def __enter__(self):
        self.waited, self.start = self.clock.waited(), time.perf_counter()

    def __exit__(self, *error):
        self.clock.add(self.phase, time.perf_counter() - self.start, self.clock.waited() - self.waited)
