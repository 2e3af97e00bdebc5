"""k-means-- (Chawla and Gionis 2013): k-means that leaves out the farthest points, weighted."""

import numpy as np
from scipy import sparse

from fedmavg_mpi.models.distances import nearest, squared_distances, squared_norms

TRIALS = 4  # seeds that are tried for each centre
LONGEST = 100  # steps of a descent
POWER_STEPS = 10


def trimmed_kmeans(points, weights, n_clusters, outlier_weight, random):
    """K centres for all but the farthest points.

    The objective is the trimmed cost: sum_j v_j d^2(x_j, C), where 0 <= v <= w leaves out a weight of t so that it is least.

    The start counts each point once: among many dimensions a point that stands for many is far from most of them, and a centre of its
    own would seem to pay, though they belong to a cluster with others.

    Parameters
    ----------
    points : ndarray (n x M) or scipy.sparse.csr_array (n x M)
        n >= 1.
    weights : ndarray (n,)
        w, above 0.
    n_clusters : int
        K; where there are fewer points, some centres stand at the same place.
    outlier_weight : float
        t, below the sum of the weights.
    random : numpy.random.Generator

    Returns
    -------
    centres : ndarray of float64 (K x M)
    kept : ndarray (n,)
        v.
    """
    norms = squared_norms(points)
    once = np.ones(weights.size)
    start = find_clusters(points, norms, once, n_clusters, min(outlier_weight, weights.size / 2), random)
    return descend(points, norms, weights, start, outlier_weight)[1:]


def find_clusters(points, norms, weights, n_clusters, outlier_weight, random):
    """Seeds and a descent, and better ones from there: ndarray of float64 (K x M).

    In many dimensions seeds tell little of clusters, and the descent from them leaves some in one centre and others in two. So then one
    cluster is split and two are merged, as long as the trimmed cost falls (as Ueda et al. 2000 do for mixtures). Parameters as in
    :func:`trimmed_kmeans`, with the points' squared norms.
    """
    start = seeds(points, norms, weights, n_clusters, outlier_weight, random)
    cost, centres, kept = descend(points, norms, weights, start, outlier_weight)
    while (start := split_and_merge(points, norms, centres, kept, random)) is not None:
        found = descend(points, norms, weights, start, outlier_weight)
        if not found[0] < cost:
            break
        cost, centres, kept = found
    return centres


def trim(distances, weights, outlier_weight):
    """What is left of the weights without the farthest points: ndarray (n,).

    Points are left out from the farthest on until their weights come to t; the last of them may be left out in part.

    Parameters
    ----------
    distances, weights : ndarray (n,)
    outlier_weight : float
        t.
    """
    farthest_first = np.argsort(-distances, kind="stable")
    ordered = weights[farthest_first]
    before = np.cumsum(ordered) - ordered
    kept = np.empty(weights.shape)
    kept[farthest_first] = ordered - np.clip(outlier_weight - before, 0, ordered)
    return kept


def seeds(points, norms, weights, n_clusters, outlier_weight, random):
    """K points to start from, drawn as in k-means++ but among what is not left out, so that outliers don't take the seeds.

    For each centre a few points are tried, point j with probability v_j d^2(x_j, C) of its share (the first: w_j), and the one that
    leaves the lowest trimmed cost is taken. Parameters as in :func:`find_clusters`.

    Returns
    -------
    ndarray of float64 (K x M)
    """
    chosen, distances, odds = [], np.full(weights.shape, np.inf), weights
    for _ in range(n_clusters):
        if not odds.sum() > 0:  # all that is kept stands on a seed already
            odds = weights
        trials = np.unique(random.choice(weights.size, TRIALS, p=odds / odds.sum()))
        to_trials = squared_distances(points, norms, points[trials])
        best = None
        for trial, column in zip(trials, to_trials.T, strict=True):
            closer = np.minimum(distances, column)
            losses = trim(closer, weights, outlier_weight) * closer
            if best is None or losses.sum() < best[0]:
                best = losses.sum(), trial, closer, losses
        _, trial, distances, odds = best
        chosen.append(trial)
    return _as_dense(points[np.array(chosen)])


