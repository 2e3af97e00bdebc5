"""The two halves of the recommendation model against the oracle, and a band of errors on real ratings."""

import os

import naive_ratings as naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmavg_mpi import config
from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.models.rating_blocks import RatingTotals, client_totals, split
from fedmavg_mpi.models.ratings import RatingsModel, RatingsShard, predict

RIDGES, LIMITS, K = (0.3, 0.7), (0.5, 5.0), 3
N_USERS, N_ITEMS = 7, 9


def dense(matrix):
    """Ratings as the oracle takes them: NaN where there is none."""
    out = np.full(matrix.shape, np.nan)
    for p in range(matrix.shape[0]):
        entries = slice(matrix.indptr[p], matrix.indptr[p + 1])
        out[p, matrix.indices[entries]] = matrix.data[entries]
    return out


def some_ratings(seed=0, dtype=np.float64):
    """Ratings with stored zeros, a user without any and an item without any."""
    random = np.random.default_rng(seed)
    known = random.random((N_USERS, N_ITEMS)) < 0.7
    known[4], known[:, 2] = False, False
    indptr = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
    values = random.integers(0, 11, indptr[-1]) / 2
    return sparse.csr_array((values.astype(dtype), np.nonzero(known)[1], indptr), shape=known.shape)


def build(biases, dtype=np.float64, weighting="clients", ratings=None, fraction=0.3, ridges=RIDGES, n_components=K, seed=0):
    """A model and one shard of all users, with a random W received."""
    ratings = some_ratings(dtype=dtype) if ratings is None else ratings
    train, test = split(ratings, 0, seed, fraction)
    count, total, magnitude, norm2 = client_totals(train)[:, :4].sum(axis=0)
    totals = RatingTotals(*ratings.shape, int(count), total, magnitude, norm2, *LIMITS)
    settings = config.replace(
        config.Config(),
        "model",
        n_components=n_components,
        biases=biases,
        regularization=float(ridges[0]),
        bias_regularization=float(ridges[1]),
    )
    settings = config.replace(settings, "aggregation", weighting=weighting)
    model = RatingsModel(settings, totals, np.diff(train.indptr))
    shard = RatingsShard(train, test, 0, model, seed)
    shard.receive(model.start(seed, dtype))
    return model, shard, train, test


@pytest.fixture(params=[(biases, dtype) for biases in (False, True) for dtype in (np.float64, np.float32)], ids=str)
def built(request):
    biases, dtype = request.param
    tolerance = 1e-10 if dtype == np.float64 else 2e-4
    return (*build(biases, dtype), int(biases), lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance))


def test_start_without_biases_predicts_about_the_mean_rating():
    model, shard, *_ = build(False)
    assert (np.abs(shard.h @ shard.w.T / model.totals.mean - 1) < 0.5).all()
    assert 0.8 * 0.999 <= shard.w.min() / np.sqrt(model.totals.mean / K) <= shard.w.max() / np.sqrt(model.totals.mean / K) <= 1.2


def test_start_with_biases_has_biases_of_zero():
    _, shard, *_ = build(True)
    assert not shard.w[:, K].any() and not shard.h[:, K].any()
    assert shard.w[:, :K].all() and shard.h[:, :K].all()


@given(st.integers(0, N_USERS), st.integers(0, 100), st.booleans())
def test_neither_hold_out_nor_start_depends_on_the_ranks(cut, seed, biases):
    ratings = some_ratings()
    whole = split(ratings, 0, seed, 0.3)
    parts = [split(ratings[begin:end], begin, seed, 0.3) for begin, end in ((0, cut), (cut, N_USERS))]
    for found, *pieces in zip(whole, *parts):
        np.testing.assert_array_equal(dense(found), np.concatenate([dense(piece) for piece in pieces]))
    model, shard, *_ = build(biases, seed=seed)
    shards = [RatingsShard(*part, begin, model, seed) for part, begin in zip(parts, (0, cut))]
    np.testing.assert_array_equal(np.concatenate([part.h for part in shards]), shard.h)
    np.testing.assert_array_equal(sum(part.item_counts() for part in shards), shard.item_counts())


