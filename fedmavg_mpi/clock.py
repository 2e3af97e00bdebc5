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
    now : list of float (phases,)
        Of the open round.
    """

    def __init__(self, waited=lambda: 0.0):
        self.rounds = []
        self.waited = waited
        self.now = [0.0] * len(PHASES)
        self._spans = {phase: _Span(self, phase) for phase in PHASES}

    def __call__(self, phase):
        """Time a block (``with``) as part of a phase of :data:`PHASES`; not one inside of another of the same phase."""
        return self._spans[phase]

    def state(self):
        """What a checkpoint keeps, the open entry included: ndarray (entries x phases)."""
        return np.array([*self.rounds, self.now])

    def restore(self, state):
        """Take what :meth:`state` gave."""
        *self.rounds, now = state.copy()
        self.now = now.tolist()

    def end_round(self):
        """Close the entry of this round."""
        self.rounds.append(np.array(self.now))
        self.now = [0.0] * len(PHASES)


class _Span:
    """A block in one phase. Not a generator: there are many a round, and it costs a third of one."""

    def __init__(self, clock, phase):
        self.clock, self.phase = clock, PHASES.index(phase)

    def __enter__(self):
        self.waited, self.start = self.clock.waited(), time.perf_counter()

    def __exit__(self, *error):
        waited = self.clock.waited() - self.waited
        self.clock.now[self.phase] += time.perf_counter() - self.start - waited
        self.clock.now[WAIT] += waited
