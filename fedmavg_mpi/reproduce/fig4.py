"""Figure 4: RMSE of held-out ratings against rounds and against communication."""

from fedmavg_mpi.reproduce import drawing, tasks
from fedmavg_mpi.reproduce.claims import Finding
from fedmavg_mpi.reproduce.study import Experiment, settings_of

TITLE = "RMSE of held-out ratings against rounds and against communication"
MINUTES = {True: 0.5, False: 1}
ROUNDS = {True: 100, False: 300}
M = (10, 50, 200, 0)
SHARING, CENTRALIZED = "gradient sharing", "centralized"
CLOSE = 0.02  # of the centralized RMSE: what counts as close


def setting(quick):
    """On what the figure is made, in words."""
    return f"{tasks.MOVIELENS_IN_WORDS}; Q1 = 10, Q2 = 10 diminishing, PCC; {ROUNDS[quick]} rounds, one start."


def experiments(quick):
    """The runs of the figure."""
    curves = {tasks.clients_in_words(m): (f"algorithm.clients_per_round={m}",) for m in M}
    curves |= {SHARING: ("algorithm.name=gradient_sharing",), CENTRALIZED: ("algorithm.name=centralized",)}
    rounds = (f"stop.max_rounds={ROUNDS[quick]}", tasks.FIXED_ROUNDS)
    return [Experiment("ratings", curve, settings_of(*tasks.MOVIELENS, *rounds, *keys)) for curve, keys in curves.items()]


def draw(curves):
    """The figure."""
    figure, axes = drawing.grid(1, 2)
    by_round, by_cost = axes[0]
    groups = drawing.by_name(curves)
    for name, style in drawing.styles(groups).items():
        drawing.draw_starts(by_round, groups[name], lambda curve: curve["round"], "rmse_test", **style, label=name)
        if name == CENTRALIZED:  # sends its data once and nothing after that
            by_cost.axhline(best(groups[name][0])[0], **style)
        else:
            drawing.draw_starts(by_cost, groups[name], lambda curve: curve.moved_values, "rmse_test", skip=1, **style)
    least = min(best(curve)[0] for curve in curves)
    for axis in (by_round, by_cost):
        axis.set(ylabel="RMSE of held-out ratings", ylim=(least - 0.01, least + 0.15))
    by_round.set(title="against rounds", xlabel="communication round")
    by_cost.set(xscale="log", xlabel=drawing.COST_LABEL)
    drawing.bytes_on_top(by_cost)
    drawing.shared_legend(figure, by_round, 3)
    return figure


def best(curve):
    """The least RMSE of a curve and the round where it is reached."""
    at = int(curve["rmse_test"].argmin())
    return float(curve["rmse_test"][at]), int(curve["round"][at])


def findings(curves):
    """What the curves say of the paper's claims."""
    by_name = {curve.name: curve for curve in curves}
    target, _ = best(by_name[CENTRALIZED])
    few, everyone = by_name[tasks.clients_in_words(M[0])], by_name[tasks.clients_in_words(0)]
    reached = {name: best(curve) for name, curve in by_name.items()}
    listed = ", ".join(f"{name} {value:.4f} (round {s})" for name, (value, s) in reached.items())
    found = [
        Finding(
            f"With m = 10 the RMSE comes close to the centralized one (within {CLOSE:.0%})",
            reached[few.name][0] <= (1 + CLOSE) * target,
            f"least RMSE: {listed}",
        )
    ]
    level = (1 + CLOSE) * target
    costs = {curve.name: cost_of(curve, level) for curve in (few, everyone, by_name[SHARING])}
    words = ", ".join(f"{name} {'never' if cost is None else f'{cost / 1e9:.2f} GB'}" for name, cost in costs.items())
    first, *others = costs.values()
    found.append(
        Finding(
            "With m = 10 that takes less communication than with all clients or gradient sharing",
            first is not None and all(cost is None or first < cost for cost in others),
            f"to an RMSE of {level:.4f}: {words}",
        )
    )
    return found


def cost_of(curve, level):
    """Bytes until the RMSE is at a level for the first time; None if it never is."""
    there = (curve["rmse_test"] <= level).nonzero()[0]
    return int(curve.moved_bytes[there[0]]) if there.size else None
