"""Scalings of the samples that are chosen in the configuration."""

import numpy as np
from scipy import sparse

from fedmavg_mpi.errors import ConfigError

PERCENTILE = 5
_BLOCK = 64  # features at a time, so that the percentile's working copy stays small


def normalize(dataset, how):
    """Scale the samples, in place where they allow it.

    Parameters
    ----------
    dataset : Dataset
        N x M samples, dense or sparse, finite and non-negative.
    how : str
        ``"none"``; ``"offset"``: each feature less its 5th percentile over the samples, floored at 0; ``"unit"``: each
        sample scaled to Euclidean norm 1, where an all-zero sample stays as it is. Sparse samples stay sparse:
        an entry of 0 is 0 after either.

    Returns
    -------
    Dataset
        The same object.

    Raises
    ------
    ConfigError
        An unknown ``how``.
    """
    if how not in NORMALIZATIONS:
        raise ConfigError(f"data.normalize = {how!r} is unknown; known: {', '.join(NORMALIZATIONS)}")
    dataset.samples = NORMALIZATIONS[how](dataset.samples)
    return dataset


def _none(samples):
    return samples


def _offset(samples):
    if sparse.issparse(samples):
        return _offset_sparse(samples)
    for begin in range(0, samples.shape[1], _BLOCK):
        block = samples[:, begin : begin + _BLOCK]
        block -= np.percentile(block, PERCENTILE, axis=0)
        np.maximum(block, 0, out=block)
    return samples


def _offset_sparse(samples):
    """As for dense samples: zeros count for the percentile, and max(0 - percentile, 0) leaves them zeros."""
    columns = sparse.csc_array(samples)
    n_samples = samples.shape[0]
    # With more zeros than this, the percentile lies among them.
    most_zeros = np.ceil(PERCENTILE / 100 * (n_samples - 1))
    for j in np.flatnonzero(n_samples - np.diff(columns.indptr) <= most_zeros):
        stored = columns.data[columns.indptr[j] : columns.indptr[j + 1]]
        column = np.zeros(n_samples, dtype=stored.dtype)
        column[: stored.size] = stored
        stored -= np.percentile(column, PERCENTILE)
        np.maximum(stored, 0, out=stored)
    columns.eliminate_zeros()
    return columns.tocsr()


def _unit(samples):
    if sparse.issparse(samples):
        lengths = np.diff(samples.indptr)
        # Norms by way of the largest entry, so that squares neither overflow nor vanish.
        samples.data /= np.repeat(_divisor(samples.max(axis=1).toarray().ravel()), lengths)
        squares = sparse.csr_array((np.square(samples.data), samples.indices, samples.indptr), samples.shape)
        samples.data /= np.repeat(_divisor(np.sqrt(squares.sum(axis=1))), lengths).astype(samples.dtype)
        return samples
    samples /= _divisor(samples.max(axis=1))[:, None]
    samples /= _divisor(np.sqrt(np.einsum("ij,ij->i", samples, samples, dtype=np.float64)))[:, None].astype(samples.dtype)
    return samples


def _divisor(values):
    """What to divide each sample by: 1 where it is all zero."""
    return np.where(values > 0, values, 1).astype(values.dtype)


NORMALIZATIONS = {"none": _none, "offset": _offset, "unit": _unit}
