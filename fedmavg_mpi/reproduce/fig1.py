"""Figure 1: objective against rounds on synthetic data, Case 2."""

import numpy as np

from fedmavg_mpi.reproduce import drawing, tasks
from fedmavg_mpi.reproduce.claims import Finding, better
from fedmavg_mpi.reproduce.study import Experiment, by_name, over_starts, settings_of

TITLE = "the objective against rounds, on synthetic data under Case 2"
MINUTES = {True: 1.5, False: 4}
ROUNDS = 300
STARTS = {True: 1, False: 3}
EARLY = 50  # rounds after which curves are compared, beside their ends
Q2 = {
    "Q2 = 1": (1, "constant"),
    "Q2 = 10": (10, "constant"),
    "Q2 = 100": (100, "constant"),
    "Q2 = 100, diminishing": (100, "diminishing"),
}
Q1 = (1, 5, 10, 50)
PANELS = {
    "full": "(a) all clients, Q1 = 10",
    "partial": "(b) m = 10, PCC, Q1 = 10",
    "q1": "(c) m = 10, PCC, Q2 = 10 diminishing",
    "participation": "(d) m = 10, Q1 = 10, Q2 = 10 diminishing",
}


def setting(quick):
    """On what the figure is made, in words."""
    return f"{tasks.SYNTHETIC_IN_WORDS}, Case 2; {ROUNDS} rounds, starts: {STARTS[quick]}, of which medians (bands: their range)."


def experiments(quick):
    """The runs of the figure."""

    curves = [
        (panel, curve, {"q2": q2, "q2_schedule": schedule, "clients_per_round": m})
        for panel, m in (("full", 0), ("partial", 10))
        for curve, (q2, schedule) in Q2.items()
    ]
    curves += [("q1", f"Q1 = {q1}", {"q1": q1, "clients_per_round": 10}) for q1 in Q1]
    curves += [("participation", way.upper(), {"participation": way, "clients_per_round": 10}) for way in ("pcc", "pcp")]
    rounds = (f"stop.max_rounds={ROUNDS}", tasks.FIXED_ROUNDS)
    return [
        Experiment(
            panel,
            curve,
            settings_of(
                *tasks.SYNTHETIC, *rounds, *(f"algorithm.{key}={value}" for key, value in keys.items()), f"run.seed={seed}"
            ),
        )
        for panel, curve, keys in curves
        for seed in range(STARTS[quick])
    ]


def draw(curves):
    """The figure."""
    figure, axes = drawing.grid(2, 2)
    lowest = min(curve["objective"].min() for curve in curves)
    for axis, (panel, title) in zip(axes.flat, PANELS.items(), strict=True):
        groups = by_name(curves, panel)
        for name, style in drawing.styles(groups).items():
            drawing.draw_starts(
                axis, groups[name], lambda curve: curve["round"], "objective", middle=np.median, **style, label=name
            )
        axis.set(title=title, xlabel="communication round", ylabel="relative objective")
        # the first rounds lie far above what the curves differ by: up to where the slowest is after a tenth of its rounds
        early = over_starts(curves, panel, lambda curve: curve.at_round(curve["round"][-1] // 10), np.median)
        height = max(early.values()) - lowest
        axis.set_ylim(lowest - 0.05 * height, lowest + 1.1 * height)
        drawing.legend_below(axis)
    return figure


def findings(curves):
    """What the curves say of the paper's claims; all values are medians over the starts."""
    ends = {panel: over_starts(curves, panel, middle=np.median) for panel in PANELS}
    early = {panel: over_starts(curves, panel, lambda curve: curve.at_round(EARLY), np.median) for panel in PANELS}
    constant = ["Q2 = 1", "Q2 = 10", "Q2 = 100"]
    found = []
    for panel, where in (("full", "all clients"), ("partial", "m = 10")):
        for values, when in ((early[panel], f"after {EARLY} rounds"), (ends[panel], "at the end")):
            found.append(
                Finding(
                    f"A larger constant Q2 slows the convergence, {where}, {when}",
                    rises([values[name] for name in constant]),
                    f"objective {when}: {listed({name: values[name] for name in constant})}",
                )
            )
        best = min(ends[panel][name] for name in constant)
        found.append(
            Finding(
                f"Diminishing Q2 does at least as well as any constant Q2, {where}",
                ends[panel]["Q2 = 100, diminishing"] <= best,
                f"objective at the end: {ends[panel]['Q2 = 100, diminishing']:.5f}, the best constant Q2 {best:.5f}",
            )
        )
    gaps = [ends[panel]["Q2 = 100"] - ends[panel]["Q2 = 1"] for panel in ("full", "partial")]
    found.append(
        Finding(
            "The gap between Q2 = 100 and Q2 = 1 widens under partial communication",
            gaps[1] > gaps[0],
            f"at the end {gaps[0]:.5f} with all clients, {gaps[1]:.5f} with m = 10",
        )
    )
    for values, when in ((early["q1"], f"after {EARLY} rounds"), (ends["q1"], "at the end")):
        in_order = [values[f"Q1 = {q1}"] for q1 in Q1]
        found.append(Finding(f"A larger Q1 helps, {when}", rises(in_order[::-1]), f"objective {when}: {listed(values)}"))
        first, middle, last = in_order[0], in_order[2], in_order[3]
        gains = [(first - middle) / (Q1[2] - Q1[0]), (middle - last) / (Q1[3] - Q1[2])]
        found.append(
            Finding(
                f"The returns of a larger Q1 diminish, {when}",
                gains[0] > gains[1] >= 0,
                f"gain a further step: {gains[0]:.1e} from Q1 = {Q1[0]} to {Q1[2]}, {gains[1]:.1e} from {Q1[2]} to {Q1[3]}",
            )
        )
    for values, when in ((early["participation"], f"after {EARLY} rounds"), (ends["participation"], "at the end")):
        found.append(
            Finding(f"PCC beats PCP, {when}", better(values["PCC"], values["PCP"]), f"objective {when}: {listed(values)}")
        )
    return found


def rises(values):
    """Whether each value is above the one before."""
    return all(a < b for a, b in zip(values, values[1:], strict=False))


def listed(values):
    """Objectives by name, in a line."""
    return ", ".join(f"{name} {value:.5f}" for name, value in values.items())
