"""Every kernel of recommendation against the oracle, in both precisions."""

import naive_ratings as naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmavg_mpi.kernels import rating_sums, ratings

TOLERANCE = {np.float64: 1e-10, np.float32: 1e-4}
MEAN, RIDGES, LIMITS = 3.2, (0.3, 0.7), (0.5, 5.0)
CASES = [
    # users, items, K
    (1, 1, 1),
    (4, 5, 1),
    (5, 7, 3),
    (3, 9, 8),
    (2, 70, 40),
]


class Problem:
    """Ratings as the oracle takes them (X, W, H) and as the kernels do (block, w, h, form)."""

    def __init__(self, n_users, n_items, n_components, biased, dtype=np.float64, seed=0):
        random = np.random.default_rng(seed)
        known = random.random((n_users, n_items)) < 0.7
        known[0] = True
        known[1:2], known[2:3, 1:] = False, False  # a user without ratings, and one with a single rating at most
        if n_users > 1:
            known[:, -1] = False  # an item without ratings
        values = np.round(2 * random.uniform(0, 5, known.shape)) / 2
        self.X = np.where(known, values, np.nan)
        self.w = random.uniform(0.1, 1, (n_items, n_components + biased)).astype(dtype)
        self.h = random.uniform(-0.2, 1, (n_users, n_components + biased)).astype(dtype)
        self.W, self.H = self.w.astype(float), self.h.astype(float)
        indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
        self.block = ratings.Block(indptr, np.nonzero(known)[1].astype(np.int32), values[known].astype(dtype))
        self.biased, self.mean, self.dtype = biased, MEAN if biased else 0.0, dtype
        self.form = ratings.Form(biased, self.mean, *RIDGES)
        self.users = np.arange(n_users)
        self.weights = random.uniform(0.1, 1, n_users)

    def contribution(self, users, curvatures, steps):
        delta, row_weight = np.zeros_like(self.w), np.zeros(self.w.shape[0])
        ratings.add_row_steps(
            users, self.weights[users], self.block, self.w, self.h, self.form, curvatures[users], steps, delta, row_weight
        )
        return delta, row_weight

    def close(self, found, expected):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE[self.dtype], atol=TOLERANCE[self.dtype])


@pytest.fixture(params=[(case, biased, dtype) for case in CASES for biased in (0, 1) for dtype in TOLERANCE], ids=str)
def problem(request):
    case, biased, dtype = request.param
    return Problem(*case, biased, dtype)


def local_steps(problem, users, steps):
    h = problem.h.copy()
    ratings.local_factor_steps(users, problem.block, problem.w, h, problem.form, steps)
    return h


@pytest.mark.parametrize("steps", [1, 6])
def test_local_factor_steps(problem, steps):
    found = local_steps(problem, problem.users, steps)
    for p in problem.users:
        expected = naive.update_h(problem.X, problem.W, problem.H, p, problem.mean, problem.biased, RIDGES, steps)
        problem.close(found[p], expected)


def test_only_the_asked_users_with_ratings_are_updated():
    problem = Problem(5, 7, 3, 1)
    found = local_steps(problem, np.array([1, 3]), 4)
    changed = (found != problem.h).any(axis=1)
    assert changed.tolist() == [False, False, False, True, False]
    np.testing.assert_array_equal(local_steps(problem, problem.users, 0), problem.h)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("biased", [0, 1])
def test_a_users_bits_do_not_depend_on_the_others(biased, dtype):
    problem = Problem(6, 30, 5, biased, dtype)
    whole = local_steps(problem, problem.users, 5)
    for begin, end in ((0, 1), (2, 6), (4, 5)):
        indptr = problem.block.indptr[begin : end + 1]
        part = ratings.Block(indptr - indptr[0], *(array[indptr[0] : indptr[-1]] for array in problem.block[1:]))
        h = problem.h[begin:end].copy()
        ratings.local_factor_steps(np.arange(end - begin), part, problem.w, h, problem.form, 5)
        np.testing.assert_array_equal(h, whole[begin:end])


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_power_method_never_falls_short_of_what_the_step_has_to_spare(count, size, seed, whole_numbers, formed):
    random = np.random.default_rng(seed)
    design = random.standard_normal((count + 3, size))
    design = np.round(2 * design) if whole_numbers else design
    ridges = random.uniform(0, 1, size)
    hessian = np.zeros((size, size))
    ratings._form_hessian(design, count, ridges, hessian)
    largest = np.linalg.eigvalsh(2 * design[:count].T @ design[:count] + np.diag(ridges))[-1]
    found = ratings._largest_eigenvalue(hessian, formed, design, count, ridges)
    assert 0.99 * largest <= found <= largest * (1 + 1e-12)


def test_nothing_to_learn_from_moves_nothing():
    problem = Problem(3, 4, 2, 0)
    problem.w[:], problem.form = 0, ratings.Form(0, 0.0, 0.0, 0.0)  # a Hessian of zero: t = 0
    np.testing.assert_array_equal(local_steps(problem, problem.users, 3), problem.h)


unit = st.floats(0, 1, allow_subnormal=False)