def test_hold_out_is_a_partition_and_keeps_ratings_of_zero():
    ratings = some_ratings()
    train, test = map(dense, split(ratings, 0, 1, 0.3))
    known = ~np.isnan(dense(ratings))
    np.testing.assert_array_equal(~np.isnan(train) ^ ~np.isnan(test), known)
    np.testing.assert_array_equal(np.where(np.isnan(train), test, train), dense(ratings))
    assert (train == 0).any() and not np.array_equal(train, dense(split(ratings, 0, 2, 0.3)[0]), equal_nan=True)


def test_hold_out_takes_about_its_fraction():
    ratings = sparse.csr_array(np.ones((40, 500)))
    _, test = split(ratings, 0, 0, 0.2)
    assert abs(test.nnz / ratings.nnz - 0.2) < 0.01
    assert (np.diff(test.indptr) > 0).all()


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan")])
def test_hold_out_of_nothing_or_all(fraction):
    with pytest.raises(ConfigError, match="expected above 0 and below 1"):
        split(some_ratings(), 0, 0, fraction)


def test_client_totals():
    ratings = some_ratings()
    ratings.data -= 2
    for found, row in zip(client_totals(ratings), dense(ratings), strict=True):
        x = row[~np.isnan(row)]
        expected = [x.size, x.sum(), np.abs(x).sum(), (x**2).sum(), min(x, default=np.inf), max(x, default=-np.inf)]
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert client_totals(ratings[4:5])[0].tolist() == [0, 0, 0, 0, np.inf, -np.inf]


def test_a_round_of_steps(built):
    model, shard, train, _, biased, close = built
    X, W, H, mean = dense(train), shard.w.astype(float), shard.h.astype(float), model.form.mean
    updating = np.array([0, 2, 3, 4, 6])
    shard.update_local_factors(updating, 4)
    expected = [naive.update_h(X, W, H, p, mean, biased, RIDGES, 4) if p in updating else H[p] for p in range(N_USERS)]
    close(shard.h, expected)

    H, clients, weights = shard.h.astype(float), np.array([0, 3, 4, 5]), np.array([0.3, 0.2, 0.1, 0.4])
    for curvature in (None, 25.0):
        curvatures = model.client_curvatures(shard.h)[clients] if curvature is None else np.full(4, curvature)
        delta, row_weight = naive.contribution(X, W, H, clients, weights, mean, biased, RIDGES, curvatures, 3)
        close(shard.contribution(clients, weights, curvature, 3), np.column_stack([delta, row_weight]))
        items, rows = shard.client_rows(clients, curvature, 3)
        total = shard.no_contribution()
        shard.add_rows(total, weights, shard.sizes[clients], items, rows)
        close(total, np.column_stack([delta, row_weight]))
        by_copies = shard.no_contribution()
        shard.add_copies(by_copies, weights, shard.client_models(clients, curvature, 3))
        np.testing.assert_array_equal(by_copies, total)


