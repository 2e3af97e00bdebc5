"""The run file and its summary.

``run.h5`` (format version 1) holds, as root attributes, what the run was and how it ended; ``/rounds/*``, one entry a round (entry i is round
i + 1); ``/evaluations/*``, one entry an evaluation, the first at round 0; ``/mpi/*``, bytes by rank and kind; ``/ranks/*``; ``/clients/of_sample``;
``/factors/W`` (M x K), ``/labels`` and, if asked for, ``/factors/H`` (K x N), samples in the data set's order.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import h5py
import numpy as np

from fedmavg_mpi.errors import DataError
from fedmavg_mpi.ledger import KINDS
from fedmavg_mpi.store import reason, written_aside

FORMAT = "fedmavg_mpi run"
VERSION = 1
RUN_FILE = "run.h5"
CONFIG_FILE = "config.toml"
CHECKPOINT_FOLDER = "checkpoint"
MEASURES = {
    "accuracy": "accuracy",
    "nmi": "NMI",
    "ari": "ARI",
    "rmse_train": "RMSE (training)",
    "mae_train": "MAE (training)",
    "rmse_test": "RMSE (held out)",
    "mae_test": "MAE (held out)",
}
PROTOCOL = ("uplink_values", "uplink_bytes", "downlink_values", "downlink_bytes")
NUMBERS = ("rounds", "ranks", "clients", "samples", "features", "seed", *(f"setup_{name}" for name in PROTOCOL))
TEXTS = ("stop_reason", "dtype", "w_sha256", "h_sha256", "phases")
# The datasets that every run has, and those that some have, with their axes: numbers of the run, or extents that only have to agree.
DATASETS = {
    **dict.fromkeys((f"rounds/{name}" for name in (*PROTOCOL, "seconds")), ("rounds",)),
    **dict.fromkeys(("evaluations/round", "evaluations/objective"), ("evaluations",)),
    **dict.fromkeys(("mpi/sent", "mpi/received"), ("ranks", "kinds")),
    "ranks/phase_seconds": ("ranks", "phases"),
    "ranks/peak_memory_bytes": ("ranks",),
    "clients/of_sample": ("samples",),
    "factors/W": ("features", "width"),
}
OPTIONAL = {
    **dict.fromkeys((f"rounds/phase_seconds_{name}" for name in ("min", "mean", "max", "server")), ("rounds", "phases")),
    **dict.fromkeys((f"evaluations/{name}" for name in MEASURES), ("evaluations",)),
    "factors/H": ("width", "samples"),
    **dict.fromkeys(("labels", "users/known", "users/ids"), ("samples",)),
    **dict.fromkeys(("items/known", "items/ids", "items/titles"), ("features",)),
    "users/rated_offsets": ("samples + 1",),
    "users/rated_items": ("rated",),
}
OF_TEXTS = ("users/ids", "items/ids", "items/titles")


def claim(path, words):
    """Lock a file that is made for it: an open file, to be given to :func:`release`.

    Raises
    ------
    DataError
        Another process has it; ``words`` say what that one does.
    """
    lock = open(path, "w")  # noqa: SIM115, held until release
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()  # the other process's to remove
        raise DataError(f"{path.parent}: {words}; wait for it, or choose another --out") from None
    except OSError:
        pass  # a file system without locks
    return lock


def release(lock):
    """Give up what :func:`claim` locked."""
    with contextlib.suppress(OSError):
        os.unlink(lock.name)
    lock.close()


class OutputDirectory:
    """Where a run's files go: claimed by one run at a time, and gone again if the run fails.

    Parameters
    ----------
    path : path-like
    force : bool
        Replace a finished run, or one that has stopped at a checkpoint.
    resume : bool
        Either may be there, to be gone on with.

    Attributes
    ----------
    finished : bool
        Whether a finished run is there.

    Raises
    ------
    DataError
        The directory holds a run, is another run's, or can't be made or written.
    """

    LOCK = ".running"

    def __init__(self, path, force=False, resume=False):
        self.path = Path(path)
        self.made = []  # directories that were not there before, the innermost first
        self._lock = None
        try:
            missing = self.path
            while not missing.exists():
                self.made.append(missing)
                missing = missing.parent
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = claim(self.path / self.LOCK, "another run is writing there")
            stopped = (self.path / CHECKPOINT_FOLDER).exists()
            if stopped and not (self.path / CHECKPOINT_FOLDER).is_dir():
                raise DataError(
                    f"{self.path / CHECKPOINT_FOLDER}: a file, expected a folder of checkpoints; remove it, or choose another --out"
                )
            self.finished = (self.path / RUN_FILE).exists() and not stopped  # else it is being replaced
            if self.finished and not force and not resume:
                raise DataError(f"{self.path}: holds a finished run; choose another --out, or --force to replace it")
            if stopped and not force and not resume:
                raise DataError(
                    f"{self.path}: holds a run that has stopped at a checkpoint; --resume to go on with it, or --force to start again"
                )
            if force:
                shutil.rmtree(self.path / CHECKPOINT_FOLDER, ignore_errors=True)
        except OSError as error:
            self.close()
            raise DataError(f"{self.path}: can't be written ({error.strerror}); choose another --out") from None
        except DataError:
            self.close()
            raise
        for leftover in self.path.glob(".clients-*.h5"):  # of a run that was killed
            leftover.unlink(missing_ok=True)

    def close(self):
        """Give the directory up; the ones that were made for it go if nothing is in them."""
        if self._lock is not None:
            release(self._lock)
        for made in self.made:
            with contextlib.suppress(OSError):
                made.rmdir()

    def write(self, config_text, attributes, datasets):
        """Write the run file and the resolved configuration, complete or not at all.

        Parameters
        ----------
        config_text : str
        attributes : dict of str to str, int, float or bool
        datasets : dict of str to ndarray
            By path in the file.
        """
        # both are on the disk before either gets its name
        with written_aside(self.path / CONFIG_FILE) as config_aside, written_aside(self.path / RUN_FILE) as run_aside:
            config_aside.write_text(config_text)
            run_aside.write_bytes(_image(attributes, datasets))


def _image(attributes, datasets):
    """The bytes of an HDF5 file, made in memory: a full disk then fails in one plain write."""
    with h5py.File("run", "w", driver="core", backing_store=False) as file:
        file.attrs.update(format=FORMAT, version=VERSION, **attributes)
        for name, values in datasets.items():
            file[name] = values
        file.flush()
        return file.id.get_file_image()


def sha256(array):
    """SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes())


