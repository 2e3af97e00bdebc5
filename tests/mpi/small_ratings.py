"""A store of a few ratings, for whole rounds on any number of ranks."""

import numpy as np
import pytest
from scipy import sparse

from fedmavg_mpi import config, store
from fedmavg_mpi.datasets import Dataset

K, Q1, Q2, ROUNDS = 3, 3, 4, 4
RIDGE, RIDGE_BIAS = 0.3, 0.2
LOW, HIGH = 0.0, 5.0


def write_ratings(comm, path, n_users=9, n_items=14):
    """Ratings from 0 on; where there are enough users one has rated nothing, and one item is rated by nobody."""
    random = np.random.default_rng(5)
    users, items = np.nonzero(random.random((n_users, n_items)) < 0.5)
    kept = ((users != 4) | (n_users < 5)) & (items != 7)
    users, items = users[kept], items[kept]
    values = random.integers(0, 11, users.size) / 2  # some are 0
    indptr = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=n_users))])
    samples = sparse.csr_array((values, items, indptr), shape=(n_users, n_items))
    if comm.is_server:
        store.write(path, Dataset(samples, rating_range=(LOW, HIGH)), np.arange(n_users), "by user")
    comm.broadcast_text("written")
    return store.ClientStore(path)


def configured(name, *overrides):
    """A configuration for the small store, not yet checked."""
    given = {
        "algorithm.name": name,
        "data.source": "store",
        "data.path": "given",
        "model.kind": "ratings",
        "partition.scheme": "by_user",
        "model.n_components": K,
        "model.regularization": RIDGE,
        "model.bias_regularization": RIDGE_BIAS,
        "algorithm.q1": Q1,
        "algorithm.q2": Q2,
        "stop.max_rounds": ROUNDS,
        "run.progress": "off",
    }
    return config.read(None, [*(f"{key}={value}" for key, value in given.items()), *overrides])


def start_of(comm, federation):
    """(train, test, W, H) before the first round, at the server: ratings as a list of {item: rating}, one a user; None elsewhere."""
    shard, rows = federation.shard, np.diff(federation.placement.cut)
    known = []
    for block in (shard.train, shard.test):
        dense = np.full((shard.h.shape[0], federation.n_features), np.nan)
        for p in range(dense.shape[0]):
            columns = slice(block.indptr[p], block.indptr[p + 1])
            dense[p, block.indices[columns]] = block.values[columns]
        known.append(comm.gather(dense, rows, "control"))
    h = comm.gather(shard.h, rows, "control")
    if not comm.is_server:
        return None
    ratings = [[{i: x for i, x in enumerate(row) if not np.isnan(x)} for row in part] for part in known]
    return *ratings, federation.algorithm.w.astype(np.float64), h.astype(np.float64)


def error(x, w_i, h_p, mean, biased):
    """The residual of one rating."""
    return w_i[:K] @ h_p[:K] + (mean + w_i[K] + h_p[K] if biased else 0) - x


def objective(train, w_of, h, mean, biased):
    """sum_p F_p / sum x^2, ``w_of[p]`` being the W of user p."""
    ridges = np.array([RIDGE] * K + [RIDGE_BIAS] * biased)
    total = 0.0
    for rated, w, h_p in zip(train, w_of, h):
        total += ridges @ h_p**2 / 2
        for i, x in rated.items():
            total += error(x, w[i], h_p, mean, biased) ** 2 + ridges @ w[i] ** 2 / 2
    return total / sum(x**2 for rated in train for x in rated.values())


def rmse(asked, train, w_of, h, mean, biased):
    """Of clipped predictions of ``asked``; a user or an item without training ratings gets the mean and the biases."""
    known_items = {i for rated in train for i in rated}
    squares = []
    for p, ratings in enumerate(asked):
        for i, x in ratings.items():
            w_i, h_p = w_of[p][i], h[p]
            predicted = error(0, w_i, h_p, mean, biased)
            if not train[p] or i not in known_items:
                predicted = mean + (w_i[K] + h_p[K] if biased else 0)
            squares.append((np.clip(predicted, LOW, HIGH) - x) ** 2)
    return np.sqrt(np.mean(squares))


def mean_of(train):
    """The mean training rating."""
    return np.mean([x for rated in train for x in rated.values()])


def raises_everywhere(comm, error_type):
    """What all ranks raise where one has an error: the error itself there, FailedElsewhereError on the others."""
    from fedmavg_mpi.communicator import FailedElsewhereError

    return pytest.raises(error_type if comm.is_server else FailedElsewhereError)
