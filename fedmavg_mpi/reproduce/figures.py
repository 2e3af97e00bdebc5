"""The figures by name, and the way from one's experiments to its files. A new figure is a module here and its name in ``NAMES``."""

import csv
from importlib import import_module
from pathlib import Path

import numpy as np

from fedmavg_mpi.report import plots
from fedmavg_mpi.report.curves import PROTOCOL
from fedmavg_mpi.reproduce import NAMES, claims
from fedmavg_mpi.reproduce.study import Study
from fedmavg_mpi.store import written_aside

FIGURES = {name: import_module(f"{__package__}.{name}") for name in NAMES}
MEASURES = ("objective", "accuracy", "nmi", "ari", "rmse_train", "mae_train", "rmse_test", "mae_test")


def reproduce(names, out, quick, jobs):
    """Make figures: their runs, ``NAME.csv``, ``NAME.png``, ``NAME.pdf``, ``NAME.json``, and the report on all that the folder holds.

    Parameters
    ----------
    names : sequence of str
        Of :data:`FIGURES`.
    out : path-like
    quick : bool
        One start a curve, and a smaller map.
    jobs : int
        Runs at a time.

    Returns
    -------
    list of Path
        What to look at: the pictures and the report.
    """
    out = Path(out)
    asked = {name: FIGURES[name].experiments(quick) for name in names}
    for experiments in asked.values():
        for experiment in experiments:
            experiment.require_data()
    made = []
    for name, experiments in asked.items():
        figure = FIGURES[name]
        curves, n_run, elapsed = Study(out, jobs).carry_out(name, experiments, figure.MINUTES[quick])
        header, rows = getattr(figure, "table", table)(curves)
        write_csv(out / f"{name}.csv", header, rows)
        made.append(plots.save(figure.draw(curves), out / f"{name}.png", out / f"{name}.pdf"))
        by_run = {curve.experiment.key: curve.seconds for curve in curves}
        times = claims.Times(len(by_run), sum(by_run.values()), n_run, elapsed)
        setting = f"{figure.setting(quick)} {sizes_in_words(curves)}"
        claims.leave(out, name, figure.TITLE, setting, quick, figure.findings(curves), times)
        report = claims.write_report(out, NAMES)
    return [*made, report]


def sizes_in_words(curves):
    """How large the data were, as the runs found them."""
    found = {(curve.experiment.settings.data.source, *curve.sizes.values()): None for curve in curves}  # each once, in order
    return "; ".join(f"{source}: M = {m}, N = {n}, P = {p}" for source, m, n, p in found).capitalize() + "."


def table(curves):
    """The curves in long format, a row an evaluation.

    Returns
    -------
    header : list of str
    rows : iterator of list
    """
    measures = [name for name in MEASURES if any(name in curve.columns for curve in curves)]
    columns = ["round", *measures, *PROTOCOL]
    return [*("panel", "curve", "seed", "clients_per_round", "summary_size"), *columns, "run"], _rows(curves, columns)


def _rows(curves, columns):
    for curve in curves:
        algorithm = curve.experiment.settings.algorithm
        which = [curve.panel, curve.name, curve.seed, algorithm.clients_per_round, algorithm.summary_size]
        unknown = np.full(curve["round"].size, np.nan)
        for values in zip(*(curve.columns.get(name, unknown).tolist() for name in columns), strict=True):
            yield [*which, *values, curve.experiment.key]


def write_csv(path, header, rows):
    """Write a table; numbers keep every digit."""
    with written_aside(path) as aside, open(aside, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
