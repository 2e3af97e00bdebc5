"""Whole rounds on any number of ranks against the oracle."""

import naive
import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

from fedmavg_mpi import runner
from fedmavg_mpi.communicator import Communicator
from fedmavg_mpi.kernels import tiles
from tests.mpi.conftest import pooled, settings, whole_factors, write_small_store

MODES = [
    # method, clients_per_round, participation, step_size_w, q2_schedule
    ("reduce", 0, "pcc", "global", "diminishing"),
    ("reduce", 3, "pcc", "global", "diminishing"),
    ("reduce", 3, "pcp", "global", "constant"),
    ("reduce", 2, "pcp", "local", "diminishing"),
    ("allreduce", 0, "pcc", "local", "constant"),
    ("allreduce", 3, "pcc", "global", "diminishing"),
    ("allreduce", 2, "pcp", "global", "diminishing"),
    ("gather", 0, "pcc", "global", "diminishing"),
    ("gather", 3, "pcc", "local", "constant"),
    ("gather", 3, "pcp", "global", "diminishing"),
]
ROUNDS = 5


def configured(method, m, participation, step, schedule, *more):
    return settings(
        f"aggregation.method={method}",
        f"algorithm.clients_per_round={m}",
        f"algorithm.participation={participation}",
        f"algorithm.step_size_w={step}",
        f"algorithm.q2_schedule={schedule}",
        "algorithm.q1=3",
        "algorithm.q2=4",
        f"stop.max_rounds={ROUNDS}",
        *more,
    )


def follow(comm, store, chosen):
    """A run of the package: (federation, history, W, H) after it, and what the oracle makes of the same draws."""
    federation = runner.Federation(comm, chosen, store)
    start = whole_factors(federation)
    history = runner.rounds(federation)
    end = whole_factors(federation)
    if not comm.is_server:
        return federation, history, None, None
    algorithm = chosen.algorithm
    full = algorithm.clients_per_round == 0
    expected = naive.fedmavg(
        pooled(store, chosen.run.dtype),
        start[0].astype(np.float64),
        [h.astype(np.float64) for h in start[1]],
        [draws.tolist() for draws in history.draws],
        full,
        algorithm.participation == "pcp" and not full,
        algorithm.q1,
        algorithm.q2,
        algorithm.q2_schedule == "diminishing",
        chosen.model.rho,
        chosen.model.nu,
        algorithm.step_size_w == "global",
    )
    return federation, history, end, expected


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode)))
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 2e-4)])
def test_rounds_are_the_oracles(comm, small_store, mode, dtype, tolerance):
    _, history, end, expected = follow(comm, small_store, configured(*mode, f"run.dtype={dtype}"))
    if comm.is_server:
        w, h, objectives = expected
        np.testing.assert_allclose(end[0], w, rtol=tolerance, atol=tolerance)
        for found, wanted in zip(end[1], h, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(history.per_evaluation["objective"], objectives, rtol=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("products", ["tiles", "blas"] if tiles.COMPILED else ["blas"])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode[0] == "gather"], ids=lambda mode: "-".join(map(str, mode)))
def test_gather_gives_the_bits_of_one_process(comm, small_store, mode, products, dtype):
    """However products are formed, which ``auto`` may decide either way."""
    ends = []
    for part in (comm, Communicator(MPI.COMM_SELF)):
        federation = runner.Federation(part, configured(*mode, f"run.products={products}", f"run.dtype={dtype}"), small_store)
        assert federation.shard.products.name == products
        runner.rounds(federation)
        ends.append(whole_factors(federation))
    if comm.is_server:
        (w, h), (wanted_w, wanted_h) = ends
        np.testing.assert_array_equal(w, wanted_w)
        np.testing.assert_array_equal(np.hstack(h), np.hstack(wanted_h))


@pytest.mark.parametrize("method", ["reduce", "gather"])
def test_sparse_samples_give_what_dense_ones_give(comm, folder, method):
    random = np.random.default_rng(3)
    dense = random.random((60, 13)) * (random.random((60, 13)) < 0.2)
    store = write_small_store(comm, folder / "sparse.h5", sparse.csr_array(dense))
    _, history, end, expected = follow(comm, store, configured(method, 3, "pcc", "global", "diminishing"))
    if comm.is_server:
        np.testing.assert_allclose(end[0], expected[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(history.per_evaluation["objective"], expected[2], rtol=1e-10)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode)))
