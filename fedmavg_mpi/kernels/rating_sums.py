"""Sums over the observed ratings, compiled, by user and in float64. Arguments are those of :mod:`fedmavg_mpi.kernels.ratings`."""

import numpy as np

from fedmavg_mpi.kernels.jit import jit


@jit
def objective_sums(block, w, h, form, out):
    """Per user: the squared residuals, and the |w_i|^2 and b_i^2 of its rated items.

    Parameters
    ----------
    block : Block
    w : ndarray (items x L)
    h : ndarray (users x L)
    form : Form
    out : ndarray of float64 (users x 3)
    """
    indptr, indices, values = block
    k = h.shape[1] - form.biased
    for p in range(out.shape[0]):
        own = h[p]
        out[p] = 0
        for j in range(indptr[p], indptr[p + 1]):
            row = w[indices[j]]
            residual = np.float64(values[j]) - form.mean - inner(row, own, k)
            if form.biased:
                residual -= np.float64(row[k]) + own[k]
                out[p, 2] += np.float64(row[k]) ** 2
            out[p, 0] += residual**2
            out[p, 1] += inner(row, row, k)


@jit
def error_sums(block, w, h, form, fallback, known_users, known_items, low, high, out):
    """Per user: the squared and the absolute errors of predictions clipped to [low, high].

    Parameters
    ----------
    block : Block
        The ratings to predict.
    w, h, form
        As above.
    fallback : float
        Predicted, plus the biases, where the user or the item has no training ratings.
    known_users, known_items : ndarray of bool (users,), (items,)
        Which have training ratings.
    low, high : float
    out : ndarray of float64 (users x 2)
    """
    indptr, indices, values = block
    k = h.shape[1] - form.biased
    for p in range(out.shape[0]):
        own = h[p]
        out[p] = 0
        for j in range(indptr[p], indptr[p + 1]):
            row = w[indices[j]]
            prediction = fallback
            if known_users[p] and known_items[indices[j]]:
                prediction = form.mean + inner(row, own, k)
            if form.biased:
                prediction += np.float64(row[k]) + own[k]
            error = abs(np.float64(values[j]) - min(max(prediction, low), high))
            out[p, 0] += error**2
            out[p, 1] += error


@jit
def inner(left, right, k):
    """The sum of left[a] right[a] over the first k entries."""
    total = 0.0
    for a in range(k):
        total += np.float64(left[a]) * np.float64(right[a])
    return total
