"""Gradient sharing (Chai et al. 2020): every client, every round, sends the gradient in W at its new H_p."""

from fedmavg_mpi.algorithms.fedmavg import FedMAvg


class GradientSharing(FedMAvg):
    """W <- Pi_W(W - sum_p w_p grad_W F_p / d).

    Since sum_p w_p (W - grad_W F_p / d) is W - sum_p w_p grad_W F_p / d, this is FedMAvg in which all clients take one step on W; a
    gradient is as large as a copy of W.
    """

    fixed = {
        "algorithm": {"clients_per_round": 0, "participation": "pcc", "q2": 1, "q2_schedule": "constant", "step_size_w": "global"}
    }