def test_protocol_ledger_is_the_closed_form(comm, small_store, mode):
    chosen = configured(*mode)
    federation, history, _, _ = follow(comm, small_store, chosen)
    if comm.is_server:
        _, m, participation, step, _ = mode
        for i, draws in enumerate(history.draws):
            found = [
                history.per_round[name][i] for name in ("uplink_values", "uplink_bytes", "downlink_values", "downlink_bytes")
            ]
            expected = naive.closed_form(draws.tolist(), 7, participation == "pcp", m == 0, 13, 4, 8, step == "global")
            assert tuple(found) == expected
        setup = 3 * 7 + (7 * 16 if participation == "pcp" and step == "global" else 0)
        assert federation.algorithm.setup_ledger.uplink_values == setup


def test_mpi_ledger_is_the_buffers_bytes(comm, small_store):
    """Model traffic of a full-participation run: W down once a round to each worker, one sum up, by every worker."""
    federation = runner.Federation(comm, configured("reduce", 0, "pcc", "global", "diminishing"), small_store)
    before = dict(comm.ledger.sent), dict(comm.ledger.received)
    runner.rounds(federation)
    sent = {kind: comm.ledger.sent[kind] - before[0][kind] for kind in before[0]}
    received = {kind: comm.ledger.received[kind] - before[1][kind] for kind in before[1]}
    owns = bool(federation.shard.sizes.size)
    w_bytes, alone = 13 * 4 * 8, comm.size == 1
    # after the last round W goes out once more, to be evaluated
    if alone:
        assert sum(sent.values()) == sum(received.values()) == 0
    elif comm.is_server:
        assert (sent["model_down"], received["model_down"]) == (ROUNDS * w_bytes, 0)
        assert (sent["model_up"], received["model_up"]) == (0, ROUNDS * w_bytes)
        assert sent["step_size"] == ROUNDS * 8
        assert received["step_size"] == ROUNDS * 16 * 8
        assert received["evaluation"] == (ROUNDS + 1) * (4 * 8 + 4 * 3 * 8)
        assert sent["evaluation"] == w_bytes
    elif owns:
        assert (sent["model_down"], received["model_down"]) == (0, ROUNDS * w_bytes)
        assert (sent["model_up"], received["model_up"]) == (ROUNDS * w_bytes, 0)
        assert (sent["step_size"], received["step_size"]) == (ROUNDS * 16 * 8, ROUNDS * 8)
        assert (sent["evaluation"], received["evaluation"]) == ((ROUNDS + 1) * (4 * 8 + 4 * 3 * 8), w_bytes)


@pytest.mark.parametrize("participation", ["pcc", "pcp"])
@pytest.mark.parametrize("method", ["reduce", "allreduce", "gather"])
def test_turning_evaluation_off_changes_nothing_else(comm, small_store, method, participation):
    outcomes = []
    for every in (1, 0):
        chosen = configured(method, 2, participation, "global", "diminishing", f"run.evaluate_every={every}")
        federation = runner.Federation(comm, chosen, small_store)
        before = dict(comm.ledger.sent)
        runner.rounds(federation)
        traffic = {kind: comm.ledger.sent[kind] - before[kind] for kind in before}
        outcomes.append((whole_factors(federation), traffic))
    (with_factors, with_traffic), (without_factors, without_traffic) = outcomes
    if comm.is_server:
        np.testing.assert_array_equal(with_factors[0], without_factors[0])
    if comm.size > 1:
        evaluations = with_traffic.pop("evaluation"), without_traffic.pop("evaluation")
        assert evaluations[0] > evaluations[1] or not federation.shard.sizes.size
    if participation == "pcc":  # under PCP an evaluation may have brought W to ranks that the next round needs
        assert with_traffic == without_traffic


