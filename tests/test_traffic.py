"""The MPI ledger against the bytes that cross a network interface."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from launch import environment

from fedmavg_mpi import store
from fedmavg_mpi.datasets import Dataset


@pytest.fixture(scope="module")
def namespace():
    """A command prefix that gives a network namespace in which nothing else runs."""
    if os.getuid() != 0 or not shutil.which("ip") or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("a network namespace needs root, unshare and iproute2's ip")
    if "MPICH" not in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout + "MPICH" * bool(
        shutil.which("mpichversion")
    ):
        pytest.skip("shared memory is switched off by MPICH's variables")
    return ["unshare", "-n", "bash", "-c", 'ip link set lo up; exec "$@"', "namespace"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ledger_counts_what_crosses_the_interface(namespace, tmp_path, ranks):
    path = tmp_path / "store.h5"
    store.write(path, Dataset(np.random.default_rng(0).random((40, 20_000))), np.arange(40) % 9, "by hand")
    env = environment(MPIR_CVAR_NOLOCAL="1", MPIR_CVAR_CH4_NETMOD="ofi", FI_PROVIDER="tcp")
    command = [*namespace, "mpirun", "-n", str(ranks), sys.executable, str(Path(__file__).with_name("traffic.py")), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, *_ in lines] == ["rounds", "gather"] + ["broadcast", "allreduce"] * (ranks == 2)
    for name, counted, crossed in lines:
        # a broadcast to more than one rank is relayed by MPI in pieces, with a little more around them
        within = 0.01 if ranks == 2 or name == "gather" else 0.03
        assert int(crossed) == pytest.approx(int(counted), rel=within), name
        assert int(counted) > 1e6
