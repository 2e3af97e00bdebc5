"""What changes from round to round: the number of steps on W, the penalty, and the end."""

import math
from dataclasses import dataclass

import numpy as np


def shared_steps(schedule, q2, s):
    """Steps on W in round ``s`` (paper: floor(Q2 / s) + 1 when diminishing)."""
    return q2 // s + 1 if schedule == "diminishing" else q2


@dataclass
class Decision:
    """What the server decides between rounds: the penalty from now on and whether a stage of it begins, or why to stop."""

    rho: float
    stop_reason: str | None = None
    new_stage: bool = False


class StopRule:
    """Ends a run when the objective has settled (paper: relative change below 1e-8, or 500 rounds).

    Parameters
    ----------
    stop : StopConfig
    limit_reason : str
        What to say at the last round.
    """

    def __init__(self, stop, limit_reason="round limit"):
        self.stop = stop
        self.limit_reason = limit_reason
        self.previous = None  # (round, objective)

    def decide(self, s, rho, evaluation):
        """Decide after round ``s``.

        Parameters
        ----------
        s : int
            Rounds done.
        rho : float
            The penalty now.
        evaluation : Evaluation or None
            None where there was none.

        Returns
        -------
        Decision
        """
        if evaluation is not None:
            value = evaluation.objective(rho)
            change = self.relative_change(s, value)
            if not math.isfinite(value):
                return Decision(rho, "objective not finite")
            if change is not None and change < self.stop.rel_tol:
                return Decision(rho, "objective settled")
        return Decision(rho, self.limit_reason if s >= self.stop.max_rounds else None)

    def state(self):
        """What a checkpoint keeps: ndarray of float64."""
        return np.array(self.previous or [], np.float64)

    def restore(self, state):
        """Take what :meth:`state` gave."""
        self.previous = (int(state[0]), float(state[1])) if state.size else None

    def relative_change(self, s, value):
        """Relative change of the objective a round since the last evaluation; None at the first one."""
        previous, self.previous = self.previous, (s, value)
        if previous is None or previous[0] == s:
            return None
        scale = abs(previous[1]) or 1.0
        return abs(value - previous[1]) / scale / (s - previous[0])


class PenaltyContinuation(StopRule):
    """Raises rho in stages until the clusters are settled (SNCP: Wang et al. 2019).

    A stage ends when the relative change falls below 1e-5 (or ``stop.rel_tol``, if that is larger) or after ``stage_rounds``; then rho grows by
    half, up to ``rho_max``. The run ends when no sample's cluster differs from the one it had when the stage began, and the objective has
    settled within the same tolerance.

    Parameters
    ----------
    stop : StopConfig
    limit_reason : str
    rho_max : float
        100 |X|^2 / N.
    stage_rounds : int
    """

    STAGE_TOLERANCE = 1e-5
    GROWTH = 1.5

    def __init__(self, stop, limit_reason="round limit", rho_max=100.0, stage_rounds=200):
        super().__init__(stop, limit_reason)
        self.rho_max = rho_max
        self.stage_rounds = stage_rounds
        self.stage_start = 0

    def decide(self, s, rho, evaluation):
        """As in :class:`StopRule`; clusters count as changed from the start of the stage."""
        if evaluation is None:
            return Decision(rho, self.limit_reason if s >= self.stop.max_rounds else None)
        value = evaluation.objective(rho)
        if not math.isfinite(value):
            return Decision(rho, "objective not finite")
        change = self.relative_change(s, value)
        settled = change is not None and change < max(self.STAGE_TOLERANCE, self.stop.rel_tol)
        if settled and evaluation.n_changed == 0:
            return Decision(rho, "clusters settled")
        if s >= self.stop.max_rounds:
            return Decision(rho, self.limit_reason)
        if settled or s - self.stage_start >= self.stage_rounds:
            rho = max(rho, min(self.GROWTH * rho, self.rho_max))
            self.stage_start = s
            self.previous = (s, evaluation.objective(rho))  # the same point under the new penalty
            return Decision(rho, new_stage=True)
        return Decision(rho)

    def state(self):
        """As in :class:`StopRule`, and the round in which the stage began."""
        return np.array([self.stage_start, *super().state()])

    def restore(self, state):
        """As in :class:`StopRule`."""
        self.stage_start = int(state[0])
        super().restore(state[1:])
