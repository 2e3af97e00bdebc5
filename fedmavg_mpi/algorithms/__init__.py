"""The algorithms: one file each, with one readable ``run_round``."""

from fedmavg_mpi.algorithms.bel import Bel
from fedmavg_mpi.algorithms.cal import Cal
from fedmavg_mpi.algorithms.centralized import Centralized
from fedmavg_mpi.algorithms.fedavg import FedAvg
from fedmavg_mpi.algorithms.fedmavg import FedMAvg
from fedmavg_mpi.algorithms.gossip import Gossip
from fedmavg_mpi.algorithms.gradient_sharing import GradientSharing
from fedmavg_mpi.algorithms.kmeans import KMeansPlusPlus
from fedmavg_mpi.algorithms.kmeans_parallel import KMeansParallel
from fedmavg_mpi.algorithms.sncp import Sncp

ALGORITHMS = {
    "fedmavg": FedMAvg,
    "fedavg": FedAvg,
    "gradient_sharing": GradientSharing,
    "gossip": Gossip,
    "centralized": Centralized,
    "sncp": Sncp,
    "kmeans++": KMeansPlusPlus,
    "kmeans_parallel": KMeansParallel,
    "bel": Bel,
    "cal": Cal,
}
