"""Starting the program as a user would, in a process of its own."""

import os
import subprocess
import sys

LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "HYDRA_", "MPI_", "MPIR_", "SLURM_")


def environment(**more):
    """This environment without what a launcher has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return kept | more


def fedmavg(*arguments, ranks=None, timeout=240, env=(), prefix=()):
    """The finished process of ``fedmavg arguments``, under mpirun if ``ranks`` is given."""
    command = [sys.executable, "-m", "fedmavg_mpi.cli", *map(str, arguments)]
    if ranks:
        command = ["mpirun", "-n", str(ranks), *command]
    return subprocess.run(
        [*prefix, *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**dict(env)),
        stdin=subprocess.DEVNULL,
    )


def error_of(done):
    """The one line on standard error of a process that ended with status 2."""
    lines = done.stderr.strip().splitlines()
    if done.returncode != 2 or len(lines) != 1 or not lines[0].startswith("fedmavg: error: "):
        raise AssertionError(f"status {done.returncode}, expected 2 and one line of error:\n{done.stdout}\n{done.stderr}")
    return lines[0]
