"""Local-factor steps and per-client sums for clustering, compiled."""

import numpy as np

from fedmavg_mpi.kernels.jit import jit

TILE = 128  # samples a tile: its values of H stay in the cache, and the inner loop has a fixed length


@jit
def local_factor_steps(h, b, step_matrix, scale, steps):
    """Projected-gradient steps ``h <- max(0, step_matrix h + scale b)``, in place.

    With ``step_matrix = I - A / t`` and ``scale = 2 / t`` a step is ``h <- max(0, h - (A h - 2 b) / t)``, the gradient
    step on F_p at fixed W (paper, local update of H_p).

    Parameters
    ----------
    h : ndarray (K x n)
        Columns of H, changed in place.
    b : ndarray (K x n)
        The same columns of W'X.
    step_matrix : ndarray (K x K)
    scale : float
    steps : int
        Q1.
    """
    n_components, n_columns = h.shape
    now = np.zeros((n_components, TILE), h.dtype)
    new = np.zeros((n_components, TILE), h.dtype)
    pull = np.zeros((n_components, TILE), h.dtype)
    zero = h.dtype.type(0)
    for start in range(0, n_columns, TILE):
        width = min(TILE, n_columns - start)
        for k in range(n_components):
            for j in range(width):
                now[k, j] = h[k, start + j]
                pull[k, j] = scale * b[k, start + j]
        for _ in range(steps):
            for k in range(n_components):
                for j in range(TILE):
                    new[k, j] = pull[k, j]
                # four terms at a time, so that the running sum is loaded and stored a quarter as often
                for i in range(0, n_components - 3, 4):
                    f0, f1, f2, f3 = step_matrix[k, i], step_matrix[k, i + 1], step_matrix[k, i + 2], step_matrix[k, i + 3]
                    for j in range(TILE):
                        new[k, j] = new[k, j] + f0 * now[i, j] + f1 * now[i + 1, j] + f2 * now[i + 2, j] + f3 * now[i + 3, j]
                for i in range(n_components - n_components % 4, n_components):
                    f0 = step_matrix[k, i]
                    for j in range(TILE):
                        new[k, j] += f0 * now[i, j]
            for k in range(n_components):
                for j in range(TILE):
                    now[k, j] = max(new[k, j], zero)
        for k in range(n_components):
            for j in range(width):
                h[k, start + j] = now[k, j]


@jit
def inner_by_client(h, b, offsets, out):
    """``out[p] = <b_p, h_p>``, summed in float64 whatever the arrays' precision.

    Parameters
    ----------
    h, b : ndarray (K x n)
    offsets : ndarray of int64 (P + 1,)
        Client p holds columns ``offsets[p]:offsets[p + 1]``.
    out : ndarray of float64 (P,)
    """
    for p in range(out.size):
        total = 0.0
        for k in range(h.shape[0]):
            for j in range(offsets[p], offsets[p + 1]):
                total += np.float64(h[k, j]) * np.float64(b[k, j])
        out[p] = total


@jit
def assignments(h, out):
    """``out[j] = argmax_k h[k, j]``, the first of equals.

    Parameters
    ----------
    h : ndarray (K x n)
    out : ndarray of int32 (n,)
    """
    for j in range(h.shape[1]):
        best = 0
        for k in range(1, h.shape[0]):
            if h[k, j] > h[best, j]:
                best = k
        out[j] = best