def descend(points, norms, weights, centres, outlier_weight):
    """Lloyd's steps, each without the farthest points, until the trimmed cost falls no more (Chawla and Gionis 2013, Algorithm 1).

    A centre whose points are all left out stays where it is. Parameters as in :func:`find_clusters`.

    Returns
    -------
    cost : float
        The trimmed cost of the centres.
    centres : ndarray of float64 (K x M)
    kept : ndarray (n,)
        v.
    """
    last = np.inf, centres, weights
    for _ in range(LONGEST):
        labels, distances = nearest(points, norms, centres)
        kept = trim(distances, weights, outlier_weight)
        cost = kept @ distances
        if not cost < last[0]:
            break
        last = cost, centres, kept
        centres = _means(points, kept, labels, centres)
    return last


def split_and_merge(points, norms, centres, kept, random):
    """The centres with the one cluster split that gains most by it, and two others merged that lose least.

    A cluster is cut where its first principal component changes sign (Boley 1998). Parameters as in :func:`find_clusters`.

    Returns
    -------
    ndarray of float64 (K x M) or None
        None where the merger loses as much as the split gains.
    """
    labels, _ = nearest(points, norms, centres)
    totals = np.bincount(labels, kept, len(centres))
    halves = [_halves(points, np.flatnonzero((labels == k) & (kept > 0)), kept, random) for k in range(len(centres))]
    gains = [_merger_losses(means, weights)[0, 1] for means, weights in halves]
    split = int(np.argmax(gains))
    losses = _merger_losses(centres, totals)
    losses[np.tril_indices(len(centres))] = losses[split] = losses[:, split] = np.inf
    one, other = np.unravel_index(losses.argmin(), losses.shape)
    if not losses[one, other] < gains[split]:
        return None
    out = centres.copy()
    if totals[one] + totals[other] > 0:
        out[one] = np.average(centres[[one, other]], axis=0, weights=totals[[one, other]])
    out[[split, other]] = halves[split][0]
    return out


def _merger_losses(centres, totals):
    """By how much the cost grows when two clusters become one, w_i w_j / (w_i + w_j) |c_i - c_j|^2 (Ward 1963): ndarray (c x c)."""
    harmonic = np.outer(totals, totals) / np.maximum(totals[:, None] + totals, np.finfo(float).tiny)
    return harmonic * squared_distances(centres, squared_norms(centres), centres)


def _halves(points, members, weights, random):
    """Means (2 x M) and weights (2,) of the two parts of a cluster, equal where it can't be cut."""
    rows, weights = points[members].astype(np.float64), weights[members]
    direction = random.standard_normal(points.shape[1])
    if members.size == 0:
        return np.zeros((2, points.shape[1])), np.zeros(2)
    mean = rows.T @ weights / weights.sum()
    for _ in range(POWER_STEPS):
        along = weights * (rows @ direction - mean @ direction)
        direction = rows.T @ along - along.sum() * mean
        direction /= np.linalg.norm(direction) or 1.0
    side = (rows @ direction > mean @ direction).astype(np.int64)
    return _means(rows, weights, side, np.array([mean, mean])), np.bincount(side, weights, 2)


def _means(points, weights, labels, centres):
    """The weighted mean of each cluster, or its centre as it was: ndarray of float64 (K x M)."""
    totals = np.bincount(labels, weights, len(centres))
    membership = sparse.csr_array((weights, (labels, np.arange(labels.size))), shape=(len(centres), labels.size))
    sums = _as_dense(membership @ points)
    return np.where(totals[:, None] > 0, sums / np.where(totals > 0, totals, 1)[:, None], centres)


def _as_dense(rows):
    return (rows.toarray() if sparse.issparse(rows) else rows).astype(np.float64)
