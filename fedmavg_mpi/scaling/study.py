"""A study: which runs it is made of, their stores and configurations, and the runs themselves as child processes.

``DIR/study.toml`` says what the study is, ``DIR/configs/size-N.toml`` and ``DIR/stores/size-N.h5`` are the problem of a size (weak scaling: N
times the first), ``DIR/runs/I`` is the run directory of element I, as in a batch array: repeats go over all numbers of ranks in turn, so
that a drift of the machine meets all of them alike.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from fedmavg_mpi import __version__, config, runner
from fedmavg_mpi import store as stores
from fedmavg_mpi.errors import ConfigError, DataError, LaunchError

STUDY_FILE = "study.toml"
KINDS = ("strong", "weak")
LAUNCHER = "mpirun -n {ranks}"
OF_A_LAUNCHER = ("PMI_", "PMIX_", "OMPI_", "HYDRA_", "HYDI_", "MPIR_", "SLURM_STEP_", "SLURM_PROCID")


@dataclass(frozen=True)
class Study:
    """What is run.

    Attributes
    ----------
    kind : str
        strong: the same problem on all numbers of ranks; weak: samples and clients grow with the workers.
    ranks : tuple of int
        1: one process; else the server and workers.
    rounds, warm_up : int
        Rounds that are timed, after those that aren't.
    repeats : int
        Runs of each number of ranks.
    cores : int
        That the ranks share; 0: one for each rank.
    """

    kind: str
    ranks: tuple
    rounds: int
    warm_up: int
    repeats: int
    cores: int

    @property
    def elements(self):
        """The runs in order: list of ranks."""
        return list(self.ranks) * self.repeats

    def size(self, n_ranks):
        """How many times the first problem so many ranks have."""
        return max(1, n_ranks - 1) if self.kind == "weak" else 1

    def write(self, directory):
        """Say in the study's directory what it is."""
        lines = [
            f"# fedmavg scaling {self.kind}",
            f'version = "{__version__}"',
            f'kind = "{self.kind}"',
            f"ranks = {list(self.ranks)}",
        ]
        lines += [f"{name} = {getattr(self, name)}" for name in ("rounds", "warm_up", "repeats", "cores")]
        (Path(directory) / STUDY_FILE).write_text("\n".join(lines) + "\n")


def read(directory):
    """The study that a directory holds.

    Raises
    ------
    DataError
    """
    path = Path(directory) / STUDY_FILE
    try:
        found = tomllib.loads(path.read_bytes().decode())
        numbers = {name: int(found[name]) for name in ("rounds", "warm_up", "repeats", "cores")}
        return Study(str(found["kind"]), tuple(map(int, found["ranks"])), **numbers)
    except OSError:
        raise DataError(f"{directory}: no scaling study ({STUDY_FILE}) there; give the --out of fedmavg scaling") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: not what fedmavg scaling has written; make the study again") from None


def parse_ranks(text):
    """``1,2,3`` as a tuple, sorted.

    Raises
    ------
    ConfigError
    """
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 10**6 for word in words):
        raise ConfigError(f"--ranks {text!r}, expected whole numbers with commas, as in 1,2,3,5,9")
    return tuple(sorted({int(word) for word in words}))


