"""Squared distances between points and centres, dense or sparse."""

import numpy as np
from scipy import sparse

ROWS_AT_ONCE = 4096  # whose distances are formed at the same time: no second copy of the points


def squared_norms(points):
    """|x|^2 of each row, in float64: ndarray (n,) from n x M, dense or csr."""
    out = np.empty(points.shape[0])
    for begin, rows in _pieces(points):
        squares = rows.multiply(rows).sum(axis=1) if sparse.issparse(rows) else np.einsum("ij,ij->i", rows, rows)
        out[begin : begin + rows.shape[0]] = squares
    return out


def squared_distances(points, norms, centres):
    """|x - c|^2 = |x|^2 - 2 x'c + |c|^2, in float64 whatever the points' precision.

    What is too small to tell from rounding is 0, so that equal points are at distance 0.

    Parameters
    ----------
    points : ndarray (n x M) or scipy.sparse.csr_array (n x M)
    norms : ndarray (n,)
        Their :func:`squared_norms`.
    centres : ndarray (c x M) or scipy.sparse.csr_array (c x M)

    Returns
    -------
    ndarray of float64 (n x c)
    """
    columns = (centres.toarray() if sparse.issparse(centres) else centres).astype(np.float64, copy=False).T
    scale = norms[:, None] + squared_norms(centres)
    out = scale.copy()
    for begin, rows in _pieces(points):
        out[begin : begin + rows.shape[0]] -= 2 * (rows @ columns)
    out[out < 4 * np.finfo(np.float64).eps * np.sqrt(points.shape[1]) * scale] = 0
    return out


def nearest(points, norms, centres):
    """The nearest centre of each point (of equals the first) and its squared distance: ndarrays of int64 and float64 (n,)."""
    found, distances = np.empty(points.shape[0], np.int64), np.empty(points.shape[0])
    for begin in range(0, points.shape[0], ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        to_all = squared_distances(points[part], norms[part], centres)
        found[part] = to_all.argmin(axis=1)
        distances[part] = to_all.min(axis=1)
    return found, distances


def _pieces(points):
    """A few rows at a time, in float64, and where they begin."""
    for begin in range(0, points.shape[0], ROWS_AT_ONCE):
        yield begin, points[begin : begin + ROWS_AT_ONCE].astype(np.float64, copy=False)
