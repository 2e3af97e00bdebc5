"""The synthetic source: shapes, signal to noise ratio, outliers, determinism; and the table of sources."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmavg_mpi import rng
from fedmavg_mpi.config import Config, DataConfig
from fedmavg_mpi.datasets import SOURCES, load, synthetic
from fedmavg_mpi.errors import ConfigError

SMALL = {"n_features": 40, "n_samples": 300, "n_clusters": 6}


def make(seed=0, **keys):
    return synthetic.load(DataConfig(**{**SMALL, **keys}), seed)


def signal(seed, **keys):
    """W H as the source draws it before anything else, N x M."""
    centroids, labels = synthetic._draw_clusters(rng.generator(seed, rng.DATA), DataConfig(**{**SMALL, **keys}))
    return centroids[labels]


def test_shape_type_and_labels():
    dataset = make()
    assert dataset.samples.shape == (300, 40)
    assert dataset.samples.dtype == np.float64 and dataset.samples.flags.c_contiguous
    assert dataset.samples.min() >= 0
    assert dataset.labels.shape == (300,) and dataset.labels.dtype == np.int32
    assert dataset.label_names == ["0", "1", "2", "3", "4", "5"]


def test_same_seed_same_bits_and_other_seed_other_data():
    assert make(3).samples.tobytes() == make(3).samples.tobytes()
    assert not np.array_equal(make(3).samples, make(4).samples)


@pytest.mark.parametrize("snr_db", [-30.0, -3.0, 0.0, 10.0, 60.0])
def test_signal_to_noise_ratio_after_clipping(snr_db):
    samples = make(1, snr_db=snr_db, outlier_fraction=0.0).samples
    clean = signal(1)
    reached = 10 * np.log10(np.square(clean).sum() / np.square(samples - clean).sum())
    assert abs(reached - snr_db) < 0.02


def test_ratio_holds_over_more_samples_than_one_block():
    keys = {"n_features": 7, "n_samples": 2 * synthetic._BLOCK + 5}
    samples, clean = make(2, outlier_fraction=0.0, **keys).samples, signal(2, **keys)
    assert abs(10 * np.log10(np.square(clean).sum() / np.square(samples - clean).sum()) + 3) < 0.02


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 1000))
def test_every_cluster_has_a_sample(n_samples, n_clusters, seed):
    if n_clusters > n_samples:
        with pytest.raises(ConfigError, match=f"n_clusters = {n_clusters} with data.n_samples = {n_samples}"):
            make(seed, n_samples=n_samples, n_clusters=n_clusters)
    else:
        dataset = make(seed, n_samples=n_samples, n_clusters=n_clusters)
        assert np.array_equal(np.unique(dataset.labels), np.arange(n_clusters))


def test_cluster_sizes_are_unequal():
    sizes = np.bincount(make(n_samples=2000, n_features=2).labels)
    assert sizes.max() > 1.3 * sizes.min()


@pytest.mark.parametrize("fraction, expected", [(0.0, 0), (0.03, 9), (0.0049, 1), (0.999, 300)])
def test_outliers_replace_a_rounded_share_and_keep_the_labels(fraction, expected):
    plain, mixed = make(5, outlier_fraction=0.0), make(5, outlier_fraction=fraction)
    replaced = (plain.samples != mixed.samples).any(axis=1)
    assert replaced.sum() == expected
    assert np.array_equal(plain.labels, mixed.labels)
    if expected:
        assert mixed.samples[replaced].max() <= synthetic.OUTLIER_MAXIMUM
    if expected > 8:
        assert abs(mixed.samples[replaced].mean() - 2.5) < 0.3


def test_an_unreachable_ratio_is_said():
    # A single entry whose noise is negative: clipping at 0 bounds the error by the signal, so -3 dB is out of reach.
    found = []
    for seed in range(20):
        try:
            make(seed, n_features=1, n_samples=1, n_clusters=1, outlier_fraction=0.0)
        except ConfigError as error:
            found.append(str(error))
    assert found and all("data.snr_db = -3" in message for message in found)


@pytest.mark.parametrize("n_samples, n_features", [(2**62, 2**62), (2**40, 2**20)])
def test_more_entries_than_memory(n_samples, n_features):
    with pytest.raises(ConfigError, match="don't fit in memory"):
        make(n_samples=n_samples, n_features=n_features)


def test_load_picks_the_source_and_normalizes():
    config = Config(data=DataConfig(source="synthetic", normalize="unit", **SMALL))
    assert np.allclose(np.linalg.norm(load(config, 0).samples, axis=1), 1)


def test_sources_are_those_of_the_configuration():
    choices = DataConfig.__dataclass_fields__["source"].metadata["choices"]
    assert set(SOURCES) == set(choices) - {"store"}
    with pytest.raises(ConfigError, match="data.source = 'store'.*synthetic, expression, matrix"):
        load(Config(data=DataConfig(source="store")), 0)
