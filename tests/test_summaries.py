"""The mathematics of distributed k-means without MPI, against plain loops."""

import naive_kmeans as naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from fedmavg_mpi import metrics, rng
from fedmavg_mpi.config import DataConfig
from fedmavg_mpi.datasets import synthetic
from fedmavg_mpi.models.distances import nearest, squared_distances, squared_norms
from fedmavg_mpi.models.summaries import allot, ball_growing, coreset, oversample
from fedmavg_mpi.models.trimmed_kmeans import descend, seeds, split_and_merge, trim, trimmed_kmeans


def draw_points(seed, n, n_features=3, levels=None):
    random = np.random.default_rng(seed)
    return random.random((n, n_features)) if levels is None else random.integers(0, levels, (n, n_features)).astype(float)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_distances_are_those_of_plain_loops(kind, dtype):
    points, centres = draw_points(0, 30).astype(dtype), draw_points(1, 4).astype(dtype)
    norms = squared_norms(kind(points))
    wanted = [[naive.d2(x, c) for c in centres] for x in points]
    np.testing.assert_allclose(squared_distances(kind(points), norms, kind(centres)), wanted, rtol=1e-12)
    labels, distances = nearest(kind(points), norms, kind(centres))
    np.testing.assert_array_equal(labels, np.argmin(wanted, axis=1))
    np.testing.assert_allclose(distances, np.min(wanted, axis=1), rtol=1e-12)


def test_equal_points_are_at_distance_zero():
    points = np.repeat(100 + np.random.default_rng(0).random((3, 2000)), 4, axis=0)
    distances = squared_distances(points, squared_norms(points), points)
    assert (distances[np.kron(np.eye(3), np.ones((4, 4))) == 1] == 0).all() and (distances > 0).sum() == 96


def test_oversampling_takes_as_many_points_as_are_expected():
    distances = np.random.default_rng(0).random(400) ** 4
    taken = [oversample(distances, distances.sum(), 20, np.random.default_rng(seed)) for seed in range(500)]
    wanted = np.minimum(1, 20 * distances / distances.sum())
    odds = np.bincount(np.concatenate(taken), minlength=400) / 500
    assert np.abs(odds - wanted).max() < 5 * np.sqrt(0.25 / 500)
    assert np.mean([len(chosen) for chosen in taken]) == pytest.approx(wanted.sum(), rel=0.03)
    assert oversample(np.zeros(5), 0.0, 20, np.random.default_rng(0)).size == 0


@given(
    st.integers(0, 999), st.integers(0, 60), st.sampled_from([0, 0.3, 1, 2, 20]), st.integers(1, 9), st.sampled_from([2, None])
)
def test_a_summary_stands_for_every_point_once(seed, n, n_outliers, n_draws, levels):
    points = draw_points(seed, n, levels=levels)
    chosen, weights = ball_growing(points, n_outliers, n_draws, np.random.default_rng(seed))
    assert weights.sum() == n and (weights >= 1).all() and len(chosen) <= n
    assert (np.diff(chosen) > 0).all()
    wanted = naive.ball_growing(points, n_outliers, n_draws, np.random.default_rng(seed))
    assert dict(zip(chosen.tolist(), weights.tolist())) == {int(x): w for x, w in wanted.items()}
    if n <= 8 * n_outliers:
        assert (weights == 1).all()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(0, 50))
def test_allotments_add_up(costs, n_draws):
    found = allot(np.array(costs), n_draws)
    assert found.sum() == (n_draws if sum(costs) > 0 else 0)
    if sum(costs) > 0:
        assert np.abs(found - n_draws * np.array(costs) / sum(costs)).max() < 1 + 1e-6


def test_allotments_are_the_oracles():
    costs = np.random.default_rng(0).random(17)
    assert allot(costs, 40).tolist() == naive.allot(costs.tolist(), 40)


