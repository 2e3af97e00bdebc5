"""Recommendation rounds on any number of ranks against plain loops over dense, masked ratings."""

import numpy as np
import pytest

from fedmavg_mpi import runner
from tests.mpi.small_ratings import HIGH, LOW, RIDGE, RIDGE_BIAS, K, configured, write_ratings

N_USERS, N_ITEMS = 11, 9


@pytest.fixture
def ratings(comm, folder):
    return write_ratings(comm, folder / "ratings.h5", N_USERS, N_ITEMS)


def start_of(comm, federation):
    """Training and held-out ratings as dense arrays with NaN where unknown, W and H at the start; at the server."""
    shard, model = federation.shard, federation.application.model
    dense = []
    for block in (shard.train, shard.test):
        part = np.full((shard.h.shape[0], N_ITEMS), np.nan)
        for p in range(part.shape[0]):
            columns = slice(block.indptr[p], block.indptr[p + 1])
            part[p, block.indices[columns]] = block.values[columns]
        dense.append(part)
    rows = np.diff(federation.placement.cut)
    gathered = [comm.gather(np.ascontiguousarray(part), rows, "control") for part in (*dense, shard.h)]
    return (*gathered, federation.algorithm.w.copy(), model)


def naive_rounds(train, h, w, mean, biased, draws_by_round, full, pcp, global_step, by_rows, diminishing):
    """The rounds in plain loops: (W, H) after them. Unknown ratings are NaN; h and w end in c and b with biases."""
    h, w = h.astype(float), w.astype(float)
    ridges = np.array([RIDGE] * K + [RIDGE_BIAS] * biased)
    for s, draws in enumerate(draws_by_round, start=1):
        for p in range(N_USERS):
            rated = np.flatnonzero(~np.isnan(train[p]))
            if rated.size == 0 or (pcp and p not in draws):
                continue
            design = np.column_stack([w[rated, :K], np.ones((rated.size, int(biased)))])
            target = train[p, rated] - (mean + w[rated, K] if biased else 0)
            hessian = 2 * design.T @ design + np.diag(ridges)
            t = 0.51 * np.linalg.eigvalsh(hessian)[-1]
            for _ in range(3):
                h[p] -= (2 * design.T @ (design @ h[p] - target) + ridges * h[p]) / t
        directions = np.column_stack([h[:, :K], np.ones((N_USERS, int(biased)))])
        q2 = 4 // s + 1 if diminishing else 4
        change, rated_by = np.zeros_like(w), np.zeros(N_ITEMS)
        for p in sorted(set(draws)):
            weight = 1 / N_USERS if full else draws.count(p) / len(draws)
            if global_step:
                d = 5 * np.linalg.eigvalsh(2 * directions.T @ directions / N_USERS)[-1]
            else:
                d = 10 * directions[p] @ directions[p]
            copy = w.copy()
            for i in np.flatnonzero(~np.isnan(train[p])):
                for _ in range(q2):
                    offset = mean + h[p, K] if biased else 0
                    residual = directions[p] @ copy[i] + offset - train[p, i]
                    copy[i] -= (2 * residual * directions[p] + ridges * copy[i]) / d
                rated_by[i] += weight
            change += weight * (copy - w)
        if by_rows:
            change[rated_by > 0] /= rated_by[rated_by > 0, None]
        w = w + change
    return w, h


def naive_errors(known, train, h, w, mean, biased):
    """RMSE and MAE of clipped predictions on the ratings that are not NaN."""
    errors = []
    for p, i in zip(*np.nonzero(~np.isnan(known)), strict=True):
        user_known, item_known = (~np.isnan(train[p])).any(), (~np.isnan(train[:, i])).any()
        fitted = user_known and item_known
        predicted = (mean if biased else 0) + w[i, :K] @ h[p, :K] if fitted else mean
        if biased:
            predicted += w[i, K] * item_known + h[p, K] * user_known
        errors.append(np.clip(predicted, LOW, HIGH) - known[p, i])
    return np.sqrt(np.mean(np.square(errors))), np.mean(np.abs(errors))


MODES = [
    # method, upload, weighting, m, participation, step, schedule, biases
    ("reduce", "dense", "clients", 0, "pcc", "global", "diminishing", False),
    ("reduce", "dense", "rows", 4, "pcc", "local", "constant", True),
    ("reduce", "rows", "clients", 4, "pcp", "global", "diminishing", True),
    ("reduce", "rows", "rows", 3, "pcp", "local", "diminishing", False),
    ("allreduce", "dense", "clients", 4, "pcp", "local", "diminishing", True),
    ("allreduce", "dense", "rows", 0, "pcc", "local", "constant", True),
    ("gather", "dense", "clients", 4, "pcc", "global", "diminishing", True),
    ("gather", "rows", "rows", 0, "pcc", "local", "constant", True),
    ("gather", "rows", "clients", 4, "pcp", "local", "diminishing", False),
]