@given(
    unit,
    unit,
    st.floats(0.5, 100),
    st.integers(0, 12),
    st.integers(0, 1),
    unit,
    st.floats(-5, 5),
    st.floats(-5, 5),
    st.floats(-2, 2),
)
def test_closed_form_of_a_row_is_its_plain_steps(norm2, ridge, d, steps, biased, ridge_bias, y, w, b):
    """In the line of h: w = w h + w_other, of which w_other only shrinks."""
    h, b = np.sqrt(norm2), b * biased
    other, s, moved_b = 1.0, w, b
    for _ in range(steps):
        residual = s * h + moved_b - y
        other -= ridge * other / d
        s -= (2 * residual * h + ridge * s) / d
        moved_b -= (2 * residual + ridge_bias * moved_b) / d * biased
    shrink, along, bias = ratings.shared_step_map(norm2, ratings.Form(biased, 0.0, ridge, ridge_bias), d, steps)
    start = np.array([y, w * h, b])
    np.testing.assert_allclose(
        [shrink, shrink * w + along @ start * h, bias @ start], [other, s, moved_b], rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("steps", [1, 5])
def test_row_steps(problem, steps):
    curvatures = np.linspace(9, 30, problem.users.size)
    delta, row_weight = problem.contribution(problem.users, curvatures, steps)
    model = problem.mean, problem.biased, RIDGES
    expected = naive.contribution(problem.X, problem.W, problem.H, problem.users, problem.weights, *model, curvatures, steps)
    problem.close(delta, expected[0])
    np.testing.assert_allclose(row_weight, expected[1], rtol=1e-14)
    unweighted = np.zeros_like(delta)
    ratings.add_row_steps(
        problem.users, problem.weights, problem.block, problem.w, problem.h, problem.form, curvatures, steps, unweighted, None
    )
    np.testing.assert_array_equal(unweighted, delta)
    for p in problem.users:
        rated = naive.rated(problem.X, p)
        rows = np.empty((len(rated), problem.w.shape[1]), problem.dtype)
        ratings.new_rows(p, problem.block, problem.w, problem.h, problem.form, curvatures[p], steps, rows)
        problem.close(rows, naive.update_w(problem.X, problem.W, problem.H, p, *model, curvatures[p], steps)[rated])


@given(st.lists(st.integers(0, 5), max_size=6, unique=True), st.integers(0, 12), st.integers(0, 1))
def test_a_unions_contribution_is_the_sum(chosen, steps, biased):
    problem = Problem(6, 8, 3, biased)
    curvatures = np.full(6, 20.0)
    here = np.zeros(6, bool)
    here[chosen] = True
    one, other = (problem.contribution(users, curvatures, steps) for users in (problem.users[here], problem.users[~here]))
    whole = problem.contribution(problem.users, curvatures, steps)
    for found, *parts in zip(whole, one, other):
        np.testing.assert_allclose(found, sum(parts), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("biased", [0, 1])
def test_no_curvature_and_no_factors_give_no_nan(biased):
    problem = Problem(3, 6, 2, biased)
    assert not problem.contribution(problem.users, np.zeros(3), 4)[0].any()
    problem.h[:] = 0
    delta, _ = problem.contribution(problem.users, np.full(3, 5.0), 4)
    assert np.isfinite(delta).all()
    if not biased:  # the ridge alone
        shrunk = problem.weights[0] * ((1 - RIDGES[0] / 5) ** 4 - 1) * problem.w[:-1]
        others = problem.weights[2] * ((1 - RIDGES[0] / 5) ** 4 - 1) * problem.w[:-1]
        np.testing.assert_allclose(delta[1:-1], shrunk[1:] if np.isnan(problem.X[2, 1:-1]).all() else shrunk[1:] + others[1:])


def test_objective_sums(problem):
    out = np.full((problem.users.size, 3), np.nan)
    rating_sums.objective_sums(problem.block, problem.w, problem.h, problem.form, out)
    expected = [
        naive.objective_terms(problem.X, problem.W, problem.H, p, problem.mean, problem.biased)[:3] for p in problem.users
    ]
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-10)  # sums are in float64 in both precisions


def test_error_sums(problem):
    known_users = (~np.isnan(problem.X)).any(axis=1)
    known_items = (~np.isnan(problem.X)).any(axis=0)
    everything = np.nan_to_num(problem.X, nan=3.0)  # so that unknown users and items are predicted too
    n_users, n_items = everything.shape
    block = ratings.Block(np.arange(n_users + 1) * n_items, np.tile(np.arange(n_items), n_users), everything.ravel())
    problem.w[~known_items, -problem.biased :] *= 1 - problem.biased  # a bias that was never fitted is 0
    problem.h[~known_users, -problem.biased :] *= 1 - problem.biased
    W, H, out = problem.w.astype(float), problem.h.astype(float), np.full((n_users, 2), np.nan)
    known = known_users, known_items
    rating_sums.error_sums(block, problem.w, problem.h, problem.form, MEAN, *known, *LIMITS, out)
    for p in problem.users:
        expected = naive.error_sums(everything, problem.X, W, H, p, problem.mean, MEAN, problem.biased, LIMITS)
        np.testing.assert_allclose(out[p], expected, rtol=1e-10)
