"""The study's figures: speed-up and efficiency, phases, and the projection."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from fedmavg_mpi.scaling import table as tables

WIDE = 12.5
PALETTE = {
    "local factor": "#0072b2",
    "shared factor": "#56b4e9",
    "evaluation": "#009e73",
    "step size": "#e69f00",
    "average": "#d55e00",
    "broadcast": "#cc79a7",
    "control": "#f0e442",
    "wait": "#dddddd",
}
LIMIT_MARKS = {"average": "s", "server": "D", "bookkeeping": "^", "small messages": "X"}


def draw_study(study, found, paths):
    """Speed-up, efficiency and phases, measured, ideal and by the model.

    Parameters
    ----------
    study : Study
    found : list of Point
    paths : sequence of path-like
    """
    base, x = found[0], np.array([point.n_ranks for point in found])
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(WIDE, 4.2), layout="constrained")
    ideal = [tables.speed_up(study, base, point, tables.ideal(study, base, point.n_ranks)) for point in found]
    measured = [tables.speed_up(study, base, point) for point in found]
    left.plot(x, ideal, color="0.5", linestyle=":", label="ideal on the cores at hand")
    middle.axhline(1, color="0.5", linestyle=":")
    efficiency = np.array(measured) / ideal
    spread = np.array([[point.median / max(point.seconds), point.median / min(point.seconds)] for point in found])
    for axis, y in ((left, np.array(measured)), (middle, efficiency)):
        axis.errorbar(
            x, y, np.abs(y[:, None] * (spread - 1)).T, marker="o", color="#0072b2", capsize=3, label="measured (bars: the runs)"
        )
    if all(point.terms for point in found):
        model = np.array([tables.speed_up(study, base, point, point.model) for point in found])
        left.plot(x, model, color="#d55e00", linestyle="--", marker="x", label="cost model")
        middle.plot(x, model / ideal, color="#d55e00", linestyle="--", marker="x", label="cost model")
    left.set_ylabel("speed-up" if study.kind == "strong" else "speed-up (work grows with the workers)")
    middle.set_ylabel("efficiency (ideal round over measured round)")
    middle.set_ylim(0, max(1.15, 1.05 * efficiency.max()))
    left.set_ylim(0)
    for axis in (left, middle):
        axis.set_xscale("log")
        axis.grid(alpha=0.3)
        _name_ranks(axis, x)
    _draw_phases(right, found)
    title = f"{study.kind} scaling, rounds of {_problem(found)}"
    figure.suptitle(title, fontsize="medium")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    _save(figure, paths)


def _problem(found):
    sizes = sorted({(point.n_samples, point.n_clients) for point in found})
    words = [f"{n:,} samples of {p:,} clients" for n, p in (sizes[0], sizes[-1])]
    return words[0] if words[0] == words[1] else " to ".join(words)


def _draw_phases(axis, found):
    """The mean worker's phases, and the waiting, stacked."""
    places = np.arange(len(found))
    bottom = np.zeros(len(found))
    for name in found[0].phases:
        heights = 1e3 * np.array([_mean_worker(point, name) for point in found])
        axis.bar(places, heights, bottom=bottom, width=0.7, color=PALETTE.get(name, "0.3"), label=name)
        bottom += heights
    axis.plot(places, [1e3 * point.median for point in found], "k_", markersize=18, label="round")
    axis.set_xticks(places, [str(point.n_ranks) for point in found])
    axis.set_xlabel("ranks")
    axis.set_ylabel("milliseconds a round, mean worker")
    axis.set_ylim(0, 1.05 * max(bottom.max(), max(1e3 * point.median for point in found)))
    axis.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _mean_worker(point, phase):
    """Mean seconds over the workers, the server left out."""
    over, n = point.phases[phase], point.n_ranks
    return over["mean"] if n == 1 else max(0.0, (n * over["mean"] - over["server"]) / (n - 1))


def draw_projection(families, paths):
    """Predicted rounds over ranks, a panel a family, a line a number of clients, with its limit marked.

    Parameters
    ----------
    families : dict of str to list of Curve
    paths : sequence of path-like
    """
    figure, axes = plt.subplots(1, len(families), figsize=(WIDE, 4.6), sharey=True, layout="constrained")
    clients = sorted({curve.problem.n_clients for curves in families.values() for curve in curves})
    colors = dict(zip(clients, plt.get_cmap("viridis")(np.linspace(0, 0.85, len(clients))), strict=True))
    marked = set()
    for axis, (title, curves) in zip(axes, families.items(), strict=True):
        for curve in curves:
            color = colors[curve.problem.n_clients]
            label = f"P = $10^{{{np.log10(curve.problem.n_clients):g}}}$"
            axis.plot(curve.ranks, curve.seconds, color=color, label=label)
            if curve.limit:
                n_ranks, term = curve.limit
                marked.add(term)
                y = curve.seconds[curve.ranks.index(n_ranks)]
                axis.plot(n_ranks, y, LIMIT_MARKS[term], color=color, markeredgecolor="k", markersize=8)
        axis.set_title(title, fontsize="medium")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("ranks, each with a core")
        axis.grid(alpha=0.3)
        _name_ranks(axis, [r for r in curves[0].ranks if np.log2(r) % 2 == 0 or r == curves[0].ranks[0]])
    axes[0].set_ylabel("seconds a round, predicted")
    handles, labels = axes[0].get_legend_handles_labels()
    for term in sorted(marked):
        handles += axes[0].plot([], [], LIMIT_MARKS[term], color="w", markeredgecolor="k", markersize=8)
        labels.append(f"{term} over clients' work")
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    _save(figure, paths)


def _name_ranks(axis, ranks):
    axis.xaxis.set_major_locator(FixedLocator(list(ranks)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if axis.get_xlabel() == "":
        axis.set_xlabel("ranks (server + workers)")


def _save(figure, paths):
    try:
        for path in paths:
            figure.savefig(Path(path), dpi=150)
    finally:
        plt.close(figure)
