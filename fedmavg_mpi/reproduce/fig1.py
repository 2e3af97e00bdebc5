"""Figure 1: objective against rounds on synthetic data, Case 2."""

from fedmavg_mpi.reproduce import drawing, tasks
from fedmavg_mpi.reproduce.claims import Finding
from fedmavg_mpi.reproduce.study import Experiment, settings_of

TITLE = "the objective against rounds, on synthetic data under Case 2"
MINUTES = {True: 0.5, False: 5}
ROUNDS = {True: 150, False: 300}
EARLY = 50  # rounds after which PCC and PCP are compared
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
    return f"{tasks.synthetic_in_words(quick)}, Case 2, one start; {ROUNDS[quick]} rounds."


def experiments(quick):
    """The runs of the figure."""

    def experiment(panel, curve, **algorithm):
        keys = [f"algorithm.{key}={value}" for key, value in algorithm.items()]
        rounds = (f"stop.max_rounds={ROUNDS[quick]}", tasks.FIXED_ROUNDS)
        return Experiment(panel, curve, settings_of(*tasks.SYNTHETIC[quick], *rounds, *keys))

    found = [
        experiment(panel, curve, q2=q2, q2_schedule=schedule, clients_per_round=m)
        for panel, m in (("full", 0), ("partial", 10))
        for curve, (q2, schedule) in Q2.items()
    ]
    found += [experiment("q1", f"Q1 = {q1}", q1=q1, clients_per_round=10) for q1 in Q1]
    found += [experiment("participation", way.upper(), participation=way, clients_per_round=10) for way in ("pcc", "pcp")]
    return found


def draw(curves):
    """The figure."""
    figure, axes = drawing.grid(2, 2)
    lowest = min(curve["objective"].min() for curve in curves)
    for axis, (panel, title) in zip(axes.flat, PANELS.items(), strict=True):
        groups = drawing.by_name(curves, panel)
        for name, style in drawing.styles(groups).items():
            drawing.draw_starts(axis, groups[name], lambda curve: curve["round"], "objective", **style, label=name)
        axis.set(title=title, xlabel="communication round", ylabel="relative objective")
        # the first rounds lie far above what the curves differ by
        axis.set_ylim(lowest - 0.05 * (top(groups) - lowest), top(groups))
        drawing.legend_below(axis)
    return figure


def top(groups):
    """Upper end of a panel's scale: where the slowest curve is after a tenth of its rounds."""
    return max(curve.at_round(curve["round"][-1] // 10) for starts in groups.values() for curve in starts)


def findings(curves):
    """What the curves say of the paper's claims."""
    last = {(curve.panel, curve.name): curve.ending() for curve in curves}
    full, partial = ({name: last[panel, name] for name in Q2} for panel in ("full", "partial"))
    constant = ["Q2 = 1", "Q2 = 10", "Q2 = 100"]
    found = [
        Finding(
            f"A larger constant Q2 slows the convergence, {where}",
            all(values[a] < values[b] for a, b in zip(constant, constant[1:], strict=False)),
            "objective at the end: " + ", ".join(f"{name} {values[name]:.5f}" for name in constant),
        )
        for where, values in (("all clients", full), ("m = 10", partial))
    ]
    found += [
        Finding(
            f"Diminishing Q2 does at least as well as any constant Q2, {where}",
            values["Q2 = 100, diminishing"] <= min(values[name] for name in constant),
            f"objective at the end: {values['Q2 = 100, diminishing']:.5f}, the best constant Q2 {min(values[name] for name in constant):.5f}",
        )
        for where, values in (("all clients", full), ("m = 10", partial))
    ]
    gaps = [values["Q2 = 100"] - values["Q2 = 1"] for values in (full, partial)]
    found.append(
        Finding(
            "The gap between Q2 = 100 and Q2 = 1 widens under partial communication",
            gaps[1] > gaps[0],
            f"{gaps[0]:.5f} with all clients, {gaps[1]:.5f} with m = 10",
        )
    )
    by_q1 = [last["q1", f"Q1 = {q1}"] for q1 in Q1]
    gains = [(a - b) / (more - less) for a, b, less, more in zip(by_q1, by_q1[1:], Q1, Q1[1:], strict=False)]
    found.append(
        Finding(
            "A larger Q1 helps, with diminishing returns",
            by_q1[-1] < by_q1[0] and all(b < a for a, b in zip(gains, gains[1:], strict=False)),
            "objective at the end: "
            + ", ".join(f"Q1 = {q1} {value:.5f}" for q1, value in zip(Q1, by_q1, strict=True))
            + "; gain a step: "
            + ", ".join(f"{gain:.1e}" for gain in gains),
        )
    )
    pcc, pcp = (next(curve for curve in curves if (curve.panel, curve.name) == ("participation", way)) for way in ("PCC", "PCP"))
    ends = [(curve.at_round(EARLY), curve.ending()) for curve in (pcc, pcp)]
    found.append(
        Finding(
            "PCC beats PCP",
            all(a < b for a, b in zip(*ends, strict=True)),
            f"objective after {EARLY} rounds {ends[0][0]:.4f} against {ends[1][0]:.4f}, at the end {ends[0][1]:.5f} against {ends[1][1]:.5f}",
        )
    )
    return found