@given(st.integers(0, 999), st.integers(1, 40), st.integers(0, 30))
def test_a_coreset_is_the_oracles(seed, n, n_draws):
    points = draw_points(seed, n)
    centres = points[: min(n, 3)] + 0.01
    labels, distances = nearest(points, squared_norms(points), centres)
    chosen, sampled, remaining = coreset(labels, distances, len(centres), n_draws, np.random.default_rng(seed))
    weights, w_b = naive.coreset(points, centres, n_draws, np.random.default_rng(seed))
    assert chosen.tolist() == sorted(weights)
    np.testing.assert_allclose(sampled, [weights[q] for q in chosen.tolist()], rtol=1e-9)
    np.testing.assert_allclose(remaining, w_b, rtol=1e-9, atol=1e-7)
    total = sampled.sum() + remaining.sum()
    assert total >= n * (1 - 1e-9)
    if remaining.all():  # nothing was clipped
        assert total == pytest.approx(n)


def test_a_coreset_weighs_what_the_points_weigh_on_average():
    """Unbiased before clipping: here the centres weigh enough for any draw."""
    points = np.concatenate([np.zeros((300, 2)), draw_points(0, 20, 2)])
    labels, distances = np.zeros(320, np.int64), (points**2).sum(axis=1)
    total = np.zeros(320)
    for seed in range(2000):
        chosen, sampled, _ = coreset(labels, distances, 1, 5, np.random.default_rng(seed))
        total[chosen] += sampled / 2000
    np.testing.assert_allclose(total @ distances, distances.sum(), rtol=1e-9)
    np.testing.assert_allclose(total[distances > 0.2], 1, atol=0.5)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0.1, 5)), min_size=1, max_size=20), st.floats(0, 20))
def test_trimming_leaves_the_farthest_out(pairs, t):
    distances, weights = (np.array(side) for side in zip(*pairs, strict=True))
    kept = trim(distances, weights, t)
    np.testing.assert_allclose(kept, naive.trim(distances.tolist(), weights.tolist(), t), atol=1e-9)
    assert kept.sum() == pytest.approx(max(0, weights.sum() - t), abs=1e-9)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("t", [0, 5.5])
def test_a_descent_is_the_oracles(kind, t):
    points, weights = draw_points(0, 50), np.random.default_rng(1).integers(1, 5, 50).astype(float)
    cost, centres, kept = descend(kind(points), squared_norms(points), weights, points[:4], t)
    wanted = naive.kmeans_minus_minus(points, weights, points[:4].tolist(), t)
    assert cost == pytest.approx(wanted[0])
    np.testing.assert_allclose(centres, wanted[1])
    assert kept.sum() == pytest.approx(weights.sum() - t)


def test_seeds_are_not_outliers():
    points = np.concatenate([draw_points(0, 95), 50 + 50 * draw_points(1, 5)])
    for seed in range(10):
        assert seeds(points, squared_norms(points), np.ones(100), 4, 5.0, np.random.default_rng(seed)).max() < 2


def test_a_cluster_split_in_two_and_two_in_one_are_mended():
    random = np.random.default_rng(0)
    places = 10 * np.eye(3)
    points = np.repeat(places, 30, axis=0) + random.random((90, 3))
    bad = np.array([places[0], places[0] + 1, (places[1] + places[2]) / 2])
    better = split_and_merge(points, squared_norms(points), bad, np.ones(90), random)
    distances = [naive.nearest(x, better)[1] for x in points]
    assert max(distances) < 3
    assert split_and_merge(points, squared_norms(points), better, np.ones(90), random) is None


@pytest.mark.parametrize("points", [np.full((9, 3), 0.7), np.full((1, 3), 0.7), np.repeat(np.eye(3), 3, axis=0)], ids=len)
def test_fewer_places_than_clusters(points):
    centres, _ = trimmed_kmeans(points, np.ones(len(points)), 4, 0.03 * len(points), np.random.default_rng(0))
    assert centres.shape == (4, 3)
    np.testing.assert_allclose([naive.nearest(x, centres)[1] for x in points], 0, atol=1e-25)


@pytest.mark.parametrize("seed", range(3))
def test_outliers_and_noise_do_not_hide_the_clusters(seed):
    data = synthetic.load(DataConfig(n_features=400, n_samples=1500, n_clusters=8, snr_db=0.0), seed)
    centres, kept = trimmed_kmeans(data.samples, np.ones(1500), 8, 45.0, rng.generator(seed, rng.CENTRES))
    labels, _ = nearest(data.samples, squared_norms(data.samples), centres)
    assert metrics.accuracy(metrics.contingency(labels, data.labels, 8, 8)) > 0.96
    assert kept.sum() == pytest.approx(1455)