def settings_of(mode, *more):
    method, upload, weighting, m, participation, step, schedule, biases = mode
    return configured(
        "fedmavg",
        f"aggregation.method={method}",
        f"algorithm.upload={upload}",
        f"aggregation.weighting={weighting}",
        f"algorithm.clients_per_round={m}",
        f"algorithm.participation={participation}",
        f"algorithm.step_size_w={step}",
        f"algorithm.q2_schedule={schedule}",
        f"model.biases={str(biases).lower()}",
        *more,
    )


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode)))
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 5e-4)])
def test_rounds_are_the_oracles(comm, ratings, mode, dtype, tolerance):
    federation = runner.Federation(comm, settings_of(mode, f"run.dtype={dtype}"), ratings)
    train, test, h, w, model = start_of(comm, federation)
    history = runner.rounds(federation)
    end_h = comm.gather(federation.shard.h, np.diff(federation.placement.cut), "control")
    if comm.is_server:
        _, _, weighting, m, participation, step, schedule, biases = mode
        draws = [drawn.tolist() for drawn in history.draws]
        mean = np.nanmean(train)
        expected_w, expected_h = naive_rounds(
            train, h, w, mean, biases, draws, m == 0, participation == "pcp" and m > 0, step == "global", weighting == "rows",
            schedule == "diminishing",
        )  # fmt: skip
        np.testing.assert_allclose(federation.algorithm.w, expected_w, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(end_h, expected_h, rtol=tolerance, atol=tolerance)
        for part, known in (("train", train), ("test", test)):
            found = [history.per_evaluation[f"{name}_{part}"][-1] for name in ("rmse", "mae")]
            np.testing.assert_allclose(found, naive_errors(known, train, expected_h, expected_w, mean, biases), rtol=tolerance)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode)))
def test_protocol_ledger_is_the_closed_form(comm, ratings, mode):
    federation = runner.Federation(comm, settings_of(mode), ratings)
    counts, history = federation.application.model.counts, runner.rounds(federation)
    if not comm.is_server:
        return
    _, upload, weighting, m, participation, step, _, biases = mode
    width = K + biases
    for i, draws in enumerate(history.draws):
        drawn = set(draws.tolist())
        updating = len(drawn) if participation == "pcp" and m else N_USERS
        if upload == "dense":
            up = len(drawn) * (N_ITEMS * width + N_ITEMS * (weighting == "rows"))
            up_bytes = 8 * up
        else:
            rows = sum(counts[p] for p in drawn)
            up, up_bytes = rows * (width + 1), rows * (8 * width + 4)
        down = updating * N_ITEMS * width
        if step == "global":
            up, up_bytes, down = up + updating * K, up_bytes + 8 * updating * K, down + len(drawn)
        found = [history.per_round[name][i] for name in ("uplink_values", "uplink_bytes", "downlink_values", "downlink_bytes")]
        assert found == [up, up_bytes, down, 8 * down]


@pytest.mark.parametrize("weighting", ["clients", "rows"])
@pytest.mark.parametrize("participation", ["pcc", "pcp"])
def test_rows_upload_gives_the_dense_ones_bits_and_sends_less(comm, ratings, weighting, participation):
    ends, bytes_up = [], []
    for upload in ("dense", "rows"):
        mode = ("gather", upload, weighting, 4, participation, "local", "diminishing", True)
        federation = runner.Federation(comm, settings_of(mode), ratings)
        before = comm.ledger.sent["model_up"]
        runner.rounds(federation)
        ends.append(federation.algorithm.w.copy())
        bytes_up.append(comm.ledger.sent["model_up"] - before)
    if comm.is_server:
        np.testing.assert_array_equal(*ends)
    elif bytes_up[0]:
        assert bytes_up[1] < bytes_up[0]


def test_rows_that_nobody_drawn_has_rated_stay(comm, ratings):
    mode = ("reduce", "dense", "clients", 2, "pcp", "local", "diminishing", True)
    federation = runner.Federation(comm, settings_of(mode, "stop.max_rounds=1"), ratings)
    train, _, _, start, _ = start_of(comm, federation)
    history = runner.rounds(federation)
    if comm.is_server:
        rated = (~np.isnan(train[history.draws[0]])).any(axis=0)
        np.testing.assert_array_equal(federation.algorithm.w[~rated], start[~rated])
        assert (federation.algorithm.w[rated] != start[rated]).any(axis=1).all()
