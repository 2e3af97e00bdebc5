"""Pooled matrix factorization on any number of ranks against plain loops."""

import numpy as np
import pytest
from mpi4py import MPI

from fedmavg_mpi import runner
from fedmavg_mpi.communicator import Communicator
from fedmavg_mpi.ledger import KINDS
from tests.mpi.small_ratings import (
    Q1,
    Q2,
    RIDGE,
    RIDGE_BIAS,
    ROUNDS,
    K,
    configured,
    error,
    mean_of,
    objective,
    rmse,
    start_of,
    write_ratings,
)


def descend(ratings, u, others, ridges, times, steps, mean, biased):
    """Gradient steps on one row u of H or W, at its own step size; ``ratings`` is {row of the other factor: rating}."""
    if not ratings:
        return u
    design = {j: np.array([*others[j][:K], *[1.0] * biased]) for j in ratings}
    hessian = times * np.diag(ridges) + sum(2 * np.outer(v, v) for v in design.values())
    t = 0.51 * max(np.linalg.eigvalsh(hessian))
    for _ in range(steps):
        gradient = times * ridges * u
        for j, x in ratings.items():
            gradient = gradient + 2 * error(x, others[j], u, mean, biased) * design[j]
        u = u - gradient / t
    return u


def naive_centralized(train, w, h, mean, biased):
    """(W, H) after the rounds: steps on every row of H, then on every row of W, whose ridge counts once for each of its ratings."""
    ridges = np.array([RIDGE] * K + [RIDGE_BIAS] * biased)
    by_item = [{p: rated[i] for p, rated in enumerate(train) if i in rated} for i in range(len(w))]
    for _ in range(ROUNDS):
        h = [descend(rated, h_p, w, ridges, 1, Q1, mean, biased) for rated, h_p in zip(train, h)]
        w = [descend(raters, w_i, h, ridges, len(raters), Q2, mean, biased) for raters, w_i in zip(by_item, w)]
    return np.array(w), np.array(h)


@pytest.fixture
def ratings(comm, folder):
    return write_ratings(comm, folder / "ratings.h5")


def follow(comm, store, *overrides):
    """A run: (federation, history, start, H on its ranks), the last two at the server."""
    federation = runner.Federation(comm, runner.check(configured("centralized", *overrides)), store)
    start = start_of(comm, federation)
    history = runner.rounds(federation)
    return federation, history, start, comm.gather(federation.shard.h, np.diff(federation.placement.cut), "control")


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 5e-4)])
@pytest.mark.parametrize("every", [0, 1])
def test_rounds_are_the_oracles(comm, ratings, biased, dtype, tolerance, every):
    overrides = f"model.biases={str(biased).lower()}", f"run.dtype={dtype}", f"run.evaluate_every={every}"
    federation, history, start, h = follow(comm, ratings, *overrides)
    if comm.is_server:
        train, test, w, first_h = start
        mean = mean_of(train)
        wanted_w, wanted_h = naive_centralized(train, w, first_h, mean, biased)
        np.testing.assert_allclose(federation.algorithm.w, wanted_w, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(h, wanted_h, rtol=tolerance, atol=tolerance)
        W = [wanted_w] * 9
        found = {name: values[-1] for name, values in history.per_evaluation.items()}
        np.testing.assert_allclose(found["objective"], objective(train, W, wanted_h, mean, biased), rtol=tolerance)
        np.testing.assert_allclose(found["rmse_train"], rmse(train, train, W, wanted_h, mean, biased), rtol=tolerance)
        np.testing.assert_allclose(found["rmse_test"], rmse(test, train, W, wanted_h, mean, biased), rtol=tolerance)


@pytest.mark.parametrize("biased", [False, True])
def test_the_objective_falls(comm, ratings, biased):
    _, history, _, _ = follow(comm, ratings, f"model.biases={str(biased).lower()}", "stop.max_rounds=60")
    if comm.is_server:
        assert (np.diff(history.per_evaluation["objective"]) < 0).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_bits_as_one_process(comm, ratings, dtype):
    federation, history, _, h = follow(comm, ratings, f"run.dtype={dtype}", "model.biases=true")
    alone, history_alone, _, h_alone = follow(Communicator(MPI.COMM_SELF), ratings, f"run.dtype={dtype}", "model.biases=true")
    if comm.is_server:
        np.testing.assert_array_equal(federation.algorithm.w, alone.algorithm.w)
        np.testing.assert_array_equal(h, h_alone)
        assert history.per_evaluation == history_alone.per_evaluation


def test_ledgers_are_the_closed_form(comm, ratings):
    before = comm.ledger.as_array()
    federation = runner.Federation(comm, runner.check(configured("centralized")), ratings)
    setup = dict(zip(KINDS, (comm.ledger.as_array() - before).T.tolist()))
    n_ratings = int(federation.application.model.counts.sum())
    clients = federation.application.origin.clients_of(comm.rank)
    here = int(federation.application.model.counts[clients.start : clients.stop].sum()) if comm.size > 1 else 0
    assert setup["model_up"] == ([0, 12 * n_ratings * (comm.size > 1)] if comm.is_server else [12 * here, 0])
    if comm.is_server:
        found = vars(federation.algorithm.setup_ledger)
        assert (found["uplink_values"], found["uplink_bytes"]) == (2 * n_ratings, 12 * n_ratings)
        assert found["downlink_values"] == 0
    before = comm.ledger.as_array()
    history = runner.rounds(federation)
    moved = dict(zip(KINDS, (comm.ledger.as_array() - before).T.tolist()))
    assert moved["model_up"] == moved["model_down"] == moved["step_size"] == [0, 0]
    if comm.is_server:
        for name in ("uplink_values", "uplink_bytes", "downlink_values", "downlink_bytes"):
            assert history.per_round[name] == [0] * ROUNDS
    else:
        assert not federation.shard.sizes.size  # all users are worked on at the server


def test_more_ranks_than_users(comm, folder):
    store = write_ratings(comm, folder / "few.h5", 2)
    federation, _, start, h = follow(comm, store)
    if comm.is_server:
        train, _, w, first_h = start
        wanted_w, wanted_h = naive_centralized(train, w, first_h, mean_of(train), False)
        np.testing.assert_allclose(federation.algorithm.w, wanted_w, rtol=1e-10)
        np.testing.assert_allclose(h, wanted_h, rtol=1e-10)
