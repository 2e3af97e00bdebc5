"""Largest eigenvalues, from which step sizes follow."""

import numpy as np


def largest_eigenvalues(symmetric):
    """Of one or several symmetric matrices: ndarray (...) from (... x K x K).

    NaN for a matrix that is not finite: a run that diverged then ends as such, on all ranks alike, and not in LAPACK's error.
    """
    finite = np.isfinite(symmetric).all(axis=(-2, -1))
    if finite.all():
        return np.linalg.eigvalsh(symmetric)[..., -1]
    values = np.linalg.eigvalsh(np.where(finite[..., None, None], symmetric, 0))[..., -1]
    return np.where(finite, values, np.nan)
