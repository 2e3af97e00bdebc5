"""The identities that make a round cheap, each against the oracle."""

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedmavg_mpi.config import ModelConfig
from fedmavg_mpi.models.clustering import ClusteringModel, ClusteringShard, DataTotals, client_totals, step_powers

RHO, NU = 0.02, 0.003
SIZES = [[4, 1, 6, 3], [1], [70, 2]]
CASES = [
    (sizes, n_components, dtype, kind, client_by_client)
    for sizes in SIZES
    for n_components in (1, 3)
    for dtype in (np.float64, np.float32)
    for kind in ("tiles", "blas", "sparse")
    for client_by_client in (False, True)
]


def build(sizes, n_components, dtype=np.float64, kind="tiles", client_by_client=False, n_features=8):
    """A model, its shard with a random W received, and the same as the oracle takes them: (model, shard, X, W, H)."""
    random = np.random.default_rng(sum(sizes) + n_components)
    samples = random.random((sum(sizes), n_features)) * (random.random((sum(sizes), n_features)) < 0.7)
    samples = samples.astype(dtype)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    totals = client_totals(samples, offsets)
    totals = DataTotals(sum(sizes), n_features, totals[:, 0].sum(), totals[:, 1].sum(), totals[:, 2].max())
    model = ClusteringModel(ModelConfig(n_components=n_components, rho=RHO, nu=NU), totals)
    given = sparse.csr_array(samples) if kind == "sparse" else samples
    shard = ClusteringShard(given, offsets, 0, model, 0, client_by_client, "blas" if kind == "sparse" else kind)
    w = random.random((n_components, n_features)).astype(dtype)
    shard.receive(w)
    x = [part.T.astype(np.float64) for part in np.split(samples, offsets[1:-1])]
    h = [part.astype(np.float64) for part in np.split(shard.h, offsets[1:-1], axis=1)]
    return model, shard, x, w.T.astype(np.float64), h


def close(found, expected, dtype):
    tolerance = 1e-10 if dtype == np.float64 else 2e-4
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_local_factors_are_updated_as_by_the_oracle(case):
    dtype = case[2]
    model, shard, x, w, h = build(*case)
    rho, nu, n_samples = naive.penalties(x, RHO, NU)
    updating = shard.all_clients[::2]
    shard.take_step(RHO, model.local_curvature(shard.w, RHO))
    shard.update_local_factors(updating, 4)
    for p, (begin, end) in enumerate(zip(shard.offsets[:-1], shard.offsets[1:], strict=True)):
        expected = naive.update_h(x[p], w, h[p], rho, nu, n_samples, 4) if p in updating else h[p]
        close(shard.h[:, begin:end], expected, dtype)
        close(shard.h_grams[p], expected @ expected.T, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("global_step", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 11])
def test_the_average_is_formed_without_any_copy(case, global_step, steps):
    dtype = case[2]
    model, shard, x, w, h = build(*case)
    clients = shard.all_clients[:: 2 if len(x) > 2 else 1]
    weights = np.random.default_rng(0).random(clients.size)
    d = naive.step_size_w(h, global_step)
    curvature = model.shared_curvature(shard.h_grams.sum(axis=0)) if global_step else None
    if global_step:
        np.testing.assert_allclose(curvature, d[0], rtol=1e-5)
    copies = [naive.update_w(x[p], w, h[p], d[p], steps) for p in clients]
    close(shard.client_models(clients, curvature, steps).transpose(0, 2, 1), copies, dtype)
    average = sum(weight * copy for weight, copy in zip(weights, copies, strict=True))
    close(shard.contribution(clients, weights, curvature, steps).T, average, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_objective_from_products_that_are_there_anyway(case):
    model, shard, x, w, h = build(*case)
    tolerance = 1e-10 if case[2] == np.float64 else 1e-4
    found = model.objective(shard.objective_terms().sum(axis=0), RHO)
    np.testing.assert_allclose(found, naive.objective(x, w, h, RHO, NU), rtol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["tiles", "sparse"])
def test_a_tiny_objective_is_not_lost_to_cancellation(dtype, kind):
    model, shard, *_ = build([5, 3], 2, dtype, kind)
    exact = (shard.h.T @ shard.w).astype(dtype)  # X = WH but for one entry
    exact[2, 3] *= 1 + (1e-5 if dtype == np.float64 else 1e-2)
    shard.samples = sparse.csr_array(exact) if kind == "sparse" else exact
    shard.norms2 = client_totals(shard.samples, shard.offsets)[:, 0]
    shard.receive(shard.w)
    expected = naive.norm2(exact.T.astype(np.float64) - shard.w.T.astype(np.float64) @ shard.h.astype(np.float64))
    found = shard.objective_terms()[:, 0].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype == np.float64 else 1e-2)


@given(st.integers(1, 130), st.integers(1, 5), st.floats(0.0, 3.0), st.integers(0, 10))
@settings(max_examples=60)
def test_step_powers_are_the_plain_sums(steps, n_components, scale, seed):
    root = np.random.default_rng(seed).random((1, n_components, n_components)) / n_components
    g = root @ root.transpose(0, 2, 1)
    power, total = step_powers(g, np.array([scale]), steps)
    a, expected_power, expected_total = np.eye(n_components) - scale * g[0], np.eye(n_components), np.zeros((n_components,) * 2)
    for _ in range(steps):
        expected_total += scale * expected_power
        expected_power = expected_power @ a
    np.testing.assert_allclose(power[0], expected_power, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(total[0], expected_total, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["tiles", "sparse"])
def test_client_totals(kind):
    _, shard, x, *_ = build([4, 1, 6], 2, kind=kind)
    expected = [(naive.norm2(x_p), float(x_p.sum()), max(0.0, float(x_p.max()))) for x_p in x]
    np.testing.assert_allclose(client_totals(shard.samples, shard.offsets), expected, rtol=1e-12)


def test_products_are_formed_once():
    """Undrawn clients' products serve the next steps and the objective; nothing is multiplied twice for one W."""
    model, shard, *_ = build([4, 1, 6, 3], 3)
    shard.form_products(np.array([1, 2]))
    shard.b[:, shard.offsets[1] : shard.offsets[3]] = 7  # kept if not formed again
    shard.form_products(shard.all_clients)
    assert (shard.b[:, shard.offsets[1] : shard.offsets[3]] == 7).all()
    assert (shard.b[:, : shard.offsets[1]] != 7).all()


def test_blocks_follow_runs_of_adjacent_clients():
    _, shard, *_ = build([4, 1, 6, 3], 2)
    assert shard._blocks(np.array([0, 1, 3])) == [[0, 5], [11, 14]]
    assert shard.ranges(np.array([0, 1, 3])) == [(0, 4), (4, 5), (11, 14)]
    assert shard._blocks(np.array([], int)) == []


def test_a_client_without_samples_is_harmless():
    model, shard, *_ = build([4, 0, 3], 2)
    shard.take_step(RHO, model.local_curvature(shard.w, RHO))
    shard.update_local_factors(shard.all_clients, 2)
    terms, part = shard.objective_terms(), shard.contribution(shard.all_clients, np.array([0.6, 0.0, 0.4]), None, 3)
    assert np.isfinite(terms).all() and (terms[1] == 0).all() and np.isfinite(part).all()
