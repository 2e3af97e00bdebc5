"""Local-factor steps and per-client sums for clustering, compiled."""

import numpy as np

from fedmavg_mpi.kernels.jit import jit
from fedmavg_mpi.kernels.tiles import add_samples, multiply_features, sum_of_samples

TILE_BYTES = 512  # of a row of H that is worked on at once: all of the tile stays in the innermost cache


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
        Symmetric.
    scale : float
    steps : int
        Q1.
    """
    n_components, n_columns = h.shape
    tile = TILE_BYTES // h.itemsize
    now = np.zeros((n_components, tile), h.dtype)
    new = np.zeros((n_components, tile), h.dtype)
    pull = np.zeros((n_components, tile), h.dtype)
    zero = h.dtype.type(0)
    for start in range(0, n_columns, tile):
        width = min(tile, n_columns - start)
        for k in range(n_components):
            for j in range(width):
                now[k, j] = h[k, start + j]
                pull[k, j] = scale * b[k, start + j]
        for _ in range(steps):
            sum_of_samples(step_matrix, now, pull, new, zero)
            now, new = new, now
        for k in range(n_components):
            for j in range(width):
                h[k, start + j] = now[k, j]


@jit
def grams(h, begins, ends, out):
    """``out[p] = H_p H_p'``, multiplied in the factor's own precision.

    Parameters
    ----------
    h : ndarray (K x n)
    begins, ends : ndarray of int64 (P,)
        Client p holds columns ``begins[p]:ends[p]``.
    out : ndarray of float64 (P x K x K)
    """
    gram = np.zeros((h.shape[0], h.shape[0]), h.dtype)
    for p in range(begins.size):
        own = h[:, begins[p] : ends[p]]
        multiply_features(own, own, gram)
        out[p] = gram


@jit
def combine_components(h, factors, begins, ends, out):
    """``out[rows of p] = H_p' S_p``.

    Parameters
    ----------
    h : ndarray (K x n)
    factors : ndarray (P x K x K)
        S_p.
    begins, ends : ndarray of int64 (P,)
        As in :func:`grams`.
    out : ndarray (n x K)
    """
    for p in range(begins.size):
        rows = out[begins[p] : ends[p]]
        rows[:] = 0
        add_samples(h[:, begins[p] : ends[p]], factors[p], rows)


@jit
def objective_terms(h, b, offsets, norms2, w_gram, h_grams, out):
    """What the objective sums, by client, in float64 whatever the arrays' precision.

    Parameters
    ----------
    h, b : ndarray (K x n)
        Columns of H and of W'X.
    offsets : ndarray of int64 (P + 1,)
        Client p holds columns ``offsets[p]:offsets[p + 1]``.
    norms2 : ndarray of float64 (P,)
        |X_p|^2.
    w_gram : ndarray of float64 (K x K)
    h_grams : ndarray of float64 (P x K x K)
    out : ndarray of float64 (P x 3)
        |X_p|^2 - 2 <B_p, H_p> + <W'W, H_p H_p'>, |H_p|^2, and the sum over columns of (1'h)^2 - |h|^2.
    """
    n_components, n_columns = h.shape
    by_column = np.zeros(n_columns)
    for k in range(n_components):
        for j in range(n_columns):
            by_column[j] += np.float64(h[k, j]) * np.float64(b[k, j])
    for p in range(offsets.size - 1):
        inner = quadratic = ridge = total = 0.0
        for j in range(offsets[p], offsets[p + 1]):
            inner += by_column[j]
        for k in range(n_components):
            ridge += h_grams[p, k, k]
            for i in range(n_components):
                quadratic += w_gram[k, i] * h_grams[p, k, i]
                total += h_grams[p, k, i]
        out[p, 0] = norms2[p] - 2 * inner + quadratic
        out[p, 1] = ridge
        out[p, 2] = total - ridge


@jit
def assignments(h, out):
    """``out[j] = argmax_k h[k, j]``, the first of equals.

    Parameters
    ----------
    h : ndarray (K x n)
    out : ndarray of int32 (n,)
    """
    best = h[0].copy()
    out[:] = 0
    for k in range(1, h.shape[0]):
        for j in range(h.shape[1]):
            larger = h[k, j] > best[j]
            best[j] = h[k, j] if larger else best[j]
            out[j] = k if larger else out[j]


@jit
def count_changes(labels, earlier, offsets, out):
    """``out[p]``: of how many samples of client p the label isn't the earlier one.

    Parameters
    ----------
    labels, earlier : ndarray of int32 (n,)
    offsets : ndarray of int64 (P + 1,)
    out : ndarray of int64 (P,)
    """
    for p in range(out.size):
        out[p] = 0
        for j in range(offsets[p], offsets[p + 1]):
            out[p] += labels[j] != earlier[j]


@jit
def runs(clients, offsets):
    """Where the samples of each run of adjacent clients begin and end: ndarray of int64 (runs x 2).

    Parameters
    ----------
    clients : ndarray of int64
        Sorted.
    offsets : ndarray of int64 (P + 1,)
    """
    out = np.empty((clients.size, 2), np.int64)
    n = 0
    for i in range(clients.size):
        if i == 0 or clients[i] > clients[i - 1] + 1:
            out[n, 0] = offsets[clients[i]]
            n += 1
        out[n - 1, 1] = offsets[clients[i] + 1]
    return out[:n]
