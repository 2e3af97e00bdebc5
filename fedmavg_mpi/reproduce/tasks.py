"""The data sets and models of the figures, as settings and in words."""

SYNTHETIC = ("data.source=synthetic", "data.n_features=2000", "data.n_samples=10000")
TCGA = ("data.source=expression", "data.path=tcga-mirna", "data.normalize=offset")
MOVIELENS = (
    "data.source=movielens",
    "data.path=ml-latest-small",
    "partition.scheme=by_user",
    "model.kind=ratings",
    "model.n_components=40",
    "model.regularization=0.6",
)
CASES = {"Case 1": "partition.scheme=iid", "Case 2": "partition.scheme=clustered"}
FIXED_ROUNDS = "stop.rel_tol=0"  # to the round limit, so that curves can be compared at its end


SYNTHETIC_IN_WORDS = "Synthetic data, K = 20"
TCGA_IN_WORDS = "TCGA miRNA expression, K = 20"
MOVIELENS_IN_WORDS = "MovieLens (ml-latest-small), each user a client, K = 40, lambda = 0.6, 20% of the ratings held out"


def clients_in_words(m):
    """How curves are called by m; 0: all."""
    return f"FedMAvg, m = {m}" if m else "FedMAvg, all clients"