@pytest.mark.parametrize("n_clients", [1, 2])
def test_more_ranks_than_clients_idle(comm, folder, n_clients):
    store = write_small_store(comm, folder / "few.h5", client_of_sample=np.arange(60) % n_clients)
    _, _, end, expected = follow(comm, store, configured("gather", 0, "pcc", "global", "diminishing"))
    if comm.is_server:
        np.testing.assert_allclose(end[0], expected[0], rtol=1e-10, atol=1e-12)


def test_all_zero_data_make_no_nan(comm, folder):
    store = write_small_store(comm, folder / "zero.h5", samples=np.zeros((60, 13)))
    federation, history, end, _ = follow(comm, store, configured("reduce", 3, "pcp", "local", "diminishing"))
    if comm.is_server:
        assert np.isfinite(end[0]).all() and all(np.isfinite(h).all() for h in end[1])
        assert np.isfinite(history.per_evaluation["objective"]).all()


def test_penalty_continuation_raises_rho_and_stops_when_clusters_settle(comm, small_store):
    chosen = configured(
        "reduce",
        0,
        "pcc",
        "global",
        "diminishing",
        "algorithm.penalty_continuation=true",
        "stop.max_rounds=3000",
        "model.rho=1e-6",
    )
    federation = runner.Federation(comm, chosen, small_store)
    history = runner.rounds(federation)
    if comm.is_server:
        rhos = np.array(history.per_round["rho"])
        assert history.stop_reason == "clusters settled"
        assert rhos[0] == 1e-6
        steps = rhos[1:] / rhos[:-1]
        assert ((steps == 1) | np.isclose(steps, 1.5)).all() and (steps > 1).sum() >= 1


def test_gradient_sharing_is_a_projected_gradient_step(comm, small_store):
    """W <- Pi(W - sum_p w_p grad_W F_p / d), written out."""
    chosen = runner.check(
        configured("reduce", 3, "pcp", "local", "diminishing", "algorithm.name=gradient_sharing", "data.path=x")
    )
    assert (chosen.algorithm.clients_per_round, chosen.algorithm.q2, chosen.algorithm.step_size_w) == (0, 1, "global")
    federation = runner.Federation(comm, chosen, small_store)
    start = whole_factors(federation)
    history = runner.rounds(federation)
    end = whole_factors(federation)
    if comm.is_server:
        x, (w, h) = pooled(small_store), start
        rho, nu, n_samples = naive.penalties(x, chosen.model.rho, chosen.model.nu)
        for _ in range(ROUNDS):
            h = [naive.update_h(x_p, w, h_p, rho, nu, n_samples, 3) for x_p, h_p in zip(x, h)]
            gradient = sum(x_p.shape[1] / n_samples * 2 * (w @ h_p - x_p) @ h_p.T / x_p.shape[1] for x_p, h_p in zip(x, h))
            w = np.clip(w - gradient / naive.step_size_w(h, True)[0], 0, max(x_p.max() for x_p in x))
        np.testing.assert_allclose(end[0], w, rtol=1e-10, atol=1e-12)
        assert history.per_round["uplink_values"] == [7 * (13 * 4 + 16)] * ROUNDS


def test_fedavg_is_pcp_with_constant_steps(comm, small_store):
    plain = configured("reduce", 3, "pcp", "global", "constant")
    named = runner.check(configured("reduce", 3, "pcc", "global", "diminishing", "algorithm.name=fedavg", "data.path=x"))
    ends = []
    for chosen in (plain, named):
        federation = runner.Federation(comm, chosen, small_store)
        runner.rounds(federation)
        ends.append(whole_factors(federation)[0])
    if comm.is_server:
        np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("method", ["reduce", "allreduce", "gather"])
@pytest.mark.parametrize("participation", ["pcc", "pcp"])
def test_many_different_groups_of_drawn_ranks(comm, small_store, method, participation, monkeypatch):
    """More groups than are kept: all ranks must let go of the same ones."""
    monkeypatch.setattr("fedmavg_mpi.communicator.GROUPS_KEPT", 2)
    chosen = configured(method, 2, participation, "local", "constant", "stop.max_rounds=40", "run.evaluate_every=0")
    history = runner.rounds(runner.Federation(comm, chosen, small_store))
    if comm.is_server:
        assert len(history.draws) == 40
