"""Figure 4: RMSE of held-out ratings against rounds and against communication."""

import numpy as np

from fedmavg_mpi.reproduce import drawing, tasks
from fedmavg_mpi.reproduce.claims import Finding
from fedmavg_mpi.reproduce.study import Experiment, by_name, settings_of

TITLE = "RMSE of held-out ratings against rounds and against communication"
MINUTES = {True: 1, False: 3}
ROUNDS = 300
STARTS = {True: 1, False: 3}
M = (10, 50, 200, 0)
SHARING, CENTRALIZED = "gradient sharing", "centralized"
CLOSE = 0.02  # of the centralized RMSE: what counts as close


def setting(quick):
    """On what the figure is made, in words."""
    return f"{tasks.MOVIELENS_IN_WORDS}; Q1 = 10, Q2 = 10 diminishing, PCC; {ROUNDS} rounds, seeds (hold-out and start): {STARTS[quick]}."


def experiments(quick):
    """The runs of the figure."""
    curves = {tasks.clients_in_words(m): (f"algorithm.clients_per_round={m}",) for m in M}
    curves |= {SHARING: ("algorithm.name=gradient_sharing",), CENTRALIZED: ("algorithm.name=centralized",)}
    rounds = (f"stop.max_rounds={ROUNDS}", tasks.FIXED_ROUNDS)
    return [
        Experiment("ratings", curve, settings_of(*tasks.MOVIELENS, *rounds, *keys, f"run.seed={seed}"))
        for curve, keys in curves.items()
        for seed in range(STARTS[quick])
    ]


def draw(curves):
    """The figure."""
    figure, axes = drawing.grid(1, 2)
    by_round, by_cost = axes[0]
    groups = by_name(curves)
    for name, style in drawing.styles(groups).items():
        drawing.draw_starts(by_round, groups[name], lambda curve: curve["round"], "rmse_test", **style, label=name)
        if name == CENTRALIZED:  # sends its data once and nothing after that
            by_cost.axhline(best(groups[name])[0], **style)
        else:
            drawing.draw_starts(by_cost, groups[name], lambda curve: curve.moved_values, "rmse_test", skip=1, **style)
    least = min(best(starts)[0] for starts in groups.values())
    for axis in (by_round, by_cost):
        axis.set(ylabel="RMSE of held-out ratings", ylim=(least - 0.01, least + 0.15))
    by_round.set(xlabel="communication round")
    by_cost.set(xscale="log", xlabel=drawing.COST_LABEL)
    drawing.bytes_on_top(by_cost)
    drawing.shared_legend(figure, by_round, 3)
    return figure


def best(starts):
    """The least of the mean RMSE of several starts, and the round where it is reached."""
    rmse = np.mean([curve["rmse_test"] for curve in starts], axis=0)
    at = int(rmse.argmin())
    return float(rmse[at]), int(starts[0]["round"][at])


def findings(curves):
    """What the curves say of the paper's claims; all values are means over the starts."""
    groups = by_name(curves)
    few, everyone = tasks.clients_in_words(M[0]), tasks.clients_in_words(0)
    reached = {name: best(starts) for name, starts in groups.items()}
    level = (1 + CLOSE) * reached[CENTRALIZED][0]
    costs = {name: cost_of(groups[name], level) for name in (few, everyone, SHARING)}
    words = ", ".join(f"{name} {f'{cost / 1e9:.0f} GB' if np.isfinite(cost) else 'never'}" for name, cost in costs.items())
    return [
        Finding(
            f"With m = 10 the RMSE comes close to the centralized one (within {CLOSE:.0%})",
            reached[few][0] <= level,
            "least RMSE: " + ", ".join(f"{name} {value:.4f} (round {s})" for name, (value, s) in reached.items()),
        ),
        Finding(
            "With m = 10 that takes less communication than with all clients or gradient sharing",
            costs[few] < min(costs[everyone], costs[SHARING]),
            f"to an RMSE of {level:.4f}: {words}",
        ),
    ]


def cost_of(starts, level):
    """Mean bytes until the mean RMSE is at a level for the first time; infinite if it never is."""
    rmse = np.mean([curve["rmse_test"] for curve in starts], axis=0)
    there = np.flatnonzero(rmse <= level)
    return float(np.mean([curve.moved_bytes[there[0]] for curve in starts])) if there.size else np.inf
