"""Every kernel against the oracle, in both precisions."""

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmavg_mpi.kernels import dense

TOLERANCE = {np.float64: 1e-11, np.float32: 1e-4}
SHAPES = [(1, 1), (1, 70), (3, 64), (4, 65), (7, 1), (20, 130), (64, 5)]


def problem(n_components, n, dtype, seed=0):
    """X (M x n), W, H and its local step: (X, W, H, step matrix, scale, rho, nu)."""
    random = np.random.default_rng(seed)
    x, w = random.random((9, n)), random.random((9, n_components))
    h = random.random((n_components, n))
    rho, nu = 0.02, 0.003
    hessian = 2 * w.T @ w + n * (rho + (nu - rho) * np.eye(n_components))
    t = 0.51 * np.linalg.eigvalsh(hessian)[-1]
    return x, w, h.astype(dtype), (np.eye(n_components) - hessian / t).astype(dtype), dtype(2 / t), rho, nu


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n_components", "n"), SHAPES)
@pytest.mark.parametrize("steps", [0, 1, 10])
def test_local_factor_steps(n_components, n, steps, dtype):
    x, w, h, step_matrix, scale, rho, nu = problem(n_components, n, dtype)
    expected = naive.update_h(x, w, h.astype(np.float64), rho, nu, n, steps)
    dense.local_factor_steps(h, (w.T @ x).astype(dtype), step_matrix, scale, steps)
    np.testing.assert_allclose(h, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_columns_bits_do_not_depend_on_its_neighbours(dtype):
    x, w, h, step_matrix, scale, *_ = problem(5, 150, dtype)
    b = (w.T @ x).astype(dtype)
    whole = h.copy()
    dense.local_factor_steps(whole, b, step_matrix, scale, 4)
    for begin, end in ((0, 1), (63, 65), (17, 150), (149, 150)):
        part = h[:, begin:end].copy()
        dense.local_factor_steps(part, b[:, begin:end].copy(), step_matrix, scale, 4)
        np.testing.assert_array_equal(part, whole[:, begin:end])


def test_strided_columns_are_changed_in_place():
    x, w, h, step_matrix, scale, *_ = problem(3, 20, np.float64)
    b, before = w.T @ x, h.copy()
    dense.local_factor_steps(h[:, 5:9], b[:, 5:9], step_matrix, scale, 2)
    np.testing.assert_array_equal(h[:, :5], before[:, :5])
    np.testing.assert_array_equal(h[:, 9:], before[:, 9:])
    assert (h[:, 5:9] != before[:, 5:9]).any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_objective_terms(dtype):
    random = np.random.default_rng(1)
    x, w, h = random.random((5, 11)), random.random((5, 3)), random.random((3, 11)).astype(dtype)
    offsets = np.array([0, 4, 4, 5, 11])  # the second client is empty
    parts = list(zip(offsets[:-1], offsets[1:], strict=True))
    norms2 = np.array([naive.norm2(x[:, a:e]) for a, e in parts])
    grams = np.array([naive.product(h[:, a:e], h[:, a:e].T) for a, e in parts])
    out = np.full((4, 3), np.nan)
    dense.objective_terms(h, (w.T @ x).astype(dtype), offsets, norms2, naive.product(w.T, w), grams, out)
    for (a, e), terms in zip(parts, out, strict=True):
        own = h[:, a:e].astype(np.float64)
        overlap = sum(sum(column) ** 2 - naive.norm2(column) for column in own.T)
        expected = naive.norm2(x[:, a:e] - w @ own), naive.norm2(own), overlap
        np.testing.assert_allclose(terms, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_small_products_by_client(dtype):
    random = np.random.default_rng(2)
    h, factors = random.random((3, 11)).astype(dtype), random.random((3, 3, 3)).astype(dtype)
    begins, ends = np.array([0, 4, 5]), np.array([4, 4, 11])  # the second is empty; column 4 is nobody's
    grams, combined = np.full((3, 3, 3), np.nan), np.full((11, 3), 7, dtype)
    dense.grams(h, begins, ends, grams)
    dense.combine_components(h, factors, begins, ends, combined)
    assert (combined[4] == 7).all()
    for p, (a, e) in enumerate(zip(begins, ends, strict=True)):
        np.testing.assert_allclose(grams[p], naive.product(h[:, a:e], h[:, a:e].T), rtol=TOLERANCE[dtype])
        np.testing.assert_allclose(combined[a:e], naive.product(h[:, a:e].T, factors[p]), rtol=TOLERANCE[dtype])


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_runs_cover_the_chosen_clients(chosen, data):
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=len(chosen), max_size=len(chosen)))
    offsets, clients = np.concatenate([[0], np.cumsum(sizes)]), np.flatnonzero(chosen)
    found = dense.runs(clients, offsets).tolist()
    samples = [j for begin, end in found for j in range(begin, end)]
    assert samples == [j for p in clients for j in range(offsets[p], offsets[p + 1])]
    assert len(found) == sum(c and not before for c, before in zip(chosen, [False, *chosen[:-1]], strict=True))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=9))
def test_changes_are_counted_by_client(pairs):
    labels, earlier = (np.array([pair[i] for pair in pairs], np.int32) for i in (0, 1))
    offsets, out = np.array([0, len(pairs) // 2, len(pairs) // 2, len(pairs)]), np.full(3, -1)
    dense.count_changes(labels, earlier, offsets, out)
    parts = pairs[: offsets[1]], [], pairs[offsets[1] :]
    assert out.tolist() == [sum(a != b for a, b in part) for part in parts]


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=9))
def test_assignments_take_the_first_of_equals(columns):
    h = np.array(columns, np.float64).T
    out = np.empty(h.shape[1], np.int32)
    dense.assignments(h, out)
    assert out.tolist() == naive.labels(h)