def prepare(study, directory, path, overrides):
    """Write the study's stores and configurations; where they are written already, see that they are these.

    Parameters
    ----------
    study : Study
    directory : path-like
    path : path-like or None
        The configuration; None: the defaults, which are the paper's synthetic data set.
    overrides : sequence of str
        As for ``fedmavg run --set``.

    Raises
    ------
    ConfigError, DataError
    """
    directory = Path(directory)
    settings = runner.check(config.read(path, overrides))
    if study.kind == "weak" and settings.data.source != "synthetic":
        raise ConfigError(
            f"data.source = {settings.data.source!r} in a weak study, expected 'synthetic', which can grow; make it a strong one"
        )
    # every round does the same work, and all of them are done
    settings = config.replace(settings, "algorithm", penalty_continuation=False)
    settings = config.replace(settings, "stop", max_rounds=study.warm_up + study.rounds, rel_tol=0.0)
    settings = config.replace(settings, "run", progress="off", checkpoint_every=0)
    goes_on = (directory / STUDY_FILE).exists()
    if goes_on and read(directory) != study:
        raise another_study(directory)
    for name in ("configs", "stores", "runs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for size in sorted({study.size(n_ranks) for n_ranks in study.ranks}):
        of_size = settings
        if study.kind == "weak":
            of_size = config.replace(of_size, "data", n_samples=size * settings.data.n_samples)
            of_size = config.replace(of_size, "partition", n_clients=size * settings.partition.n_clients)
            m = settings.algorithm.clients_per_round
            of_size = config.replace(of_size, "algorithm", clients_per_round=size * m)
        own = settings.data.source == "store"
        store = config.find_data(settings.data.path) if own else directory / "stores" / f"size-{size}.h5"
        text = config.to_toml(config.replace(of_size, "data", source="store", path=str(store.resolve())))
        if goes_on:
            if config_of(directory, size).read_text() != text:
                raise another_study(directory)
            continue
        if not own:
            runner.prepare(of_size, store)
        config_of(directory, size).write_text(text)
    study.write(directory)


def another_study(directory):
    """The error where a directory holds a study that isn't this one."""
    return DataError(
        f"{directory}: holds another scaling study; choose another --out, or give the same arguments to go on with it"
    )


def config_of(directory, size):
    """The configuration of a size."""
    return Path(directory) / "configs" / f"size-{size}.toml"


def settings_of(directory, size):
    """Configuration and store of a size."""
    settings = config.read(config_of(directory, size))
    return settings, stores.ClientStore(settings.data.path)


def carry_out(study, directory, launcher, say, before=lambda repeat: None):
    """The runs, one after the other; those that are finished already are left as they are.

    Parameters
    ----------
    study : Study
    directory : path-like
    launcher : str
        With ``{ranks}``.
    say : callable(str)
        Told of each run before it starts.
    before : callable(int)
        Called before each repeat.

    Raises
    ------
    LaunchError
        A run fails.
    """
    for i, n_ranks in enumerate(study.elements):
        if i % len(study.ranks) == 0:
            before(i // len(study.ranks))
        say(f"run {i + 1} of {len(study.elements)}: {n_ranks} rank{'s' if n_ranks > 1 else ''}")
        job = str(config_of(directory, study.size(n_ranks)))
        launch(launcher, n_ranks, ["fedmavg_mpi.cli", "run", job, "--out", str(Path(directory) / "runs" / str(i)), "--resume"])


def launch(launcher, n_ranks, module):
    """Start a Python module on so many ranks and wait for its end.

    Parameters
    ----------
    launcher : str
    n_ranks : int
    module : sequence of str
        Its name and arguments.

    Raises
    ------
    LaunchError
        It can't be started, or fails.
    """
    words = [word.replace("{ranks}", str(n_ranks)) for word in split_launcher(launcher)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_LAUNCHER)}
    done = subprocess.run(
        [*words, sys.executable, "-m", *module], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it says no more"]
        said = next((line for line in lines if "fedmavg: error:" in line), lines[-1]).removeprefix("fedmavg: error: ")
        raise LaunchError(f"a run on {n_ranks} ranks ended with status {done.returncode} ({said})")


def split_launcher(text):
    """The launcher's words.

    Raises
    ------
    ConfigError, LaunchError
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words or not any("{ranks}" in word for word in words):
        raise ConfigError(f"--launcher {text!r}, expected a command with {{ranks}} in it, as in {LAUNCHER!r}")
    if not shutil.which(words[0]):
        raise LaunchError(f"{words[0]}: not found; install an MPI (pip install 'fedmavg_mpi[mpich]'), or give another --launcher")
    return words
