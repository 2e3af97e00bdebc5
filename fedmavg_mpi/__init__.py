"""Federated matrix factorization by model averaging (FedMAvg) over MPI."""

__version__ = "0.1.0"
