"""The paper's synthetic data: noisy samples around random centroids, some of them replaced by outliers."""

import numpy as np

from fedmavg_mpi import rng
from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.errors import ConfigError

OUTLIER_MAXIMUM = 5.0
PROPORTIONS = (0.2, 1.0)  # of the clusters' sizes before they are scaled to N: unequal, yet none is lost in the noise
_BLOCK = 256  # samples at a time, so that temporaries stay small beside the matrix


def load(config, seed):
    """Draw the data set.

    Parameters
    ----------
    config : DataConfig
        ``n_features`` (M), ``n_samples`` (N), ``n_clusters``, ``snr_db`` and ``outlier_fraction`` are read.
    seed : int
        The run's seed.

    Returns
    -------
    Dataset
        N x M samples; the labels are the clusters, an outlier keeps that of the sample it replaces.

    Raises
    ------
    ConfigError
        More clusters than samples, a ratio that no noise scale reaches, or more entries than memory holds.
    """
    n_samples, n_features = config.n_samples, config.n_features
    if config.n_clusters > n_samples:
        raise ConfigError(
            f"data.n_clusters = {config.n_clusters} with data.n_samples = {n_samples}: expected at least one sample a cluster"
        )
    generator = rng.generator(seed, rng.DATA)
    try:
        samples = np.empty((n_samples, n_features))
        centroids, labels = _draw_clusters(generator, config)
    except (MemoryError, ValueError):
        size = n_samples * n_features * 8 / 2**30
        raise ConfigError(
            f"data.n_samples = {n_samples} x data.n_features = {n_features}: {size:.3g} GiB don't fit in memory; ask for fewer"
        ) from None
    generator.standard_normal(out=samples)
    _add_noise(samples, centroids, labels, config.snr_db)
    outliers = generator.choice(n_samples, int(config.outlier_fraction * n_samples + 0.5), replace=False)
    for sample in outliers:
        samples[sample] = generator.uniform(0.0, OUTLIER_MAXIMUM, n_features)
    return Dataset(samples, labels=labels, label_names=[str(k) for k in range(config.n_clusters)])


def _draw_clusters(generator, config):
    """Centroids (n_clusters x M), and the cluster of each sample (N,): sizes random, unequal and at least 1."""
    centroids = generator.random((config.n_clusters, config.n_features))
    proportions = generator.uniform(*PROPORTIONS, config.n_clusters)
    sizes = 1 + generator.multinomial(config.n_samples - config.n_clusters, proportions / proportions.sum())
    return centroids, generator.permutation(np.repeat(np.arange(config.n_clusters, dtype=np.int32), sizes))


def _add_noise(noise, centroids, labels, snr_db):
    """Turn standard normal ``noise`` (N x M) in place into the samples: centroid + scale x noise, clipped at 0."""
    from scipy.optimize import brentq  # here, because only the server needs it

    signal_energy = np.square(centroids).sum(axis=1)[labels].sum()
    target = signal_energy / 10 ** (snr_db / 10)

    def excess(log_scale):
        return np.log(_error_energy(noise, centroids, labels, np.exp(log_scale)) / target)

    # Clipping only takes noise away, so the scale that is right without it is too small, or just right.
    low = 0.5 * np.log(target / np.einsum("ij,ij->", noise, noise))
    step = 0.5
    while excess(low + step) < 0:
        step *= 2
        if step > 100:
            raise ConfigError(
                f"data.snr_db = {snr_db:g}: clipping at 0 leaves too little noise to reach it on so small a data set;"
                f" raise data.snr_db, data.n_samples or data.n_features"
            )
    scale = np.exp(brentq(excess, low - 1e-6, low + step, xtol=1e-6))
    for begin in range(0, len(noise), _BLOCK):
        block = noise[begin : begin + _BLOCK]
        block *= scale
        block += centroids[labels[begin : begin + _BLOCK]]
        np.maximum(block, 0.0, out=block)


def _error_energy(noise, centroids, labels, scale):
    """|X - WH|^2 after clipping: x = max(wh + e, 0) is off by max(e, -wh)."""
    total = 0.0
    for begin in range(0, len(noise), _BLOCK):
        error = scale * noise[begin : begin + _BLOCK]
        np.maximum(error, -centroids[labels[begin : begin + _BLOCK]], out=error)
        total += np.square(error, out=error).sum()
    return total
