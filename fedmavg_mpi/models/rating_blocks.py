"""The ratings that a factorization is fitted to: the hold-out, and the totals that the server knows."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from fedmavg_mpi import rng
from fedmavg_mpi.errors import ConfigError


@dataclass(frozen=True)
class RatingTotals:
    """What the server knows of the pooled training ratings x: counts, sum of x, of |x| and of x^2, and the range to predict in."""

    n_users: int
    n_items: int
    n_ratings: int
    total: float
    magnitude: float
    norm2: float
    minimum: float
    maximum: float

    @property
    def mean(self):
        """The mean rating; 0 where there is none."""
        return self.total / self.n_ratings if self.n_ratings else 0.0


def split(ratings, first_client, seed, test_fraction):
    """Hold entries out, each with probability ``test_fraction``, drawn by client and so whatever the number of ranks.

    Parameters
    ----------
    ratings : scipy.sparse.csr_array (users x items)
    first_client : int
        Id of the first user.
    seed : int
    test_fraction : float
        Above 0 and below 1.

    Returns
    -------
    train, test : scipy.sparse.csr_array (users x items)

    Raises
    ------
    ConfigError
        A test fraction that always leaves nothing on one side; whether the draw does, :func:`check_sides` tells.
    """
    if not 0 < test_fraction < 1:
        raise ConfigError(
            f"test_fraction = {test_fraction}, expected above 0 and below 1, as in 0.2: the share of ratings to hold out"
        )
    held_out = np.empty(ratings.nnz, bool)
    for i, (begin, end) in enumerate(zip(ratings.indptr[:-1], ratings.indptr[1:], strict=True)):
        held_out[begin:end] = rng.generator(seed, rng.HOLD_OUT, first_client + i).random(end - begin) < test_fraction
    return _entries(ratings, ~held_out), _entries(ratings, held_out)


def check_sides(test_fraction, n_train, n_ratings):
    """Raise ConfigError where a draw has left no rating for training, or held none out.

    Parameters
    ----------
    test_fraction : float
    n_train, n_ratings : int
        Training ratings, and all ratings, of all clients.
    """
    drawn = f"data.test_fraction = {test_fraction} of {n_ratings} ratings"
    if n_train == 0:
        raise ConfigError(f"{drawn}: no rating left for training, expected at least one; lower it, or take more ratings")
    if n_train == n_ratings:
        raise ConfigError(f"{drawn}: no rating held out, expected at least one; raise it, or take more ratings")


def client_totals(train):
    """Of each client's ratings x, in float64: ndarray (clients x 6) of count, sum of x, of |x| and of x^2, minimum, maximum.

    Without ratings the sums are 0, the minimum is inf and the maximum -inf.
    """
    out = np.tile([0, 0, 0, 0, np.inf, -np.inf], (train.shape[0], 1))
    out[:, 0] = np.diff(train.indptr)
    rated = out[:, 0] > 0
    begins = train.indptr[:-1][rated]
    if begins.size:
        for column, values in enumerate((train.data, np.abs(train.data), np.square(train.data, dtype=np.float64)), start=1):
            out[rated, column] = np.add.reduceat(values, begins, dtype=np.float64)
        out[rated, 4], out[rated, 5] = np.minimum.reduceat(train.data, begins), np.maximum.reduceat(train.data, begins)
    return out


def _entries(ratings, chosen):
    """The chosen entries (bool, one a stored entry), stored zeros included."""
    indptr = np.concatenate([[0], np.cumsum(chosen)])[ratings.indptr].astype(ratings.indptr.dtype)
    return sparse.csr_array((ratings.data[chosen], ratings.indices[chosen], indptr), shape=ratings.shape)
