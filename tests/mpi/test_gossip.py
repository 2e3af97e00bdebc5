"""Gossip learning on any number of ranks against plain loops."""

import numpy as np
import pytest
from mpi4py import MPI

from fedmavg_mpi import config, memory, runner
from fedmavg_mpi.algorithms import gossip
from fedmavg_mpi.communicator import Communicator
from fedmavg_mpi.errors import ConfigError, DataError
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
    raises_everywhere,
    rmse,
    start_of,
    write_ratings,
)


def naive_gossip(train, w, h, peers_by_round, mean, biased, diminishing):
    """All in plain loops: (W of each node, ages of each node, H, rows of age > 0 that travelled in each round).

    ``train[p]`` is {item: rating}; rows of W and of H end in the biases b_i and c_p, if any.
    """
    P, M = len(train), len(w)
    W, T, h = [w.copy() for _ in range(P)], [[0] * M for _ in range(P)], h.copy()
    ridges = np.array([RIDGE] * K + [RIDGE_BIAS] * biased)
    travelled = []
    for s, peers in enumerate(peers_by_round, start=1):
        sent = [(W_p.copy(), list(T_p)) for W_p, T_p in zip(W, T)]
        travelled.append(sum(t > 0 for p in range(len(peers)) for t in T[p]))
        for sender, q in enumerate(peers):
            W_s, T_s = sent[sender]
            for i in range(M):
                if T_s[i] > 0:
                    W[q][i] = (T[q][i] * W[q][i] + T_s[i] * W_s[i]) / (T[q][i] + T_s[i])
                    T[q][i] = max(T[q][i], T_s[i])
        for p in range(P):
            rated = train[p]
            if not rated:
                continue
            one = [1.0] * biased
            hessian = np.diag(ridges)
            for i in rated:
                u = np.array([*W[p][i][:K], *one])
                hessian = hessian + 2 * np.outer(u, u)
            t = 0.51 * max(np.linalg.eigvalsh(hessian))
            for _ in range(Q1):
                gradient = ridges * h[p]
                for i, x in rated.items():
                    gradient = gradient + 2 * error(x, W[p][i], h[p], mean, biased) * np.array([*W[p][i][:K], *one])
                h[p] = h[p] - gradient / t
            direction = np.array([*h[p][:K], *one])
            d = 10 * direction @ direction
            for i, x in rated.items():
                for _ in range(Q2 // s + 1 if diminishing else Q2):
                    gradient = 2 * error(x, W[p][i], h[p], mean, biased) * direction + ridges * W[p][i]
                    W[p][i] = W[p][i] - gradient / d
                T[p][i] += 1
    return W, T, h, travelled


def average_by_age(W, T, start):
    out = start.copy()
    for i in range(len(start)):
        if sum(T_p[i] for T_p in T):
            out[i] = sum(T_p[i] * W_p[i] for W_p, T_p in zip(W, T)) / sum(T_p[i] for T_p in T)
    return out


@pytest.fixture
def ratings(comm, folder):
    return write_ratings(comm, folder / "ratings.h5")


def follow(comm, store, *overrides):
    """A run: (federation, history, start, H), the last two at the server."""
    federation = runner.Federation(comm, runner.check(configured("gossip", *overrides)), store)
    start = start_of(comm, federation)
    history = runner.rounds(federation)
    return federation, history, start, comm.gather(federation.shard.h, np.diff(federation.placement.cut), "control")


def expected_of(federation, start, biased, diminishing):
    train, test, w, h = start
    mean = mean_of(train) if biased else 0.0
    peers = [federation.algorithm.draw_peers(s).tolist() for s in range(1, ROUNDS + 1)]
    return naive_gossip(train, w, h, peers, mean, biased, diminishing), peers


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("upload", "schedule"), [("dense", "diminishing"), ("rows", "constant")])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 5e-4)])
@pytest.mark.parametrize("at_once", [None, 5])
def test_rounds_are_the_oracles(comm, ratings, monkeypatch, biased, upload, schedule, dtype, tolerance, at_once):
    if at_once:  # several parts a round, the last one shorter
        row_bytes = (K + biased) * np.dtype(dtype).itemsize + 4
        monkeypatch.setattr(gossip, "IN_FLIGHT_BYTES", 9 * at_once * row_bytes)
    federation, history, start, h = follow(
        comm, ratings, f"model.biases={str(biased).lower()}", f"algorithm.upload={upload}", f"algorithm.q2_schedule={schedule}",
        f"run.dtype={dtype}",
    )  # fmt: skip
    assert federation.algorithm.rows_at_once == (at_once or 14)
    copies = comm.gather(federation.algorithm.copies, np.diff(federation.placement.cut), "control")
    ages = comm.gather(federation.algorithm.ages, np.diff(federation.placement.cut), "control")
    if comm.is_server:
        (W, T, wanted_h, _), _ = expected_of(federation, start, biased, schedule == "diminishing")
        np.testing.assert_array_equal(ages, T)
        np.testing.assert_allclose(copies, W, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(h, wanted_h, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(federation.algorithm.w, average_by_age(W, T, start[2]), rtol=tolerance, atol=tolerance)
        train, test, _, _ = start
        mean = mean_of(train)
        found = {name: values[-1] for name, values in history.per_evaluation.items()}
        np.testing.assert_allclose(found["objective"], objective(train, W, wanted_h, mean, biased), rtol=tolerance)
        np.testing.assert_allclose(found["rmse_train"], rmse(train, train, W, wanted_h, mean, biased), rtol=tolerance)
        np.testing.assert_allclose(found["rmse_test"], rmse(test, train, W, wanted_h, mean, biased), rtol=tolerance)


@pytest.mark.parametrize("upload", ["dense", "rows"])
def test_ledgers_are_the_closed_form(comm, ratings, upload):
    federation = runner.Federation(comm, runner.check(configured("gossip", f"algorithm.upload={upload}")), ratings)
    start = start_of(comm, federation)
    before = comm.ledger.as_array()
    history = runner.rounds(federation)
    moved = comm.ledger.as_array() - before
    up = comm.gather(moved[:, column_of("model_up")].copy()[None], np.ones(comm.size, np.int64), "control")
    if not comm.is_server:
        return
    (_, _, _, travelled), peers = expected_of(federation, start, False, True)
    rows = travelled if upload == "rows" else [9 * 14] * ROUNDS
    row_values = K + 1 + (upload == "rows")  # values, age and index
    row_bytes = 8 * K + 4 + 4 * (upload == "rows")
    for way in ("uplink", "downlink"):
        assert history.per_round[f"{way}_values"] == [n * row_values for n in rows]
        assert history.per_round[f"{way}_bytes"] == [n * row_bytes for n in rows]
    assert federation.algorithm.setup_ledger.uplink_values == 6 * 9
    assert up[:, 0].sum() == up[:, 1].sum()
    assert not up[0].any()  # nothing passes through the server
    if upload == "dense":
        owner = [next(r for r in range(comm.size) if p in federation.placement.clients_of(r)) for p in range(9)]
        for r in range(comm.size):
            sent = sum(owner[p] == r != owner[q] for to in peers for p, q in enumerate(to))
            received = sum(owner[q] == r != owner[p] for to in peers for p, q in enumerate(to))
            np.testing.assert_array_equal(up[r], np.array([sent, received]) * 14 * row_bytes)
    if comm.size <= 2:
        assert up.sum() == 0


def column_of(kind):
    from fedmavg_mpi.ledger import KINDS

    return KINDS.index(kind)


@pytest.mark.parametrize("upload", ["dense", "rows"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_bits_as_one_process(comm, ratings, upload, dtype):
    settings = f"algorithm.upload={upload}", f"run.dtype={dtype}", "model.biases=true"
    federation, history, _, h = follow(comm, ratings, *settings)
    alone, history_alone, _, h_alone = follow(Communicator(MPI.COMM_SELF), ratings, *settings)
    if comm.is_server:
        np.testing.assert_array_equal(federation.algorithm.w, alone.algorithm.w)
        np.testing.assert_array_equal(h, h_alone)
        assert history.per_evaluation == history_alone.per_evaluation


def test_both_uploads_give_the_same_bits(comm, ratings):
    ends = [follow(comm, ratings, f"algorithm.upload={upload}") for upload in ("dense", "rows")]
    np.testing.assert_array_equal(*(federation.algorithm.copies for federation, *_ in ends))
    np.testing.assert_array_equal(*(federation.shard.h for federation, *_ in ends))


def test_evaluation_changes_nothing_else(comm, ratings):
    outcomes = []
    for every in (1, 0):
        before = comm.ledger.as_array()
        federation, *_ = follow(comm, ratings, f"run.evaluate_every={every}")
        outcomes.append((federation.algorithm.copies, (comm.ledger.as_array() - before)[:, column_of("model_up")]))
    for with_it, without in zip(*outcomes):
        np.testing.assert_array_equal(with_it, without)


@pytest.mark.parametrize("n_users", [1, 2])
def test_few_nodes(comm, folder, n_users):
    """A node alone has nobody to send to; ranks without a node idle."""
    store = write_ratings(comm, folder / "few.h5", n_users)
    federation, history, start, h = follow(comm, store)
    if comm.is_server:
        (W, T, wanted_h, _), _ = expected_of(federation, start, False, True)
        np.testing.assert_allclose(h, wanted_h, rtol=1e-10)
        np.testing.assert_allclose(federation.algorithm.w, average_by_age(W, T, start[2]), rtol=1e-10)
        assert history.per_round["uplink_values"] == [(n_users > 1) * 2 * 14 * (K + 1)] * ROUNDS


def test_peers_are_others_and_all_are_likely(comm, ratings):
    algorithm = runner.Federation(comm, runner.check(configured("gossip")), ratings).algorithm
    peers = np.array([algorithm.draw_peers(s) for s in range(1, 2001)])
    assert (peers != np.arange(9)).all()
    for p in range(9):
        counts = np.bincount(peers[:, p], minlength=9)[np.arange(9) != p]
        assert abs(counts - 250).max() < 75  # five standard deviations


def test_too_little_memory_is_refused(comm, ratings, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with raises_everywhere(comm, DataError) as caught:
        runner.Federation(comm, runner.check(configured("gossip")), ratings)
    if comm.is_server:
        assert "needs" in str(caught.value) and "9 nodes" in str(caught.value)


def test_available_memory_heeds_a_batch_jobs_limit(tmp_path):
    group = tmp_path / "sys/fs/cgroup/job/step"
    for folder in ("proc/self", "sys/fs/cgroup/job/step"):
        (tmp_path / folder).mkdir(parents=True)
    assert memory.available(tmp_path) == 2**62
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert memory.available(tmp_path) == 5000 * 1024
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    for folder, limit in ((group, "max"), (group.parent, "2000000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("1500000\n")
    assert memory.available(tmp_path) == 500000
    (group.parent / "memory.stat").write_text("anon 1\ninactive_file 700000\n")
    assert memory.available(tmp_path) == 1200000


def test_check_refuses_clustering_and_fixes_what_does_not_apply():
    with pytest.raises(ConfigError, match="gossip.*clustering.*fedmavg"):
        runner.check(config.read(None, ["algorithm.name=gossip"]))
    chosen = runner.check(configured("gossip", "algorithm.clients_per_round=3", "algorithm.participation=pcp"))
    assert (chosen.algorithm.clients_per_round, chosen.algorithm.step_size_w) == (0, "local")
    assert chosen.aggregation.method == "gather"
