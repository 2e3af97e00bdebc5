"""Experiments: their runs and client stores, cached below one folder by what was asked for."""

import hashlib
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fedmavg_mpi import __version__, config, results, runner
from fedmavg_mpi import store as stores
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.report.curves import by_evaluation
from fedmavg_mpi.reproduce import worker

LAST_ROUNDS = 10
LOCK = ".reproducing"


@dataclass(frozen=True)
class Experiment:
    """One run of a figure.

    Attributes
    ----------
    panel, curve : str
        Where it is drawn, and its name there.
    settings : Config
        Resolved; ``run.seed`` draws the start and the clients of each round.
    data_seed : int
        Draws the data and cuts them into clients, so that several starts share one data set.
    needs_classes : bool
        Whether the data must come with known classes.
    """

    panel: str
    curve: str
    settings: config.Config
    data_seed: int = 0
    needs_classes: bool = False

    @property
    def store_settings(self):
        """What the client store is made from: the sections that :func:`fedmavg_mpi.runner.prepare` reads."""
        run = config.RunConfig(seed=self.data_seed)
        return config.Config(data=self.settings.data, partition=self.settings.partition, run=run)

    @property
    def store_key(self):
        """Name of the client store."""
        return _key(config.to_toml(self.store_settings), *_files(self.settings.data))

    @property
    def key(self):
        """Name of the run directory."""
        return _key(config.to_toml(self.settings), self.store_key)

    def require_data(self):
        """Raise DataError where the data aren't there."""
        _files(self.settings.data)


@dataclass(frozen=True)
class Curve:
    """What became of an experiment.

    Attributes
    ----------
    experiment : Experiment
    columns : dict of str to ndarray
        One entry an evaluation, as :func:`fedmavg_mpi.report.curves.by_evaluation` gives them.
    seconds : float
        That the rounds took, evaluation included.
    sizes : dict of str to int
        Features, samples and clients of the data.
    """

    experiment: Experiment
    columns: dict
    seconds: float
    sizes: dict

    @property
    def panel(self):
        """Where it is drawn."""
        return self.experiment.panel

    @property
    def name(self):
        """Its name there."""
        return self.experiment.curve

    @property
    def seed(self):
        """The seed of its start."""
        return self.experiment.settings.run.seed

    def __getitem__(self, column):
        """A column."""
        return self.columns[column]

    @property
    def moved_values(self):
        """Values between clients and server so far, both ways."""
        return self["uplink_values"] + self["downlink_values"]

    @property
    def moved_bytes(self):
        """Bytes between clients and server so far, both ways."""
        return self["uplink_bytes"] + self["downlink_bytes"]

    def at_round(self, s, column="objective"):
        """A column's value at the last evaluation up to round ``s``."""
        return float(self[column][np.searchsorted(self["round"], s, side="right") - 1])

    def ending(self, column="objective"):
        """A column's mean over the last rounds, so that the luck of the last draw counts little."""
        return float(self[column][-LAST_ROUNDS:].mean())


def by_name(curves, panel=None):
    """Curves of a panel, several starts under one name: dict of str to list, in the order of appearance."""
    groups = {}
    for curve in curves:
        if panel is None or curve.panel == panel:
            groups.setdefault(curve.name, []).append(curve)
    return groups


def over_starts(curves, panel, value=Curve.ending, middle=np.mean):
    """The mean (or what ``middle`` is) over the starts of ``value(curve)``: dict of str to float."""
    return {name: float(middle([value(curve) for curve in starts])) for name, starts in by_name(curves, panel).items()}


def settings_of(*overrides):
    """A resolved configuration from ``section.key=value`` settings on top of the defaults."""
    return runner.check(config.read(None, [*overrides, "run.progress=off", "run.checkpoint_every=0"]))


