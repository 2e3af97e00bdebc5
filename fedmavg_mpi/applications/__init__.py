"""The two uses of the factorization: what each adds to a run at its set-up, in its evaluations and in what is kept."""

from fedmavg_mpi.applications.clustering import Clustering
from fedmavg_mpi.applications.recommendation import Recommendation

APPLICATIONS = {"clustering": Clustering, "ratings": Recommendation}
