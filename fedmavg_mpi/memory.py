"""How much memory there is, so that a run that needs too much is refused before it is killed."""

import socket
import zlib
from pathlib import Path

import numpy as np

from fedmavg_mpi.errors import DataError

GIB = 2**30


def require(comm, nbytes, purpose, advice):
    """Refuse what doesn't fit on a host; all ranks call this together, each with what it is about to take.

    Parameters
    ----------
    comm : Communicator
    nbytes : int
        Needed by this rank.
    purpose, advice : str
        For the message: what it is for, and what to do.

    Raises
    ------
    DataError
        The ranks of a host need more together than is free there.
    """
    name = socket.gethostname().encode()
    mine = np.array([[zlib.crc32(name), nbytes, available()]], np.int64)
    by_rank = comm.gather(mine, np.ones(comm.size, np.int64), "control")
    with comm.together():
        if comm.is_server:
            for host in np.unique(by_rank[:, 0]):
                on_host = by_rank[:, 0] == host
                needed, free = int(by_rank[on_host, 1].sum()), int(by_rank[on_host, 2].min())
                if needed > free:
                    raise DataError(
                        f"{purpose} needs {needed / GIB:.3g} GiB on the host of rank {np.flatnonzero(on_host)[0]}, where "
                        f"{free / GIB:.3g} GiB are free; {advice}"
                    )


def available(root="/"):
    """Bytes that can be taken here: what the system calls available, or less where a control group (a batch job's) sets a limit.

    Parameters
    ----------
    root : path-like
        Of the file system that ``proc`` and ``sys`` stand in.

    Returns
    -------
    int
        2^62 where the system doesn't say.
    """
    root = Path(root)
    free = [2**62]
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        for folder in (base / group.lstrip("/"), *(base / group.lstrip("/")).parents):
            numbers = [text for name in (limit, used) for text in _lines(folder / name)]
            if len(numbers) == 2 and all(text.isdigit() for text in numbers):  # "max" is no limit
                free.append(int(numbers[0]) - int(numbers[1]) + _reclaimable(folder))
            if folder == base:
                break
    return max(0, min(free))


def _reclaimable(folder):
    """The file cache that a control group's use includes and that gives way."""
    words = [line.split() for line in _lines(folder / "memory.stat")]
    return next((int(value) for key, value in words if key in ("inactive_file", "total_inactive_file")), 0)


def _lines(path):
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
