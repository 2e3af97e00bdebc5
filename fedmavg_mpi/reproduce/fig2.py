"""Figure 2: objective against rounds on TCGA data, by m, under Case 1 and Case 2."""

import numpy as np

from fedmavg_mpi.reproduce import drawing, tasks
from fedmavg_mpi.reproduce.claims import Finding, better
from fedmavg_mpi.reproduce.study import Experiment, by_name, over_starts, settings_of

TITLE = "the objective against rounds, on TCGA data, by the number of clients a round"
MINUTES = {True: 0.7, False: 2}
ROUNDS = 500
STARTS = {True: 1, False: 3}
M = (5, 10, 50, 0)
SHARING = "gradient sharing"


def setting(quick):
    """On what the figure is made, in words."""
    return (
        f"{tasks.TCGA_IN_WORDS}; Q1 = 10, Q2 = 10 diminishing, PCC; {ROUNDS} rounds, starts: {STARTS[quick]}, of which medians."
    )


def experiments(quick):
    """The runs of the figure."""
    curves = {tasks.clients_in_words(m): (f"algorithm.clients_per_round={m}",) for m in M}
    curves[SHARING] = ("algorithm.name=gradient_sharing",)
    rounds = (f"stop.max_rounds={ROUNDS}", tasks.FIXED_ROUNDS)
    return [
        Experiment(case, curve, settings_of(*tasks.TCGA, scheme, *rounds, *keys, f"run.seed={seed}"))
        for case, scheme in tasks.CASES.items()
        for curve, keys in curves.items()
        for seed in range(STARTS[quick])
    ]


def draw(curves):
    """The figure."""
    figure, axes = drawing.grid(1, 2)
    names = by_name(curves)
    lowest = min(curve["objective"].min() for curve in curves)
    highest = max(curve.at_round(curve["round"][-1] // 25) for curve in curves)
    for axis, case in zip(axes[0], tasks.CASES, strict=True):
        groups = by_name(curves, case)
        for name, style in drawing.styles(names).items():
            drawing.draw_starts(
                axis, groups[name], lambda curve: curve["round"], "objective", middle=np.median, **style, label=name
            )
        axis.set(title=case, xlabel="communication round", ylabel="relative objective")
        axis.set_ylim(lowest - 0.05 * (highest - lowest), highest)
    drawing.shared_legend(figure, axes[0, 0], 3)
    return figure


def findings(curves):
    """What the curves say of the paper's claims."""
    ends = {case: over_starts(curves, case, middle=np.median) for case in tasks.CASES}
    few, everyone = tasks.clients_in_words(M[0]), tasks.clients_in_words(0)
    spread = {case: found[few] - found[everyone] for case, found in ends.items()}
    rounds = curves[0]["round"][-1]
    found = [
        Finding(
            "The number of clients a round matters more under Case 2 than under Case 1",
            spread["Case 2"] > abs(spread["Case 1"]),
            f"objective with m = 5 above that with all clients, after {rounds} rounds: "
            + ", ".join(f"{case} {value:.5f}" for case, value in spread.items()),
        )
    ]
    for case, by_curve in ends.items():
        found.append(
            Finding(
                f"With all clients FedMAvg is ahead of gradient sharing, {case}",
                better(by_curve[everyone], by_curve[SHARING]),
                f"objective after {rounds} rounds: " + ", ".join(f"{name} {value:.5f}" for name, value in by_curve.items()),
            )
        )
    return found
