"""The tests of tests/mpi and the doctor once more under Open MPI."""

import shutil
import subprocess
from pathlib import Path

import pytest
from launch import environment

from tests import openmpi

ROOT = Path(__file__).parents[1]


def call(*command, **more):
    """A finished process in Open MPI's environment."""
    env = environment(**openmpi.VARIABLES, OPENBLAS_NUM_THREADS="1", PYTHONPATH=str(ROOT), **more)
    env["PATH"] = f"{openmpi.environment_folder()}/bin:{env['PATH']}"
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, env=env, capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("ranks", "jit", "tests"), [(3, "compiled", "tests/mpi"), (2, "interpreted", "tests/mpi/test_rounds.py")]
)
def test_suite_under(ranks, jit, tests):
    disabled = "1" if jit == "interpreted" else "0"
    done = call("mpirun", "-n", ranks, "python", "-m", "pytest", tests, "-x", "--color=no", NUMBA_DISABLE_JIT=disabled)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert " passed" in summary and "failed" not in summary and "skipped" not in summary


def test_doctor_names_the_library():
    done = call("mpirun", "-n", 2, "fedmavg", "doctor")
    facts = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert "Open MPI v5" in done.stdout and facts["ranks"].startswith("2 on"), done.stdout + done.stderr
    assert facts["mpirun"] == f"{openmpi.FOLDER}/bin/mpirun (Open MPI)"


@pytest.fixture
def other_mpirun():
    """The path of an mpirun of MPICH's."""
    found = shutil.which("mpirun", path=environment()["PATH"])
    if not found or "HYDRA" not in subprocess.run([found, "--version"], capture_output=True, text=True).stdout:
        pytest.skip("the first mpirun on PATH is not MPICH's")
    return Path(found)


def test_a_launcher_of_another_library_is_refused(other_mpirun, tmp_path):
    fedmavg = openmpi.environment_folder() / "bin" / "fedmavg"
    done = call(other_mpirun, "-n", 2, fedmavg, "run", "jobs/demo.toml", "--out", tmp_path / "run")
    assert done.returncode == 2 and done.stderr.count("fedmavg: error: the launcher started 2 processes") == 1
    assert not (tmp_path / "run").exists()


def test_doctor_sees_a_launcher_of_another_library(other_mpirun, tmp_path):
    (tmp_path / "mpirun").symlink_to(other_mpirun)
    done = call("bash", "-c", f"PATH={tmp_path}:$PATH fedmavg doctor")
    assert done.returncode == 2 and "problem: mpirun is of MPICH or its kin, the MPI library of Open MPI" in done.stdout