def test_curvatures(built):
    model, shard, _, _, biased, _ = built
    directions = np.column_stack([shard.h[:, :K].astype(float), np.ones((N_USERS, biased))])
    np.testing.assert_allclose(model.client_curvatures(shard.h), [10 * row @ row for row in directions], rtol=1e-12)
    values = shard.gram_values(shard.all_clients)
    assert values.shape == (N_USERS, model.n_gram_values)
    assert biased or (values[:, 0] > 0).all()  # a sign of the server's choice
    gram = sum(np.outer(row, row) for row in directions)
    np.testing.assert_allclose(model.add_grams(values), gram, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(model.shared_curvature(gram), 5 * np.linalg.eigvalsh(2 * gram / N_USERS)[-1], rtol=1e-12)


@pytest.mark.parametrize("biases", [False, True])
def test_a_ridge_above_the_curvature_does_not_blow_up(biases):
    model, shard, *_ = build(biases, ridges=(1e3, 1e3))
    start = np.abs(shard.w).max()
    for _ in range(20):
        shard.update_local_factors(shard.all_clients, 3)
        change = shard.contribution(shard.all_clients, np.full(N_USERS, 1 / N_USERS), None, 2)
        shard.receive(model.next_shared(shard.w, change))
    assert np.abs(shard.w).max() <= max(start, LIMITS[1])


@pytest.mark.parametrize("weighting", ["clients", "rows"])
def test_average(weighting):
    model, shard, *_ = build(True, weighting=weighting)
    clients, weights = np.array([0, 1, 4]), np.array([0.5, 0.25, 0.25])
    before = shard.w.copy()
    items, rows = shard.client_rows(clients, None, 2)
    copies, raters = np.repeat(before[None], 3, axis=0), np.zeros((3, N_ITEMS), bool)
    ends = np.cumsum(shard.sizes[clients])
    for j, (begin, end) in enumerate(zip(np.append(0, ends), ends)):
        copies[j, items[begin:end]], raters[j, items[begin:end]] = rows[begin:end], True
    expected = before.copy()
    for i in range(N_ITEMS):
        who = raters[:, i] if weighting == "rows" else np.ones(3, bool)
        if who.any():
            expected[i] = weights[who] @ copies[who, i] / weights[who].sum()
    found = model.next_shared(shard.w, shard.contribution(clients, weights, None, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(found[~raters.any(axis=0)], before[~raters.any(axis=0)])


def test_evaluation(built):
    model, shard, train, test, biased, _ = built
    shard.update_local_factors(shard.all_clients, 3)
    shard.w[shard.known_items] += 0.25  # so that items have biases
    X, T, W, H, mean = dense(train), dense(test), shard.w.astype(float), shard.h.astype(float), model.form.mean
    terms, errors = shard.objective_terms(), shard.error_sums()
    for p in range(N_USERS):
        np.testing.assert_allclose(terms[p], naive.objective_terms(X, W, H, p, mean, biased), rtol=1e-10)
        expected = []
        for part in (X, T):
            expected += [len(naive.rated(part, p)), *naive.error_sums(part, X, W, H, p, mean, model.totals.mean, biased, LIMITS)]
        np.testing.assert_allclose(errors[p], expected, rtol=1e-10)
    objective = naive.objective(X, W, H, mean, biased, RIDGES)
    np.testing.assert_allclose(model.objective(terms.sum(axis=0)), objective, rtol=1e-10)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("p", [0, 4])  # the second has no ratings
def test_predict(biases, p):
    model, shard, train, _ = build(biases)
    shard.update_local_factors(shard.all_clients, 3)
    shard.w[shard.known_items] += 0.5
    found = predict(shard.w, shard.h[p], biases, model.totals.mean, LIMITS, shard.sizes[p] > 0, shard.known_items)
    means = model.form.mean, model.totals.mean
    expected = [naive.predict_after(dense(train), shard.w, shard.h, p, i, *means, biases, LIMITS) for i in range(N_ITEMS)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="minutes without compiled loops")
def test_errors_on_real_ratings(data_folder):
    """ml-latest-small, all 610 users a round: the errors that a fault in a step or in the average would miss."""
    path = data_folder / "ml-latest-small" / "ratings.csv"
    if not path.exists():
        pytest.skip(f"no {path}")
    users, items, values = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1, 2), unpack=True)
    users, items = (np.unique(ids, return_inverse=True)[1] for ids in (users, items))
    ratings = sparse.coo_array((values, (users, items))).tocsr()
    assert (ratings.shape, ratings.nnz) == ((610, 9724), 100836)
    model, shard, *_ = build(True, ratings=ratings, weighting="rows", fraction=0.2, ridges=(3.0, 1.0), n_components=40)
    for s in range(1, 16):
        shard.update_local_factors(shard.all_clients, 10)
        change = shard.contribution(shard.all_clients, np.full(610, 1 / 610), None, 10 // s + 1)
        shard.receive(model.next_shared(shard.w, change))
    count, squared, absolute = shard.error_sums().sum(axis=0)[3:]
    assert 0.85 < np.sqrt(squared / count) < 0.87
    assert 0.64 < absolute / count < 0.67
