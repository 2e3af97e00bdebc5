"""What a rank finds out about its host, and what it sends."""

import os

import numpy as np
import pytest

from fedmavg_mpi.communicator import connect


@pytest.mark.parametrize("bound", [False, True], ids=["free", "bound to one core"])
def test_ranks_count_the_cores_that_they_have_together(comm, bound):
    usable = sorted(os.sched_getaffinity(0))
    try:
        if bound:
            os.sched_setaffinity(0, {usable[comm.rank % len(usable)]})
        assert connect().ranks_per_core == comm.size / (min(comm.size, len(usable)) if bound else len(usable))
    finally:
        os.sched_setaffinity(0, usable)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_gathered_part_may_lie_in_memory_as_it_likes(comm, order):
    part = np.array(100.0 * comm.rank + np.arange(6).reshape(2, 3), order=order)
    whole = comm.gather(part, np.full(comm.size, 2), "control")
    if comm.is_server:
        expected = [100.0 * rank + np.arange(6).reshape(2, 3) for rank in range(comm.size)]
        np.testing.assert_array_equal(whole, np.concatenate(expected))


@pytest.mark.parametrize("straight", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize("size", [0, 7, 100_000])
def test_sums_and_broadcasts(comm, straight, dtype, size):
    ours = connect()
    ours.straight = straight
    few = [rank for rank in range(comm.size) if rank % 2]  # beside the server

    def of(rank):
        return (np.arange(size) % 10 + rank).astype(dtype)

    for ranks in (comm.everyone, few):
        involved = sorted({0, *ranks})
        total = sum(of(rank) for rank in involved)
        summed, shared, both = of(comm.rank), of(comm.rank), of(comm.rank)
        ours.reduce(summed, "model_up", ranks)
        ours.broadcast(shared, "model_down", ranks)
        ours.allreduce(both, "evaluation", ranks)
        np.testing.assert_array_equal(shared, of(0) if comm.rank in involved else of(comm.rank))
        np.testing.assert_array_equal(both, total if comm.rank in involved else of(comm.rank))
        if comm.is_server:
            np.testing.assert_array_equal(summed, total)
    taken = (comm.size > 1) + (comm.rank in few or (comm.is_server and bool(few)))
    bytes_of = taken * size * np.dtype(dtype).itemsize
    server, worker = comm.is_server * bytes_of, (not comm.is_server) * bytes_of
    assert (ours.ledger.sent["model_down"], ours.ledger.received["model_down"]) == (server, worker)
    assert (ours.ledger.sent["model_up"], ours.ledger.received["model_up"]) == (worker, server)
    assert ours.ledger.sent["evaluation"] == ours.ledger.received["evaluation"] == bytes_of


@pytest.mark.parametrize("straight", [True, False])
def test_a_request_to_stop_is_in_no_sum(comm, straight):
    ours = connect()
    ours.straight = straight
    if not comm.is_server:
        ours.ask_server_to_stop()
    values = np.full(3, 1.0 + comm.rank)
    ours.reduce(values, "model_up", comm.everyone)
    if comm.is_server:
        np.testing.assert_array_equal(values, np.full(3, comm.size * (comm.size + 1) / 2))
        asked = 0
        while asked < comm.size - 1:
            asked += ours.is_asked_to_stop()
    ours.broadcast(values, "control", comm.everyone)  # none asks again before all are counted
