"""How a rank finds out whether it shares its core."""

import os

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
