"""What is left of a run: everything that the run file holds, gathered at the server."""

import hashlib
import platform
import resource
import socket
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np

from fedmavg_mpi import results
from fedmavg_mpi.clock import PHASES
from fedmavg_mpi.communicator import mpi_library
from fedmavg_mpi.ledger import KINDS
from fedmavg_mpi.store import in_data_order

LIBRARIES = ("numpy", "scipy", "numba", "h5py", "mpi4py", "scikit-learn")
OVER_RANKS = {"min": np.min, "mean": np.mean, "max": np.max}


def collect(federation):
    """Gather it.

    Parameters
    ----------
    federation : Federation

    Returns
    -------
    attributes, datasets : dict
        As :meth:`results.OutputDirectory.write` takes them; both None on other ranks.
    """
    comm, settings, placement, shard = federation.comm, federation.settings, federation.placement, federation.shard
    history = federation.history
    bytes_by_kind = comm.ledger.as_array()  # what follows only describes the run
    rows = placement.rows
    one_each = np.ones(comm.size, np.int64)

    def gathered(part, counts=one_each):
        return comm.gather(part, counts, "control")

    digests = gathered(client_digests(shard), np.diff(placement.cut))
    by_rank = gathered(bytes_by_kind[None])
    by_round = gathered(np.array(federation.clock.rounds)[None])  # ranks x (rounds + 1) x phases
    peak = gathered(np.array([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
    h = gathered(shard.private_factors(), rows) if settings.run.save_local_factors else None
    attributes, data = federation.application.outcome(rows, federation.of_row)
    if not comm.is_server:
        return None, None

    order = federation.of_row
    w = federation.application.model.as_rows(federation.algorithm.w)
    data |= {
        **{f"rounds/{name}": np.array(values) for name, values in history.per_round.items()},
        "rounds/drawn": np.array(history.draws, np.int64) if history.draws else np.empty((0, 0), np.int64),
        "rounds/seconds": np.array(history.seconds),
        **{f"rounds/phase_seconds_{name}": of(by_round[:, 1:], axis=0) for name, of in OVER_RANKS.items()},
        "rounds/phase_seconds_server": by_round[0, 1:],
        **{f"evaluations/{name}": np.array(values) for name, values in history.per_evaluation.items()},
        "mpi/sent": by_rank[:, 0],
        "mpi/received": by_rank[:, 1],
        "mpi/server_by_round": np.diff(np.array(history.mpi), axis=0),
        "ranks/phase_seconds": by_round.sum(axis=1),
        "ranks/peak_memory_bytes": peak,
        "clients/of_sample": in_data_order(np.repeat(np.arange(placement.sizes.size), placement.sizes), order),
        "factors/W": w,
    }
    if h is not None:
        data["factors/H"] = np.ascontiguousarray(in_data_order(h, order).T)
    attributes |= {
        **{name: values[-1] for name, values in history.per_evaluation.items() if name not in ("round", "changed")},
        "rounds": len(history.draws),
        "stop_reason": history.stop_reason,
        **{f"setup_{name}": value for name, value in vars(federation.algorithm.setup_ledger).items()},
        "ranks": comm.size,
        "ranks_since_round": history.ranks_since,
        "clients": placement.sizes.size,
        "samples": federation.n_samples,
        "features": federation.n_features,
        "seed": settings.run.seed,
        "dtype": settings.run.dtype,
        "w_sha256": results.sha256(w).hexdigest(),
        "h_sha256": hashlib.sha256(digests.tobytes()).hexdigest(),
        "phases": ", ".join(PHASES),
        "kinds": ", ".join(KINDS),
        "host": socket.gethostname(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "mpi_library": mpi_library(),
        "git_commit": git_commit(),
        **{f"version_{name}": version(name) for name in LIBRARIES},
    }
    return attributes, data


def client_digests(shard):
    """SHA-256 of each client's private factor, so that runs can be compared while H stays: ndarray of uint8 (clients here x 32)."""
    h = shard.private_factors()
    blocks = zip(shard.offsets[:-1], shard.offsets[1:], strict=True)
    return np.frombuffer(b"".join(results.sha256(h[a:b]).digest() for a, b in blocks), np.uint8).reshape(-1, 32)


def git_commit():
    """The commit of a checkout that the package runs from; empty outside one."""
    package = Path(__file__).resolve().parent
    command = ["git", "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    top, commit = done.stdout.split("\n")[:2]
    return commit if Path(top) == package.parent else ""
