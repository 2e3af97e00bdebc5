"""How well clusters match classes, from their contingency table, which ranks can add up without sending labels.

Libraries are imported where they are used: only the server needs them, and they cost a rank 80 MB and a second.
"""

import numpy as np


def load_libraries():
    """Import what the metrics need now, rather than in the first round."""
    import sklearn.metrics  # noqa: F401


def contingency(clusters, classes, n_clusters, n_classes):
    """Samples by cluster and class.

    Parameters
    ----------
    clusters, classes : ndarray of int (n,)
    n_clusters, n_classes : int

    Returns
    -------
    ndarray of int64 (n_clusters x n_classes)
    """
    cells = np.bincount(clusters.astype(np.int64) * n_classes + classes, minlength=n_clusters * n_classes)
    return cells.reshape(n_clusters, n_classes).astype(np.int64)


def accuracy(table):
    """Share of samples whose cluster is matched to their class by the best one-to-one matching."""
    from scipy.optimize import linear_sum_assignment

    clusters, classes = linear_sum_assignment(table, maximize=True)
    return float(table[clusters, classes].sum() / table.sum())


def normalized_mutual_information(table):
    """NMI (arithmetic mean, as in scikit-learn)."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_expand(table)))


def adjusted_rand_index(table):
    """ARI."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_expand(table)))


def _expand(table):
    """Class and cluster of each sample of a table."""
    clusters, classes = np.nonzero(table)
    counts = table[clusters, classes]
    return np.repeat(classes, counts), np.repeat(clusters, counts)
