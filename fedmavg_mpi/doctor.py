"""What an installation is made of, whether its parts fit, and what to do where they don't."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import h5py
import numba
import numpy as np
from threadpoolctl import threadpool_info

from fedmavg_mpi import communicator
from fedmavg_mpi.cores import usable_cores
from fedmavg_mpi.kernels import dense

# whose launcher starts whose programs, and what they call themselves
FAMILIES = {"Open MPI": ("open mpi", "openrte"), "MPICH or its kin": ("mpich", "hydra", "intel(r) mpi", "mvapich")}


def examine(comm):
    """Print the report at the server; all ranks call this together.

    Parameters
    ----------
    comm : Communicator

    Returns
    -------
    bool
        Whether nothing is wrong.
    """
    here = json.dumps(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "cores": len(usable_cores()),
            "blas": blas_threads(),
            "cache": numba_cache(),
        }
    ).encode()
    lengths = comm.gather(np.array([len(here)], np.int64), np.ones(comm.size, np.int64), "control")
    lengths = lengths if comm.is_server else np.empty(comm.size, np.int64)
    comm.broadcast(lengths, "control", comm.everyone)
    texts = comm.gather(np.frombuffer(here, np.uint8), lengths, "control")
    if not comm.is_server:
        return True
    ends = np.cumsum(lengths)
    ranks = [json.loads(texts[end - length : end].tobytes()) for end, length in zip(ends, lengths, strict=True)]
    facts, problems = findings(comm.size, ranks)
    print("\n".join(f"{name:<14} {value}" for name, value in facts))
    print("\n".join(f"problem: {problem}" for problem in problems) if problems else "all is well")
    return not problems


def findings(size, ranks):
    """Facts as (name, value) pairs, and problems as sentences with what to do."""
    launched, variable = communicator.launched_size(os.environ)
    hosts = {}
    for rank in ranks:
        hosts.setdefault(rank["host"], []).append(rank)
    blas = ranks[0]["blas"]
    mpirun = shutil.which("mpirun")
    launches, library = mpirun and family(version_of(mpirun)), family(communicator.mpi_library())
    facts = [
        ("fedmavg_mpi", package_version("fedmavg_mpi")),
        ("MPI library", communicator.mpi_library()),
        ("mpi4py", package_version("mpi4py")),
        ("launcher", f"{launched} processes by {variable}" if launched else "none (one process: server and all clients)"),
        ("mpirun", f"{mpirun} ({launches or 'whose is unknown'})" if mpirun else "not on PATH"),
        ("ranks", f"{size} on {', '.join(f'{host} ({len(there)})' for host, there in hosts.items())}"),
        ("cores", ", ".join(f"{host} {there[0]['cores']}" for host, there in hosts.items())),
        (
            "BLAS",
            ", ".join(f"{name} ({threads} threads here; a run takes run.threads)" for name, threads in blas.items()) or "unknown",
        ),
        ("numba", f"{numba.__version__}, kernels kept in {ranks[0]['cache'] or 'memory only'}"),
        ("h5py", f"{h5py.__version__}, HDF5 {h5py.version.hdf5_version}"),
    ]
    problems = []
    if launches and library and launches != library:
        problems.append(
            f"mpirun is of {launches}, the MPI library of {library}: it would start programs that are each alone; put the other's first on "
            "PATH, or load one library's module only"
        )
    if not mpirun and launched is None:
        problems.append("no mpirun on PATH; activate the environment that holds it, or pip install 'fedmavg_mpi[mpich]'")
    if not ranks[0]["cache"]:
        problems.append("numba can write to no cache folder, so every start compiles; set NUMBA_CACHE_DIR to a writable one")
    for host, there in hosts.items():
        workers = len(there) - (size > 1 and ranks[0] in there)
        if workers > there[0]["cores"]:
            problems.append(
                f"{workers} workers share {there[0]['cores']} cores on {host}; start fewer ranks there (the server needs no core)"
            )
    return facts, problems


def family(words):
    """Whose launcher or library calls itself so; empty if that is unknown."""
    return next((name for name, signs in FAMILIES.items() if any(sign in words.lower() for sign in signs)), "")


def version_of(program):
    """What a program answers to ``--version``."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def blas_threads():
    """Threads of each BLAS library that is loaded."""
    return {
        f"{info['internal_api']} {info.get('version') or ''}".strip(): info["num_threads"]
        for info in threadpool_info()
        if info["user_api"] == "blas"
    }


def numba_cache():
    """The folder where compiled kernels are kept; empty if there is none."""
    path = Path(getattr(getattr(dense.local_factor_steps, "stats", None), "cache_path", None) or "")
    if not path.name:
        return ""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return str(path)
    except OSError:
        return ""


def package_version(name):
    """The installed version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
