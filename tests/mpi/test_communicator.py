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
        assert connect().has_own_core == (comm.size <= len(usable))
    finally:
        os.sched_setaffinity(0, usable)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_gathered_part_may_lie_in_memory_as_it_likes(comm, order):
    part = np.array(100.0 * comm.rank + np.arange(6).reshape(2, 3), order=order)
    whole = comm.gather(part, np.full(comm.size, 2), "control")
    if comm.is_server:
        expected = [100.0 * rank + np.arange(6).reshape(2, 3) for rank in range(comm.size)]
        np.testing.assert_array_equal(whole, np.concatenate(expected))
