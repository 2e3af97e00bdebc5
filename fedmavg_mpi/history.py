"""What happened in a run, round by round and evaluation by evaluation; kept at the server."""

import numpy as np

from fedmavg_mpi.ledger import ProtocolLedger


class History:
    """The log of a run.

    Parameters
    ----------
    measures : tuple of str
        What evaluations measure beside the objective.

    Attributes
    ----------
    n_rounds : int
        Rounds done; on every rank.
    interrupted : bool
        Whether the run was left before its end, at a checkpoint; on every rank.
    stop_reason : str or None
    draws : list of ndarray of int64 (m,)
    seconds : list of float
        From round to round, evaluation included.
    per_round, per_evaluation : dict of str to list
    mpi : list of ndarray of int64 (2 x kinds)
        The server's bytes sent and received up to each look between rounds.
    ranks_since : int
        The round since which the run has had its present number of ranks, and since which their bytes and seconds are counted.
    """

    def __init__(self, measures):
        self.n_rounds, self.interrupted, self.stop_reason = 0, False, None
        self.ranks_since, self._mpi_before = 0, 0
        self.draws, self.seconds, self.mpi = [], [], []
        self.per_round = {name: [] for name in ("q2", "rho", *vars(ProtocolLedger()))}
        self.per_evaluation = {name: [] for name in ("round", "objective", "changed", *measures)}

    def add_round(self, draw, steps, rho, ledger, seconds):
        """Enter one round."""
        self.n_rounds += 1
        self.draws.append(draw.draws)
        self.seconds.append(seconds)
        for name, value in {"q2": steps, "rho": rho, **vars(ledger)}.items():
            self.per_round[name].append(value)

    def add_traffic(self, ledger):
        """Enter the server's bytes so far (2 x kinds)."""
        self.mpi.append(ledger + self._mpi_before)

    def add_evaluation(self, s, rho, evaluation):
        """Enter the state after round ``s``."""
        found = {"round": s, "objective": evaluation.objective(rho), "changed": evaluation.n_changed, **evaluation.metrics}
        for name, value in found.items():
            self.per_evaluation[name].append(value)

    def latest(self):
        """The last evaluation's objective and metrics, as progress shows them."""
        last = {name: values[-1] for name, values in self.per_evaluation.items() if name not in ("round", "changed")}
        return {name: f"{value:.6g}" for name, value in last.items() if not np.isnan(value)}

    def state(self):
        """What a checkpoint keeps: dict of str to ndarray."""
        lists = {"draws": self.draws, "seconds": self.seconds, "mpi": self.mpi}
        return {
            **{f"history/{name}": np.array(values) for name, values in lists.items()},
            "history/ranks_since": np.array(self.ranks_since),
            **{f"rounds/{name}": np.array(values) for name, values in self.per_round.items()},
            **{f"evaluations/{name}": np.array(values) for name, values in self.per_evaluation.items()},
        }

    def restore(self, state):
        """Take what :meth:`state` gave."""
        self.draws, self.mpi = list(state["history/draws"]), list(state["history/mpi"])
        self.seconds = state["history/seconds"].tolist()
        self.n_rounds, self.ranks_since = len(self.seconds), int(state["history/ranks_since"])
        for kind, lists in {"rounds": self.per_round, "evaluations": self.per_evaluation}.items():
            for name in lists:
                lists[name] = state[f"{kind}/{name}"].tolist()

    def count_anew(self, ledger):
        """The run goes on with another number of ranks, whose server has ``ledger`` (2 x kinds) behind it."""
        self.ranks_since = self.n_rounds
        self._mpi_before = self.mpi[-1] - ledger if self.mpi else 0
