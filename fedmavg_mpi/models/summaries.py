"""What a client sends for k-means instead of all its points: oversampled seeds, a coreset, a summary with outliers."""

import numpy as np

from fedmavg_mpi.models.distances import nearest, squared_norms

BALL_SHARE = 0.45  # beta of Chen, Azer and Zhang


def oversample(distances, total, expected, random):
    """Each point with probability min(1, l d^2(x, C) / phi(C)), independently (Bahmani et al. 2012, Algorithm 2, step 4).

    Parameters
    ----------
    distances : ndarray (n,)
        d^2(x, C) of the client's points.
    total : float
        phi(C), the cost of all clients.
    expected : float
        l.
    random : numpy.random.Generator

    Returns
    -------
    ndarray of int
        The points that are taken, in their order.
    """
    threshold = random.random(distances.size) * total
    return np.flatnonzero(threshold < expected * distances)


def ball_growing(points, n_outliers, n_draws, random):
    """A summary that keeps what looks like an outlier as it is (Chen, Azer and Zhang 2018, Algorithm 1, augmented as in their Algorithm 2).

    While more than 8 t points are left: of some points drawn from them with replacement, balls grow until they hold a share beta of those
    left, which are then represented. What is left at the end stands for itself. If that is more than there are representatives, further
    ones are drawn from the represented points until it is as many. Each represented point counts for the nearest representative of all.

    Parameters
    ----------
    points : ndarray (n x M) or scipy.sparse.csr_array (n x M)
    n_outliers : float
        t of this client.
    n_draws : int
        Points drawn in a step, alpha kappa.
    random : numpy.random.Generator

    Returns
    -------
    chosen : ndarray of int
        The points of the summary, in their order: never one twice, so that no summary is larger than the client.
    weights : ndarray of float64
        How many points each of them stands for, itself included.
    """
    norms = squared_norms(points)
    left, drawn = np.arange(points.shape[0]), []
    while left.size > 8 * n_outliers:
        step = np.unique(left[random.integers(left.size, size=n_draws)])
        _, distances = nearest(points[left], norms[left], points[step])
        radius = np.sort(distances)[int(np.ceil(BALL_SHARE * left.size)) - 1]
        left = left[distances > radius]
        drawn.append(step)
    representatives = np.concatenate([np.arange(0), *drawn])
    others = np.setdiff1d(np.arange(points.shape[0]), np.r_[left, representatives])
    missing = min(others.size, left.size - representatives.size)
    if missing > 0:
        representatives = np.r_[representatives, others[random.choice(others.size, missing, replace=False)]]
    representatives = np.sort(representatives)
    counts = np.zeros(points.shape[0])
    counts[left] = 1
    represented = np.setdiff1d(np.arange(points.shape[0]), left)
    if represented.size:
        found, _ = nearest(points[represented], norms[represented], points[representatives])
        counts += np.bincount(representatives[found], minlength=counts.size)
    chosen = np.flatnonzero(counts)
    return chosen, counts[chosen]


def allot(costs, n_draws):
    """How many of t points each client samples: t_i = t cost_i / sum cost_j (Balcan, Ehrlich and Liang 2013, Algorithm 1, Round 2).

    Rounded to t in all by largest remainders (of equals the first client's), without a draw.

    Parameters
    ----------
    costs : ndarray (P,)
    n_draws : int
        t.

    Returns
    -------
    ndarray of int64 (P,)
        All 0 where nothing costs anything.
    """
    total = costs.sum()
    if not total > 0:
        return np.zeros(costs.size, np.int64)
    exact = n_draws * (costs / total)
    out = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(out - exact, kind="stable")
    out[by_remainder[: n_draws - out.sum()]] += 1
    return out


def coreset(labels, distances, n_centres, n_draws, random):
    """A client's part of a distributed coreset (Balcan, Ehrlich and Liang 2013, Algorithm 1, Round 2).

    t_i points q are sampled with replacement, with probability m_q / sum_z m_z, and weigh sum_z m_z / (t_i m_q) each time, where m is the
    squared distance to the client's own centre. A centre b weighs what is left of its |P_b| without the points sampled from P_b; less
    than nothing is clipped at 0, since k-means takes no negative weights, and the coreset then weighs more than the client.

    Parameters
    ----------
    labels : ndarray of int (n,)
        Each point's centre.
    distances : ndarray (n,)
        m.
    n_centres, n_draws : int
        K, t_i.
    random : numpy.random.Generator

    Returns
    -------
    chosen : ndarray of int
        The sampled points, each once, in their order.
    sampled : ndarray of float64
        Their weights.
    remaining : ndarray of float64 (n_centres,)
        The centres' weights.
    """
    remaining = np.bincount(labels, minlength=n_centres).astype(np.float64)
    total = distances.sum()
    if not (n_draws and total > 0):
        return np.arange(0), np.zeros(0), remaining
    chosen, times = np.unique(random.choice(distances.size, n_draws, p=distances / total), return_counts=True)
    sampled = times * total / (n_draws * distances[chosen])
    remaining -= np.bincount(labels[chosen], sampled, n_centres)
    return chosen, sampled, np.maximum(remaining, 0)
