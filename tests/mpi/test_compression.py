"""Uploads in fewer bits: rounding against plain Python, error feedback, bytes, and where the rounds lead."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from fedmavg_mpi import config, runner
from fedmavg_mpi.communicator import Communicator
from fedmavg_mpi.compression import FORMATS, widened
from fedmavg_mpi.errors import ConfigError
from tests.mpi.conftest import settings


def nearest_bfloat16(x):
    """Of the two bfloat16 beside a float32 the nearer one, the even one of equals: by trying both."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    below, above = bits >> 16, (bits >> 16) + 1
    values = [struct.unpack("<f", struct.pack("<I", upper << 16))[0] for upper in (below, above)]
    distances = [abs(value - struct.unpack("<f", struct.pack("<f", x))[0]) for value in values]
    if distances[0] == distances[1]:
        return values[below % 2]
    return values[int(distances[1] < distances[0])]


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20))
def test_bfloat16_is_the_nearest(numbers):
    zeros, out = np.zeros(len(numbers)), np.empty(len(numbers), np.uint16)
    FORMATS["bfloat16"][1](np.array(numbers), zeros, np.zeros(len(numbers)), out)
    np.testing.assert_array_equal(widened(out), [nearest_bfloat16(x) for x in numbers])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FORMATS)
def test_what_rounding_leaves_over_is_sent_later(name, dtype):
    random = np.random.default_rng(1)
    wire, rounded = FORMATS[name]
    leftover, sent, total = np.zeros(50, dtype), np.zeros(50), np.zeros(50)
    for _ in range(200):
        w, copy = random.random(50).astype(dtype), random.random(50).astype(dtype)
        out = np.empty(50, wire)
        rounded(copy, w, leftover, out)
        sent += widened(out).astype(float)
        total += copy.astype(float) - w
    np.testing.assert_allclose(sent + leftover, total, atol=1e-4 if dtype == np.float32 else 1e-12)
    assert np.abs(leftover).max() < 0.01


def configured(upload_dtype, *more):
    return runner.check(
        settings(
            "aggregation.method=gather",
            f"algorithm.upload_dtype={upload_dtype}",
            "algorithm.clients_per_round=3",
            "stop.max_rounds=40",
            "stop.rel_tol=0",
            *more,
        )
    )


@pytest.mark.parametrize("participation", ["pcc", "pcp"])
@pytest.mark.parametrize(("upload_dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_the_objective_is_reached_with_fewer_bytes(comm, small_store, upload_dtype, itemsize, participation):
    objectives, models_up, uplinks = [], [], []
    for chosen in ("same", upload_dtype):
        federation = runner.Federation(comm, configured(chosen, f"algorithm.participation={participation}"), small_store)
        before = comm.ledger.sent["model_up"]
        history = runner.rounds(federation)
        models_up.append(comm.ledger.sent["model_up"] - before)
        if comm.is_server:
            objectives.append(history.per_evaluation["objective"][-1])
            uplinks.append([sum(history.per_round[name]) for name in ("uplink_values", "uplink_bytes")])
            drawn = sum(len(np.unique(draws)) for draws in history.draws)
    assert models_up[1] * 8 == models_up[0] * itemsize
    if comm.is_server:
        assert objectives[1] == pytest.approx(objectives[0], rel=1e-3)
        assert uplinks[1][0] == uplinks[0][0]
        assert uplinks[0][1] - uplinks[1][1] == drawn * 13 * 4 * (8 - itemsize)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_bits_as_one_process(comm, small_store, dtype):
    ends = []
    for part in (comm, Communicator(MPI.COMM_SELF)):
        federation = runner.Federation(part, configured("bfloat16", f"run.dtype={dtype}"), small_store)
        runner.rounds(federation)
        ends.append(federation.algorithm.w.copy())
    if comm.is_server:
        np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize(
    "overrides",
    [
        ["aggregation.method=reduce"],
        ["aggregation.method=gather", "algorithm.name=kmeans++"],
        ["aggregation.method=gather", "model.kind=ratings", "partition.scheme=by_user", "data.source=store", "data.path=x"],
    ],
)
def test_refused_where_no_copy_of_each_client_travels(overrides):
    with pytest.raises(ConfigError, match="upload_dtype"):
        runner.check(config.read(None, ["algorithm.upload_dtype=float32", *overrides]))
