"""Runs drawn against rounds and against communication."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from fedmavg_mpi import config, results
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.report.curves import by_evaluation

FORMATS = (".png", ".pdf", ".svg")
QUANTITIES = {
    "objective": "relative objective",
    "accuracy": "clustering accuracy",
    "rmse_test": "RMSE of held-out ratings",
}


def draw_runs(directories, out):
    """Objective and accuracy or error of finished runs, by round and by bytes moved between clients and server, set-up included.

    Parameters
    ----------
    directories : sequence of path-like
        Run directories.
    out : path-like
        Where to draw, a .png, .pdf or .svg file.

    Returns
    -------
    path-like
        ``out``.

    Raises
    ------
    DataError
        No finished run in a directory, nothing finite to draw, or a file that can't be written.
    """
    if Path(out).suffix.lower() not in FORMATS:
        raise DataError(f"{out}: unknown kind of figure, expected a name that ends in {', '.join(FORMATS)}")
    runs = [(_label(directory), by_evaluation(*results.read(directory))) for directory in directories]
    names = [name for name in QUANTITIES if any(np.isfinite(curve.get(name, np.nan)).any() for _, curve in runs)]
    if not names:
        raise DataError(
            f"{', '.join(map(str, directories))}: no evaluation with a finite value, expected one to draw; see fedmavg summary"
        )
    figure, axes = plt.subplots(len(names), 2, figsize=(9, 3.2 * len(names)), sharey="row", squeeze=False)
    for label, curve in runs:
        s = curve["round"]
        gigabytes = (curve["uplink_bytes"] + curve["downlink_bytes"]) / 1e9
        shown = slice(1 if s.size > 1 else 0, None)  # the start lies far above all that follows
        marker = "o" if s.size < 4 else None
        for row, name in zip(axes, names, strict=True):
            values = curve.get(name, np.full(s.size, np.nan))
            values = np.where(np.isfinite(values), values, np.nan)
            row[0].plot(s[shown], values[shown], label=label, marker=marker)
            row[1].plot(gigabytes[shown], values[shown], label=label, marker=marker)
    for row, name in zip(axes, names, strict=True):
        row[0].set_ylabel(QUANTITIES[name])
    axes[-1, 0].set_xlabel("communication round")
    axes[-1, 1].set_xlabel("client-server communication (GB)")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.margins(x=0.02)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=min(3, len(runs)), frameon=False)
    figure.set_layout_engine("constrained")
    return save(figure, out)


def save(figure, *files):
    """Write a figure to each file and close it; returns the first.

    Raises
    ------
    DataError
        A file that can't be written.
    """
    try:
        for out in files:
            figure.savefig(out, dpi=150)
    except OSError as error:
        raise DataError(f"{out}: can't be written ({results.reason(error)}); choose another --out") from None
    finally:
        plt.close(figure)
    return files[0]


def _label(directory):
    """What tells a run apart in a legend."""
    name = Path(directory).name.replace("$", r"\$").lstrip("_")  # marks that matplotlib would read its own way
    try:
        settings = config.read(Path(directory) / results.CONFIG_FILE)
    except config.ConfigError:
        return name
    algorithm = settings.algorithm
    draws = f", m = {algorithm.clients_per_round}, {algorithm.participation.upper()}" if algorithm.clients_per_round else ""
    return f"{name}: {algorithm.name}{draws}"
