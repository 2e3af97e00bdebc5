"""Figure 3: clustering accuracy against communication, Case 2, on synthetic and on TCGA data."""

import numpy as np

from fedmavg_mpi.reproduce import drawing, tasks
from fedmavg_mpi.reproduce.claims import Finding
from fedmavg_mpi.reproduce.study import Experiment, by_name, over_starts, settings_of

TITLE = "clustering accuracy against communication, under Case 2"
MINUTES = {True: 2.5, False: 30}
ROUNDS = {True: 500, False: 1500}
STARTS = {True: 1, False: 10}
FEW, EVERYONE, SHARING = "FedMAvg, m = 10", "FedMAvg, all clients", "gradient sharing"
ROBUST = "FedMAvg, m = 10, robust start"  # beyond the paper
BY_ROUNDS = {
    FEW: ("algorithm.clients_per_round=10",),
    ROBUST: ("algorithm.clients_per_round=10", "model.init=robust"),
    EVERYONE: (),
    SHARING: ("algorithm.name=gradient_sharing",),
}
CENTRALIZED = "k-means++, centralized"
# one-shot methods: each has a dial for how much it sends
SUMMARIES = {
    "KM||": ("kmeans_parallel", (10, 40, 160, 640)),
    "BEL": ("bel", (100, 400, 1600, 6400)),
    "CAL": ("cal", (5, 10, 20, 40)),
}
WITHIN = 0.01  # of the centralized accuracy: what counts as reaching it


def setting(quick):
    """On what the figure is made, in words."""
    return (
        f"{tasks.SYNTHETIC_IN_WORDS}; {tasks.TCGA_IN_WORDS}. Q1 = 10, Q2 = 10 diminishing, PCC, penalty raised in stages; until the "
        f"clusters are settled, at most {ROUNDS[quick]} rounds; starts: {STARTS[quick]}. "
        "Curves and the accuracies below are means over the starts, bands their range."
    )


def experiments(quick):
    """The runs of the figure."""
    rounds = (f"stop.max_rounds={ROUNDS[quick]}", "algorithm.penalty_continuation=true")
    curves = {name: [(*keys, *rounds)] for name, keys in BY_ROUNDS.items()}
    curves[CENTRALIZED] = [("algorithm.name=kmeans++",)]
    for name, (algorithm, dial) in SUMMARIES.items():
        curves[name] = [(f"algorithm.name={algorithm}", f"algorithm.summary_size={size}") for size in dial]
    data = {"synthetic": tasks.SYNTHETIC, "TCGA": tasks.TCGA}
    return [
        Experiment(panel, name, settings_of(*keys, tasks.CASES["Case 2"], *more, f"run.seed={seed}"), needs_classes=True)
        for panel, keys in data.items()
        for name, settings in curves.items()
        for more in settings
        for seed in range(STARTS[quick])
    ]


def by_size(starts):
    """The starts of a one-shot method by the size of its summaries: cost, and mean, least and most accuracy, each an ndarray."""
    sizes = {}
    for curve in starts:
        sizes.setdefault(curve.experiment.settings.algorithm.summary_size, []).append(curve)
    accuracies = np.array([[curve["accuracy"][-1] for curve in sizes[size]] for size in sorted(sizes)])
    costs = np.array([np.mean([curve.moved_values[-1] for curve in sizes[size]]) for size in sorted(sizes)])
    return costs, accuracies.mean(axis=1), accuracies.min(axis=1), accuracies.max(axis=1)


def draw(curves):
    """The figure."""
    figure, axes = drawing.grid(1, 2, 5.2, 4.0)
    for axis, panel in zip(axes[0], ("synthetic", "TCGA"), strict=True):
        groups = by_name(curves, panel)
        for name, style in drawing.styles(groups).items():
            if name in BY_ROUNDS:
                drawing.draw_starts(axis, groups[name], moved, "accuracy", skip=first_that_counts(name), **style, label=name)
            elif name in SUMMARIES:
                costs, mean, low, high = by_size(groups[name])
                axis.plot(costs, mean, **style, marker="o", markersize=4, label=name)
                axis.fill_between(costs, low, high, color=style["color"], alpha=0.15, linewidth=0)
            else:
                ends = [curve["accuracy"][-1] for curve in groups[name]]
                axis.axhline(np.mean(ends), **style, label=name)
                axis.axhspan(min(ends), max(ends), color=style["color"], alpha=0.08, linewidth=0)
        axis.set(title=f"{panel}, Case 2", xscale="log", xlabel=drawing.COST_LABEL, ylabel="clustering accuracy", ylim=(0, 1.02))
        drawing.bytes_on_top(axis)
    drawing.shared_legend(figure, axes[0, 0], 4)
    return figure


def findings(curves):
    """What the curves say of the paper's claims."""
    found = []
    for panel in ("synthetic", "TCGA"):
        groups = by_name(curves, panel)
        by_curve = over_starts(curves, panel, lambda curve: curve["accuracy"][-1])
        ends = {name: by_curve[name] for name in (*BY_ROUNDS, CENTRALIZED)}
        level = ends[CENTRALIZED] - WITHIN
        costs = {name: cost_of(name, groups[name], level) for name in BY_ROUNDS}
        few, others = costs[FEW], [costs[EVERYONE], costs[SHARING]]
        words = "; ".join(f"{name} {'never' if np.isinf(cost) else f'{cost:.3g} values'}" for name, cost in costs.items())
        found.append(
            Finding(
                f"FedMAvg with m = 10 reaches the centralized accuracy with less communication, {panel}",
                bool(np.isfinite(few) and few < min(others)),
                f"to {level:.3f}, k-means++ less {WITHIN:g}: {words}. Accuracy at the end: "
                + "; ".join(f"{name} {value:.3f}" for name, value in ends.items()),
            )
        )
        for name in SUMMARIES:
            accuracies = by_size(groups[name])[1]
            found.append(
                Finding(
                    f"{name} ends lower than FedMAvg with m = 10, {panel}",
                    bool(accuracies.max() < ends[FEW]),
                    f"{FEW} {ends[FEW]:.3f}; {name} by the size of its summaries: "
                    + ", ".join(f"{value:.3f}" for value in accuracies),
                )
            )
    return found


def moved(curve):
    """Values between clients and server so far."""
    return curve.moved_values


def first_that_counts(name):
    """A random start has found nothing before round 1; a robust one has."""
    return 0 if name == ROBUST else 1


def cost_of(name, starts, level):
    """Values moved until the mean accuracy of a curve is at a level for the first time; infinite if it never is."""
    at, mean, _, _ = drawing.middle_and_range(starts, moved, "accuracy", skip=first_that_counts(name))
    there = np.flatnonzero(mean >= level)
    return float(at[there[0]]) if there.size else np.inf