def read(directory):
    """A finished run: (attributes, datasets), both dicts.

    Raises
    ------
    DataError
        No finished run there, or a file whose parts don't fit each other.
    """
    path = Path(directory) / RUN_FILE
    if not os.path.exists(path):  # unlike Path.exists, also for a name that is too long
        raise DataError(f"{directory}: no finished run ({RUN_FILE}) there; give the directory that fedmavg run named at its end")
    datasets = {}
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = dict(file.attrs)
            if attributes.get("format") != FORMAT or attributes.get("version") != VERSION:
                raise DataError(f"{path}: not a run file of version {VERSION}; run it again")
            file.visititems(lambda name, item: datasets.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: can't be read ({reason(error)}); run it again") from None
    fault = _misfit(attributes, datasets)
    if fault:
        raise DataError(f"{path}: {fault}: cut or changed since it was written; run it again")
    return attributes, datasets


def _misfit(attributes, datasets):
    """What doesn't fit in a run file, in words; None where all does."""
    for names, kinds, words in ((NUMBERS, (int, np.integer), "a whole number"), (TEXTS, str, "a text")):
        for name in names:
            if not isinstance(attributes.get(name), kinds):
                return f"the attribute {name} is {attributes.get(name)!r}, expected {words}"
    extents = {
        **{name: int(attributes[name]) for name in NUMBERS},
        "kinds": len(KINDS),
        "phases": len(attributes["phases"].split(", ")),
    }
    extents["samples + 1"] = extents["samples"] + 1
    for name, axes in (DATASETS | {name: axes for name, axes in OPTIONAL.items() if name in datasets}).items():
        if name not in datasets:
            return f"no {name}"
        found = np.asarray(datasets[name])
        expected = tuple(extents.setdefault(axis, size) for axis, size in zip(axes, found.shape, strict=False))
        if found.shape != expected or len(axes) != found.ndim or found.dtype.kind not in ("SO" if name in OF_TEXTS else "biuf"):
            return f"{name} is of shape {found.shape} and type {found.dtype}, expected {' x '.join(axes)}, here {expected}"
    rounds = datasets["evaluations/round"]
    if rounds.size and not (rounds.dtype.kind in "iu" and 0 <= rounds.min() <= rounds.max() <= extents["rounds"]):
        return f"evaluations/round are not among the {extents['rounds']} rounds"
    return None


def summarize(directory):
    """What a run came to, as one dict of plain values.

    Parameters
    ----------
    directory : path-like

    Returns
    -------
    dict
        The keys of ``fedmavg summary --json``; None where a value doesn't apply.
    """
    attributes, data = read(directory)
    sent, received = data["mpi/sent"], data["mpi/received"]
    evaluation = KINDS.index("evaluation")

    def number(name):
        value = float(attributes.get(name, np.nan))
        return value if np.isfinite(value) else None  # JSON knows no other

    def by_rank(table):
        return [int(row.sum()) - int(row[evaluation]) for row in table]

    seconds = data["rounds/seconds"]
    by_phase = data["ranks/phase_seconds"]
    return {
        "rounds": int(attributes["rounds"]),
        "stop_reason": attributes["stop_reason"],
        **{name: number(name) for name in ("objective", *MEASURES)},
        **{name: int(data[f"rounds/{name}"].sum()) for name in PROTOCOL},
        **{f"setup_{name}": int(attributes[f"setup_{name}"]) for name in PROTOCOL},
        "mpi_sent_bytes": by_rank(sent),
        "mpi_received_bytes": by_rank(received),
        "mpi_evaluation_sent_bytes": [int(row[evaluation]) for row in sent],
        "round_seconds_median": float(np.median(seconds)) if seconds.size else None,
        "phase_seconds": {
            phase: {"min": float(column.min()), "mean": float(column.mean()), "max": float(column.max())}
            for phase, column in zip(attributes["phases"].split(", "), by_phase.T, strict=True)
        },
        "ranks": int(attributes["ranks"]),
        "clients": int(attributes["clients"]),
        "samples": int(attributes["samples"]),
        "features": int(attributes["features"]),
        "peak_memory_bytes": data["ranks/peak_memory_bytes"].tolist(),
        "seed": int(attributes["seed"]),
        "dtype": attributes["dtype"],
        "products": attributes.get("products"),
        "w_sha256": attributes["w_sha256"],
        "h_sha256": attributes["h_sha256"],
    }


def table(summary):
    """A summary as lines for people."""

    def size(nbytes):
        for unit in ("B", "kB", "MB", "GB"):
            if nbytes < 1000:
                break
            nbytes, unit = nbytes / 1000, "TB" if unit == "GB" else unit
        return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"

    rows = [("rounds", f"{summary['rounds']} ({summary['stop_reason']})")]
    names = {"objective": "objective (relative)", **MEASURES}
    rows += [
        (title, f"{summary[name]:.6g}" if name == "objective" else f"{summary[name]:.4f}")
        for name, title in names.items()
        if summary[name] is not None
    ]
    rows += [
        (f"{title} {way}", f"{summary[f'{before}{way}_values']:,} values, {size(summary[f'{before}{way}_bytes'])}")
        for title, before in {"protocol": "", "  before round 1,": "setup_"}.items()
        for way in ("uplink", "downlink")
    ]
    rows += [
        ("MPI sent by rank", ", ".join(map(size, summary["mpi_sent_bytes"]))),
        ("MPI received by rank", ", ".join(map(size, summary["mpi_received_bytes"]))),
        ("  evaluation apart", ", ".join(map(size, summary["mpi_evaluation_sent_bytes"]))),
        ("ranks, clients", f"{summary['ranks']}, {summary['clients']}"),
    ]
    if summary["products"] is not None:
        rows.append(("products with X", summary["products"]))
    if summary["round_seconds_median"] is not None:
        rows.append(("median round", f"{1e3 * summary['round_seconds_median']:.1f} ms"))
    rows.append(("seconds by phase", "least / mean / most over ranks"))
    rows += [
        (f"  {phase}", f"{s['min']:.2f} / {s['mean']:.2f} / {s['max']:.2f}") for phase, s in summary["phase_seconds"].items()
    ]
    width = min(max(len(name) for name, _ in rows), shutil.get_terminal_size().columns // 2)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def as_json(summary):
    """A summary as one JSON object."""
    return json.dumps(summary, indent=2)
