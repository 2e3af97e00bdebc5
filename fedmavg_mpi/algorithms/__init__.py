"""The algorithms: one file each, with one readable ``run_round``."""

from fedmavg_mpi.algorithms.fedmavg import FedMAvg

ALGORITHMS = {"fedmavg": FedMAvg}
