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
    stop_reason : str or None
    draws : list of ndarray of int64 (m,)
    seconds : list of float
        From round to round, evaluation included.
    per_round, per_evaluation : dict of str to list
    mpi : list of ndarray of int64 (2 x kinds)
        The server's bytes sent and received up to each look between rounds.
    """

    def __init__(self, measures):
        self.stop_reason = None
        self.draws, self.seconds, self.mpi = [], [], []
        self.per_round = {name: [] for name in ("q2", "rho", *vars(ProtocolLedger()))}
        self.per_evaluation = {name: [] for name in ("round", "objective", "changed", *measures)}

    def add_round(self, draw, steps, rho, ledger, seconds):
        """Enter one round."""
        self.draws.append(draw.draws)
        self.seconds.append(seconds)
        for name, value in {"q2": steps, "rho": rho, **vars(ledger)}.items():
            self.per_round[name].append(value)

    def add_evaluation(self, s, rho, evaluation):
        """Enter the state after round ``s``."""
        found = {"round": s, "objective": evaluation.objective(rho), "changed": evaluation.n_changed, **evaluation.metrics}
        for name, value in found.items():
            self.per_evaluation[name].append(value)

    def latest(self):
        """The last evaluation's objective and metrics, as progress shows them."""
        last = {name: values[-1] for name, values in self.per_evaluation.items() if name not in ("round", "changed")}
        return {name: f"{value:.6g}" for name, value in last.items() if not np.isnan(value)}
