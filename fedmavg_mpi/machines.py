"""Facts about a cluster, read from a TOML file: what its scheduler wants to hear, what a node is, how ranks are started."""

import re
from dataclasses import dataclass
from pathlib import Path

from fedmavg_mpi import config
from fedmavg_mpi.config import key
from fedmavg_mpi.errors import ConfigError

FOLDER = Path("jobs/machines")
TIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
LONGEST = 366 * 86400  # seconds of a limit


@dataclass(frozen=True)
class QueueFacts:
    """What the scheduler wants to hear."""

    partition: str = key("", "partition; empty: the cluster's default")
    account: str = key("", "account that is charged; empty: the user's default")
    qos: str = key("", "quality of service; empty: the default")
    options: tuple = key((), "further sbatch options, as in --constraint=icelake")
    time: str = key("01:00:00", "time limit of a job that asks for none")
    max_time: str = key("", "longest time limit that is granted; empty: unknown")
    max_nodes: int = key(0, "most nodes of a job; 0: unknown", minimum=0)
    signal_seconds: int = key(
        180, "how long before the limit a run is told to write its checkpoint and stop", minimum=1, maximum=65535
    )
    max_requeues: int = key(100, "how often a job goes on after its limit", minimum=0)


@dataclass(frozen=True)
class NodeFacts:
    """What a node is."""

    cores: int = key(1, "cores a node, one a rank", minimum=1)
    scratch: str = key("", "folder for compiled kernels, $NAME allowed; empty: numba's own choice")


@dataclass(frozen=True)
class SoftwareFacts:
    """What makes ``fedmavg`` and its MPI library available on a node."""

    sources: tuple = key((), "files that the shell sources first, $NAME allowed")
    modules: tuple = key((), "environment modules to load")
    environment: str = key("", "folder of the Python environment to activate, $NAME allowed; empty: the one active at submission")
    variables: tuple = key((), "NAME=value, exported")


@dataclass(frozen=True)
class LaunchFacts:
    """How ranks are started."""

    program: str = key("srun", "what starts the ranks", choices=("srun", "mpirun"))
    mpi: str = key("pmi2", "srun --mpi=: pmi2 for MPICH and its kin, pmix for Open MPI", choices=("pmi2", "pmix"))
    options: tuple = key((), "further options of the program")


@dataclass(frozen=True)
class Machine:
    """A cluster, one attribute a section of its file."""

    queue: QueueFacts = QueueFacts()
    nodes: NodeFacts = NodeFacts()
    software: SoftwareFacts = SoftwareFacts()
    launch: LaunchFacts = LaunchFacts()


def read(name):
    """A machine by the name of its file in ``jobs/machines``, or by the file's path.

    Raises
    ------
    ConfigError
        No such machine, or a file that says what no machine has.
    """
    path = Path(name)
    if path.suffix != ".toml":
        path = FOLDER / f"{name}.toml"
        if "/" in name or not path.is_file():
            known = ", ".join(sorted(found.stem for found in FOLDER.glob("*.toml"))) or "none"
            raise ConfigError(f"--machine {name!r}: no {path} here; known: {known}; or give the path of a .toml file")
    return config.read(path, kind=Machine)


def seconds(what, time):
    """The length of a time limit as SLURM writes them: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.

    Raises
    ------
    ConfigError
    """
    found = TIME.fullmatch(time)
    if not found:
        raise ConfigError(
            f"{what} is {ascii(time)}, expected a time as in 90, 01:30:00 or 2-12:00:00 (minutes, HH:MM:SS, D-HH:MM:SS)"
        )
    days, *rest = found.groups()
    rest = [int(part) for part in rest if part is not None]
    if days is not None:
        units = (3600, 60, 1)
    else:
        units = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(rest)]
    total = int(days or 0) * 86400 + sum(part * unit for part, unit in zip(rest, units, strict=False))
    if total > LONGEST:
        raise ConfigError(f"{what} is {time!r}, expected at most a year")
    if total == 0:
        raise ConfigError(f"{what} is {time!r}, expected more than no time at all")
    return total
