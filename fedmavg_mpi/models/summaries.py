"""What a client sends for k-means instead of all its points: oversampled seeds, a coreset, a summary with outliers."""

import numpy as np


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
