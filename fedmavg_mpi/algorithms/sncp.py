"""Orthogonal factorization of pooled data with penalty continuation (SNCP: Wang et al. 2019)."""

from fedmavg_mpi.algorithms.centralized import Centralized


class Sncp(Centralized):
    """Centralized factorization whose orthogonality penalty grows until the clusters have settled."""

    kinds = ("clustering",)
    fixed = {**Centralized.fixed, "algorithm": {**Centralized.fixed["algorithm"], "penalty_continuation": True}}
