"""Clustering of pooled data on any number of ranks: centralized and SNCP against plain loops, k-means++ against scikit-learn."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.cluster import KMeans

from fedmavg_mpi import rng, runner
from fedmavg_mpi.ledger import KINDS
from fedmavg_mpi.placement import Placement
from tests.mpi.conftest import pooled, settings, whole_factors, write_small_store

ROUNDS, Q1, Q2 = 4, 3, 2


def configured(name, *more):
    return runner.check(
        settings(f"algorithm.name={name}", f"algorithm.q1={Q1}", f"algorithm.q2={Q2}", f"stop.max_rounds={ROUNDS}", *more)
    )


def follow(comm, store, chosen):
    """A run: (federation, history, start, end), the last two at the server."""
    federation = runner.Federation(comm, chosen, store)
    start = whole_factors(federation)
    history = runner.rounds(federation)
    return federation, history, start, whole_factors(federation)


def naive_centralized(X, W, H, rho, nu):
    """Steps on H, then on W, of the whole F, each column or row by itself; and the objective after each round."""
    norm2 = sum(x**2 for x in X.flat)
    identity, ones = np.eye(W.shape[1]), np.ones((W.shape[1], W.shape[1]))
    objectives = []
    for _ in range(ROUNDS):
        A = 2 * W.T @ W + norm2 * (rho * ones + (nu - rho) * identity)
        t = 0.51 * max(np.linalg.eigvalsh(A))
        for _ in range(Q1):
            H = np.maximum(0, H - (A @ H - 2 * W.T @ X) / t)
        G = 2 * H @ H.T
        t = 0.51 * max(np.linalg.eigvalsh(G))
        for _ in range(Q2):
            W = np.minimum(np.maximum(0, W - (W @ G - 2 * X @ H.T) / t), X.max())
        overlap = sum(sum(h) ** 2 - sum(h**2) for h in H.T)
        objectives.append(((X - W @ H) ** 2).sum() / norm2 + nu / 2 * (H**2).sum() + rho / 2 * overlap)
    return W, H, objectives


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 2e-4)])
def test_centralized_rounds_are_the_oracles(comm, folder, dtype, tolerance, kind, every):
    random = np.random.default_rng(3)
    samples = sparse.csr_array(random.random((60, 13)) * (random.random((60, 13)) < 0.3)) if kind == "sparse" else None
    store = write_small_store(comm, folder / "store.h5", samples)
    chosen = configured("centralized", f"run.dtype={dtype}", f"run.evaluate_every={every}")
    _, history, start, end = follow(comm, store, chosen)
    if comm.is_server:
        X = np.hstack(pooled(store, dtype))
        W, H, objectives = naive_centralized(X, start[0].astype(float), np.hstack(start[1]).astype(float), 1e-2, 1e-3)
        np.testing.assert_allclose(end[0], W, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(np.hstack(end[1]), H, rtol=tolerance, atol=tolerance)
        found = history.per_evaluation["objective"]
        np.testing.assert_allclose(found[1:] if every else found, objectives if every else objectives[-1:], rtol=tolerance)


def test_the_start_is_that_of_fedmavg(comm, small_store):
    starts = [whole_factors(runner.Federation(comm, configured(name), small_store)) for name in ("centralized", "fedmavg")]
    if comm.is_server:
        np.testing.assert_array_equal(starts[0][0], starts[1][0])
        np.testing.assert_array_equal(np.hstack(starts[0][1]), np.hstack(starts[1][1]))


def test_sncp_settles_the_clusters(comm, small_store):
    chosen = configured("sncp", "stop.max_rounds=3000", "model.rho=1e-6", "model.n_components=3", "algorithm.stage_rounds=30")
    _, history, _, end = follow(comm, small_store, chosen)
    if comm.is_server:
        assert history.stop_reason == "clusters settled"
        assert history.per_round["rho"][-1] > 1e-6
        assert history.per_evaluation["accuracy"][-1] > 0.9


def test_kmeans_is_that_of_scikit_learn(comm, small_store):
    _, history, _, end = follow(comm, small_store, configured("kmeans++", "run.seed=5"))
    if comm.is_server:
        samples = np.hstack(pooled(small_store)).T
        state = int(rng.generator(5, rng.CENTRES).integers(2**31))
        wanted = KMeans(4, n_init=1, random_state=state).fit(samples)
        np.testing.assert_allclose(end[0].T, wanted.cluster_centers_, rtol=1e-12, atol=1e-15)
        clusters = np.hstack(end[1]).argmax(axis=0)
        np.testing.assert_array_equal(clusters, wanted.labels_)
        cost = sum(min(((x - c) ** 2).sum() for c in wanted.cluster_centers_) for x in samples)
        found = history.per_evaluation
        np.testing.assert_allclose(found["objective"], [cost / (samples**2).sum() + 1e-3 / 2 * len(samples)], rtol=1e-10)
        assert (found["round"], history.stop_reason) == ([1], "centres found")


def test_kmeans_with_fewer_distinct_samples_than_components(comm, folder):
    store = write_small_store(comm, folder / "same.h5", np.repeat([[1.0, 2.0], [3.0, 1.0]], 30, axis=0))
    _, history, _, _ = follow(comm, store, configured("kmeans++"))
    if comm.is_server:
        assert history.per_evaluation["objective"][0] == pytest.approx(1e-3 / 2 * 60)


@pytest.mark.parametrize("name", ["centralized", "sncp", "kmeans++"])
def test_ledgers_are_the_closed_form(comm, small_store, name):
    before = comm.ledger.as_array()
    federation = runner.Federation(comm, configured(name), small_store)
    moved = dict(zip(KINDS, (comm.ledger.as_array() - before).T.tolist()))
    here = int(Placement(small_store.sizes, comm.size).rows[comm.rank]) * (comm.size > 1)
    assert moved["model_up"] == ([0, 60 * 13 * 8 * (comm.size > 1)] if comm.is_server else [here * 13 * 8, 0])
    assert moved["evaluation"] == ([0, 60 * 4 * (comm.size > 1)] if comm.is_server else [here * 4, 0])
    before = comm.ledger.as_array()
    history = runner.rounds(federation)
    moved = dict(zip(KINDS, (comm.ledger.as_array() - before).T.tolist()))
    assert moved["model_up"] == moved["model_down"] == moved["step_size"] == [0, 0]
    if comm.is_server:
        assert vars(federation.algorithm.setup_ledger) == {
            "uplink_values": 780,
            "uplink_bytes": 6240,
            "downlink_values": 0,
            "downlink_bytes": 0,
        }
        assert not any(sum(history.per_round[side]) for side in ("uplink_values", "downlink_values"))


def test_same_bits_as_one_process(comm, small_store):
    from mpi4py import MPI

    from fedmavg_mpi.communicator import Communicator

    for name in ("centralized", "kmeans++"):
        ends = [follow(part, small_store, configured(name))[3] for part in (comm, Communicator(MPI.COMM_SELF))]
        if comm.is_server:
            np.testing.assert_array_equal(ends[0][0], ends[1][0])
            np.testing.assert_array_equal(np.hstack(ends[0][1]), np.hstack(ends[1][1]))
