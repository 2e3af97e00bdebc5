"""FedAvg's scheme on this model (McMahan et al. 2017)."""

from fedmavg_mpi.algorithms.fedmavg import FedMAvg


class FedAvg(FedMAvg):
    """Only drawn clients work, and every round takes the same number of steps on W."""

    fixed = {"algorithm": {"participation": "pcp", "q2_schedule": "constant"}}