class Study:
    """The runs and client stores of all figures in a folder.

    Parameters
    ----------
    out : path-like
    jobs : int
        Runs at a time.
    """

    def __init__(self, out, jobs):
        self.out, self.jobs = Path(out), jobs

    def directory(self, experiment):
        """Its run directory."""
        return self.out / "runs" / experiment.key

    def store(self, experiment):
        """Its client store."""
        return self.out / "stores" / f"{experiment.store_key}.h5"

    def carry_out(self, title, experiments, minutes):
        """Carry out what has not been carried out yet, and read everything.

        Parameters
        ----------
        title : str
            For the progress.
        experiments : sequence of Experiment
        minutes : float
            That all of them take on two cores, about; for the estimate.

        Returns
        -------
        curves : list of Curve
            In the order of ``experiments``.
        n_run : int
            How many runs were missing.
        elapsed : float
            Seconds that they took, their data included.

        Raises
        ------
        FedmavgError
            An experiment that can't be carried out.
        """
        wanted = {experiment.key: experiment for experiment in experiments}  # curves of several panels may be the same run
        read = {key: self._finished(found) for key, found in wanted.items()}
        pending = {key: wanted[key] for key, found in read.items() if found is None}
        share = len(pending) / len(wanted)
        estimate = f", about {max(1, round(minutes * share))} min on 2 cores" if pending else ""
        print(f"{title}: {len(wanted)} runs, {len(pending)} to do{estimate}", file=sys.stderr, flush=True)
        start = time.perf_counter()
        if pending:
            self._run(title, pending)
        elapsed = time.perf_counter() - start
        read |= {key: self._read(found) for key, found in pending.items()}
        return [Curve(experiment, *read[experiment.key]) for experiment in experiments], len(pending), elapsed

    def _run(self, title, pending):
        for folder in ("runs", "stores"):
            try:
                (self.out / folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(f"{self.out}: can't be written ({error.strerror}); choose another --out") from None
        missing = {found.store_key: found for found in pending.values() if not self._is_store(self.store(found))}
        prepare = [
            {"what": "prepare", "config": config.to_toml(found.store_settings), "out": str(self.store(found))}
            for found in missing.values()
        ]
        run = [
            {"what": "run", "config": config.to_toml(self._on_store(found)), "out": str(self.directory(found))}
            for found in pending.values()
        ]
        lock = results.claim(self.out / LOCK, "another fedmavg reproduce is at work there")
        try:
            self._carry_out(title, "store", prepare)
            for found in pending.values():
                if found.needs_classes and stores.ClientStore(self.store(found)).label_names is None:
                    raise DataError(
                        f"{found.settings.data.path}: no classes, which {title} needs; put the label table beside the data"
                    )
            self._carry_out(title, "run", run)
        finally:
            results.release(lock)

    def _carry_out(self, title, unit, tasks):
        if tasks:
            with tqdm(total=len(tasks), desc=title, unit=unit, mininterval=0.2 if sys.stderr.isatty() else 10) as progress:
                worker.carry_out(tasks, self.jobs, lambda task: progress.update())

    def _on_store(self, experiment):
        return config.replace(experiment.settings, "data", source="store", path=str(self.store(experiment).resolve()))

    def _is_store(self, path):
        try:
            stores.ClientStore(path)
        except DataError:
            return False
        return True

    def _finished(self, experiment):
        """The course of a finished run and its seconds; None where there is none that can be read."""
        try:
            return self._read(experiment)
        except DataError:
            return None

    def _read(self, experiment):
        attributes, data = results.read(self.directory(experiment))
        columns = by_evaluation(attributes, data)
        for name in ("nmi", "ari"):  # known at the end only
            if name in attributes:
                columns[name] = np.r_[np.full(columns["round"].size - 1, np.nan), attributes[name]]
        sizes = {name: int(attributes[name]) for name in ("features", "samples", "clients")}
        return columns, float(data["rounds/seconds"].sum()), sizes


def _files(data):
    """Names and contents of the files that a source reads, so that other data of the same name are told apart."""
    if data.source == "synthetic":
        return ()
    place = config.find_data(data.path)
    if not place.exists():
        raise DataError(f"{data.path}: no such file or folder; give the folder that holds {data.path} with --data DIR")
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    return tuple(f"{file.name} {_digest(file)}" for file in files if file.is_file() and not file.name.startswith("."))


@cache
def _digest(path):
    """SHA-256 of a file, read once."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"{path}: can't be read ({error.strerror}); make it readable, or give other data with --data DIR"
        ) from None


def _key(*texts):
    return hashlib.sha256("\n".join([__version__, *texts]).encode()).hexdigest()[:16]
