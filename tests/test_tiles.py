"""The products for narrow factors against loops, in both precisions and all vector widths."""

import subprocess
import sys
from pathlib import Path

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch import environment
from numba.core.errors import TypingError

from fedmavg_mpi.kernels import tiles

EPSILON = {np.float64: 1e-13, np.float32: 1e-5}
DTYPES = [np.float64, np.float32]
# n, M: one sample, one feature, none; below, at and above a tile, a block of samples and a block of features
SHAPES = [(1, 1), (0, 5), (5, 0), (4, 33), (21, 1), (45, 67), (3, 401)]


def factors(n_components, n, n_features, dtype):
    """w (K x M), x (n x M) and z (n x K)."""
    random = np.random.default_rng([n_components, n, n_features])
    shapes = (n_components, n_features), (n, n_features), (n, n_components)
    return [(random.random(shape) - 0.5).astype(dtype) for shape in shapes]


def close(found, expected, terms, dtype):
    np.testing.assert_allclose(found, expected, rtol=EPSILON[dtype], atol=EPSILON[dtype] * max(1, terms))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_components", range(1, 65))
def test_all_numbers_of_components(n_components, dtype):
    w, x, z = factors(n_components, 6, 19, dtype)
    out, pull = np.full((n_components, 6), np.nan, dtype), np.ones((n_components, 19), dtype)
    tiles.multiply_features(w, x, out)
    tiles.add_samples(z, x, pull)
    close(out, naive.product(w, x.T), 19, dtype)
    close(pull, 1 + naive.product(z.T, x), 6, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_components", [1, 5, 13])
@pytest.mark.parametrize(("n", "n_features"), SHAPES)
def test_all_kinds_of_shapes(n, n_features, n_components, dtype):
    w, x, z = factors(n_components, n, n_features, dtype)
    out, pull = np.full((n_components, n), np.nan, dtype), np.ones((n_components, n_features), dtype)
    tiles.multiply_features(w, x, out)
    tiles.add_samples(z, x, pull)
    close(out, naive.product(w, x.T), n_features, dtype)
    close(pull, 1 + naive.product(z.T, x), n, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 20, 47])
def test_a_sum_with_a_floor(n, dtype):
    _, x, z = factors(7, n, 70, dtype)
    start, out = np.full((7, 70), 0.0625, dtype), np.full((7, 70), np.nan, dtype)
    tiles.sum_of_samples(z, x, start, out, dtype(0))
    close(out, np.maximum(0, 0.0625 + naive.product(z.T, x)), n, dtype)
    assert (out == 0).any() and (out > 0).any() and (start == 0.0625).all()


def test_what_is_not_a_number_stays_so():
    x, z, out = np.array([[1.0, np.nan]]), np.ones((1, 1)), np.empty((1, 2))
    tiles.sum_of_samples(z, x, np.zeros((1, 2)), out, 0.0)
    assert out[0, 0] == 1 and np.isnan(out[0, 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_given_part_is_written(dtype):
    w, x, z = factors(6, 30, 50, dtype)
    out, pull = np.full((8, 40), 7, dtype), np.full((8, 60), 7, dtype)
    tiles.multiply_features(w, x, out[1:7, 5:35])
    tiles.add_samples(z, x, pull[1:7, 5:55])
    close(out[1:7, 5:35], naive.product(w, x.T), 50, dtype)
    close(pull[1:7, 5:55], 7 + naive.product(z.T, x), 30, dtype)
    out[1:7, 5:35] = pull[1:7, 5:55] = 7
    assert (out == 7).all() and (pull == 7).all()


@pytest.mark.skipif(not tiles.COMPILED, reason="of the compiled kernels")
def test_what_the_kernels_are_not_for_is_refused():
    """And is not taken for something else, nor memory beyond it written."""
    w, x, z = factors(3, 6, 8, np.float64)
    out, pull = np.zeros((3, 6)), np.zeros((3, 8))
    turned = np.asfortranarray  # its rows have gaps
    for wrong in (
        (turned(w), x, out),
        (w, turned(x), out),
        (w, x, turned(out)),
        (w[:, ::2], x[:, ::2], out),
        (w, x[:, :7], out),
        (w, x, out[:, :5]),
        (w, x, out[:2]),
    ):
        with pytest.raises(ValueError):
            tiles.multiply_features(*wrong)
    for wrong in (
        (turned(z), x, pull),
        (z, turned(x), pull),
        (z, x, turned(pull)),
        (z[:5], x, pull),
        (z, x[:5], pull),
        (z, x, pull[:2]),
        (z, x, pull[:, :7]),
    ):
        with pytest.raises(ValueError):
            tiles.add_samples(*wrong)
    assert not out.any() and not pull.any()
    single = x.astype(np.float32)
    for call in (lambda: tiles.multiply_features(w, single, out), lambda: tiles.add_samples(z, single, pull)):
        with pytest.raises(TypingError, match="float32"):
            call()


@pytest.mark.skipif(not tiles.COMPILED, reason="of the compiled kernels")
@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 60), st.sampled_from(DTYPES))
def test_bits_do_not_depend_on_the_samples_beside(n_components, first, count, dtype):
    w, x, z = factors(n_components, 120, 37, dtype)
    whole, part = np.empty((n_components, 120), dtype), np.empty((n_components, count), dtype)
    tiles.multiply_features(w, x, whole)
    tiles.multiply_features(w, x[first : first + count], part)
    np.testing.assert_array_equal(part, whole[:, first : first + count])
    at_once, in_turn = np.zeros((n_components, 37), dtype), np.zeros((n_components, 37), dtype)
    tiles.add_samples(z, x, at_once)
    for begin, end in ((0, first), (first, first + count), (first + count, 120)):
        tiles.add_samples(z[begin:end], x[begin:end], in_turn)
    np.testing.assert_array_equal(at_once, in_turn)


@pytest.mark.parametrize("chosen", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_FEATURES": ""}, {"NUMBA_ENABLE_AVX": "0"}])
def test_vectors_are_no_wider_than_numba_makes_them(chosen):
    check = "from fedmavg_mpi.kernels import tiles; assert tiles.VECTOR_BYTES == 16 and tiles.COMPONENTS == 2"
    env = environment() | {"NUMBA_CPU_NAME": "", "NUMBA_CPU_FEATURES": ""} | chosen
    env = {name: value for name, value in env.items() if value or name in chosen}
    subprocess.run([sys.executable, "-c", check], cwd=Path(__file__).parents[1], env=env, check=True)


@pytest.mark.skipif(not tiles.COMPILED, reason="of the compiled kernels")
@pytest.mark.skipif("+sse2" not in tiles._FEATURES, reason="of this processor family")
@pytest.mark.parametrize(("features", "width"), [("+sse,+sse2", 16), ("+sse,+sse2,+avx,+avx2,+fma", 32)])
def test_other_vector_widths(features, width):
    if not set(features.split(",")) <= set(tiles._FEATURES):
        pytest.skip("this processor hasn't vectors of that width")
    chosen = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features}
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "components or shapes or floor or beside"]
    here = Path(__file__).parents[1]
    check = f"from fedmavg_mpi.kernels import tiles; assert tiles.VECTOR_BYTES == {width}"
    subprocess.run([sys.executable, "-c", check], cwd=here, env=environment(**chosen), check=True)
    done = subprocess.run(command, cwd=here, env=environment(**chosen), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:]
