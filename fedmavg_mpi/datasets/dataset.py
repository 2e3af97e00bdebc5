"""The pooled samples that a source gives, before they are cut into clients."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from fedmavg_mpi.errors import DataError


@dataclass
class Dataset:
    """Pooled samples.

    Attributes
    ----------
    samples : ndarray (N x M) or scipy.sparse.csr_array (N x M)
        One row a sample (the transpose of the paper's X), finite and non-negative.
    sample_names, feature_names : list of str or None
        N and M names, where the source has them.
    labels : ndarray of int32 (N,) or None
        Class of each sample, an index into ``label_names``.
    label_names : list of str or None
        Names of the classes.
    rating_range : tuple of float or None
        Lowest and highest rating, where the samples are users and the features the items that they rated: then a stored 0 is a rating,
        what isn't stored is unknown, and ratings may be negative.
    titles : list of str or None
        Titles of the items, where known.
    """

    samples: np.ndarray | sparse.csr_array
    sample_names: list | None = None
    feature_names: list | None = None
    labels: np.ndarray | None = None
    label_names: list | None = None
    rating_range: tuple | None = None
    titles: list | None = None

    def sample_name(self, index):
        """How messages call a sample."""
        return repr(self.sample_names[index]) if self.sample_names else str(index + 1)

    def feature_name(self, index):
        """How messages call a feature."""
        return repr(self.feature_names[index]) if self.feature_names else str(index + 1)

    def check(self, origin):
        """Raise DataError where nothing is there, or a sample's value is not a finite non-negative number."""
        n_samples, n_features = self.samples.shape
        if n_samples == 0 or n_features == 0:
            raise DataError(f"{origin}: {n_samples} samples of {n_features} features, expected at least one of each")
        if self.rating_range is not None:  # checked where they are read, and free to be negative
            return
        values = self.samples.data if sparse.issparse(self.samples) else self.samples
        with np.errstate(over="ignore", invalid="ignore"):
            total = values.sum()
        if values.size == 0 or (np.isfinite(total) and values.min() >= 0):
            return
        bad = np.flatnonzero(~(np.isfinite(values.ravel()) & (values.ravel() >= 0)))
        if bad.size == 0:  # only the sum overflowed
            return
        if sparse.issparse(self.samples):
            row = int(np.searchsorted(self.samples.indptr, bad[0], side="right")) - 1
            column = int(self.samples.indices[bad[0]])
        else:
            row, column = divmod(int(bad[0]), n_features)
        value = values.ravel()[bad[0]]
        what = "missing value (NaN)" if np.isnan(value) else "infinite value" if np.isinf(value) else f"negative value {value:g}"
        raise DataError(
            f"{origin}: {what} at feature {self.feature_name(column)}, sample {self.sample_name(row)}"
            f"{f' (and {bad.size - 1} more)' if bad.size > 1 else ''}; entries must be finite and at least 0"
        )
