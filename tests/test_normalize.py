"""Normalizations: against their definitions, dense and sparse alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import sparse

from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.normalize import NORMALIZATIONS, normalize
from fedmavg_mpi.errors import ConfigError

entries = st.one_of(st.just(0.0), st.floats(0, 100))
matrices = npst.arrays(np.float64, st.tuples(st.integers(1, 45), st.integers(1, 4)), elements=entries)


def normalized(samples, how):
    return normalize(Dataset(samples.copy()), how).samples


@given(matrices)
def test_offset_is_its_definition(samples):
    expected = np.maximum(samples - np.percentile(samples, 5, axis=0), 0)
    assert np.array_equal(normalized(samples, "offset"), expected)


@given(matrices)
def test_unit_is_its_definition(samples):
    norms = np.linalg.norm(normalized(samples, "unit"), axis=1)
    zero = ~samples.any(axis=1)
    assert (norms[zero] == 0).all()
    assert np.allclose(norms[~zero], 1, rtol=1e-12)


@given(matrices, st.sampled_from(sorted(NORMALIZATIONS)))
def test_sparse_is_as_dense_and_stays_sparse(samples, how):
    result = normalized(sparse.csr_array(samples), how)
    assert isinstance(result, sparse.csr_array) and result.has_sorted_indices
    assert np.allclose(result.toarray(), normalized(samples, how), rtol=1e-12, atol=0)


def test_offset_of_more_features_than_one_block_in_place():
    samples = np.random.default_rng(0).random((30, 150)) + 1
    expected = np.maximum(samples - np.percentile(samples, 5, axis=0), 0)
    dataset = Dataset(samples)
    assert normalize(dataset, "offset") is dataset
    assert dataset.samples is samples and np.array_equal(samples, expected)


def test_sparse_offset_drops_the_zeros_it_makes():
    result = normalized(sparse.csr_array(np.array([[3.0, 0], [3, 1], [3, 0]])), "offset")
    assert result.nnz == 1 and result[1, 1] > 0


@pytest.mark.parametrize("size", [5e-324, 1e-200, 1e200, 1e308])
@pytest.mark.parametrize("form", [np.array, sparse.csr_array])
def test_unit_at_the_ends_of_the_range(size, form):
    samples = np.array([[size, 0, size], [0, 0, 0]])
    result = normalized(form(samples), "unit")
    result = result.toarray() if sparse.issparse(result) else result
    assert np.allclose(result, [[np.sqrt(0.5), 0, np.sqrt(0.5)], [0, 0, 0]])


@pytest.mark.parametrize("how", NORMALIZATIONS)
@pytest.mark.parametrize("form", [np.array, sparse.csr_array])
def test_single_precision_stays(how, form):
    assert normalized(form(np.array([[1, 2], [3, 4]], dtype=np.float32)), how).dtype == np.float32


def test_none_changes_nothing():
    samples = np.array([[1.0, 2.0]])
    dataset = Dataset(samples)
    assert normalize(dataset, "none").samples is samples


def test_unknown():
    with pytest.raises(ConfigError, match="data.normalize = 'log' is unknown; known: none, offset, unit"):
        normalize(Dataset(np.ones((1, 1))), "log")
