"""Data sources: each file reads or makes one kind of data and returns a :class:`Dataset`."""

from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.sources import SOURCES, load

__all__ = ["SOURCES", "Dataset", "load"]
