"""The tests of tests/mpi under 1, 2, 3 and 4 ranks, with and without the compiler; compiled on one rank they run by themselves."""

import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment

ROOT = Path(__file__).parents[1]


WAYS = [(ranks, jit) for ranks in (1, 2, 3, 4) for jit in ("compiled", "interpreted")]


@pytest.mark.parametrize(("ranks", "jit"), WAYS[1:])
def test_suite_under(ranks, jit):
    command = ["mpirun", "-n", str(ranks), sys.executable, "-m", "pytest", "tests/mpi", "-x", "-p", "no:randomly"]
    env = environment(NUMBA_DISABLE_JIT="1" if jit == "interpreted" else "0", OPENBLAS_NUM_THREADS="1")
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert " passed" in summary and "failed" not in summary


def test_kernels_interpreted():
    """The kernels' own tests without the compiler."""
    command = [sys.executable, "-m", "pytest", "tests/test_kernels.py", "tests/test_tiles.py", "tests/test_clustering.py"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(NUMBA_DISABLE_JIT="1"),
        capture_output=True,
        text=True,
        timeout=500,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-4000:]
