"""Starts that look at the data, on any number of ranks."""

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

from fedmavg_mpi import config, runner
from fedmavg_mpi.communicator import Communicator
from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.starts import EXTRA_COLUMNS, POWER_ITERATIONS
from tests.mpi.conftest import pooled, settings, whole_factors, write_small_store

P, M, K = 7, 13, 4


def configured(init, *more):
    return runner.check(settings(f"model.init={init}", "aggregation.method=gather", "algorithm.clients_per_round=3", *more))


def begin(comm, store, *chosen):
    return runner.Federation(comm, configured(*chosen), store)


@pytest.mark.parametrize(("init", "name"), [("kmeans_parallel", "kmeans_parallel"), ("robust", "cal")])
def test_start_from_centres_is_where_the_algorithm_ends(comm, small_store, init, name):
    alone = runner.Federation(comm, runner.check(settings(f"algorithm.name={name}")), small_store)
    history = runner.rounds(alone)
    ends = whole_factors(alone)
    federation = begin(comm, small_store, init)
    starts = whole_factors(federation)
    if comm.is_server:
        np.testing.assert_array_equal(starts[0], ends[0])
        np.testing.assert_array_equal(np.hstack(starts[1]), np.hstack(ends[1]))
        setup = vars(federation.algorithm.setup_ledger)
        for side in ("uplink_values", "uplink_bytes"):
            assert setup[side] == sum(history.per_round[side]) + vars(alone.algorithm.setup_ledger)[side]
        assert setup["downlink_values"] == sum(history.per_round["downlink_values"]) + 3 * P + P * M * K


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_nndsvd_is_that_of_the_pooled_data(comm, folder, kind):
    random = np.random.default_rng(3)
    samples = sparse.csr_array(random.random((60, 13)) * (random.random((60, 13)) < 0.4)) if kind == "sparse" else None
    store = write_small_store(comm, folder / "store.h5", samples)
    n_components = M - EXTRA_COLUMNS  # so that the range that is found is all of it
    federation = begin(comm, store, "nndsvd", f"model.n_components={n_components}")
    starts = whole_factors(federation)
    if not comm.is_server:
        return
    X = np.hstack(pooled(store))  # M x N
    u, sigma, v = np.linalg.svd(X, full_matrices=False)
    for k in range(n_components):
        best = None
        for sign in (1, -1):
            x, y = np.maximum(sign * u[:, k], 0), np.maximum(sign * v[k], 0)
            product = np.linalg.norm(x) * np.linalg.norm(y)
            if best is None or product > best[0] + 1e-12:
                best = product, x / (np.linalg.norm(x) or 1), y / (np.linalg.norm(y) or 1)
        scale = np.sqrt(sigma[k] * best[0])
        np.testing.assert_allclose(starts[0][:, k], scale * best[1], atol=1e-10)
        np.testing.assert_allclose(np.hstack(starts[1])[k], scale * best[2], atol=1e-10)
    setup = federation.algorithm.setup_ledger
    rounds = POWER_ITERATIONS + 1
    assert setup.uplink_values == P * (3 + rounds * M * M + M**2 + 2 * n_components)
    assert setup.downlink_values == P * (3 + rounds * M * M + 2 * M * n_components + 2 * n_components)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("init", ["kmeans_parallel", "robust", "nndsvd"])
def test_same_bits_as_one_process(comm, small_store, init, dtype):
    ends = []
    for part in (comm, Communicator(MPI.COMM_SELF)):
        federation = begin(part, small_store, init, f"run.dtype={dtype}", "stop.max_rounds=3")
        runner.rounds(federation)
        ends.append((federation.algorithm.w.copy(), federation.algorithm.setup_ledger, federation.history))
    if comm.is_server:
        np.testing.assert_array_equal(ends[0][0], ends[1][0])
        assert vars(ends[0][1]) == vars(ends[1][1])
        assert ends[0][2].per_evaluation == ends[1][2].per_evaluation


@pytest.mark.parametrize("init", ["kmeans_parallel", "robust", "nndsvd"])
@pytest.mark.parametrize("method", ["reduce", "allreduce"])
def test_a_good_start_begins_lower(comm, small_store, init, method):
    first = []
    for chosen in ("random", init):
        federation = begin(comm, small_store, chosen, f"aggregation.method={method}", "stop.max_rounds=1", "model.rho=0")
        first.append(runner.rounds(federation).per_evaluation["objective"])
    if comm.is_server:
        assert first[1][0] < first[0][0] / 2


@pytest.mark.parametrize("name", ["centralized", "kmeans++", "cal"])
def test_start_that_an_algorithm_does_not_take(name):
    with pytest.raises(ConfigError, match="model.init"):
        runner.check(config.read(None, [f"algorithm.name={name}", "model.init=robust"]))


def test_ratings_take_none():
    overrides = ["model.kind=ratings", "partition.scheme=by_user", "data.source=store", "data.path=x", "model.init=robust"]
    with pytest.raises(ConfigError, match="model.init"):
        runner.check(config.read(None, overrides))
