"""Beyond the paper: when does partial participation speed the factorization up? A map over m and the clients' heterogeneity."""

from dataclasses import dataclass

import numpy as np

from fedmavg_mpi.report.plots import plt
from fedmavg_mpi.reproduce import drawing, tasks
from fedmavg_mpi.reproduce.claims import Finding
from fedmavg_mpi.reproduce.study import Experiment, settings_of

TITLE = "when partial participation speeds the factorization up"
MINUTES = {True: 0.5, False: 3}
DATA = ("data.n_features=300", "data.n_samples=3000", "data.n_clusters=10", "model.n_components=10", "partition.n_clients=50")
ALPHAS = {True: (0.01, 1, 100), False: (0.01, 0.1, 0.3, 1, 10, 100)}
M = {True: (2, 10, 25), False: (1, 2, 5, 10, 25)}
SEEDS = {True: 1, False: 3}
ROUNDS = {True: 150, False: 300}
MARGIN = 0.005  # above the best objective of all clients: the fixed objective to reach
WAYS = ("pcc", "pcp")
COSTS = {"rounds": "rounds", "bytes": "bytes up and down"}
SAVING = 0.05  # what counts as a saving
SCALE = 8  # the colours end at 1/8 and 8 times the cost with all clients


def setting(quick):
    """On what the figure is made, in words."""
    return (
        f"Synthetic data, M = 300, N = 3000, K = 10, P = 50, seeds: {SEEDS[quick]} (data, cut and start); Q1 = 10, Q2 = 10 diminishing; up "
        f"to {ROUNDS[quick]} rounds. The fixed objective is {MARGIN:.1%} above the best that all clients together reach on the same cut."
    )


def experiments(quick):
    """The runs of the map: with all clients PCC and PCP are the same."""
    cuts = {f"alpha = {alpha:g}": ("partition.scheme=label_skew", f"partition.alpha={alpha}") for alpha in ALPHAS[quick]}
    cuts["Case 2"] = ("partition.scheme=clustered",)
    ways = [("pcc", 0), *((way, m) for way in WAYS for m in M[quick])]
    rounds = (f"stop.max_rounds={ROUNDS[quick]}", tasks.FIXED_ROUNDS)
    return [
        Experiment(
            cut,
            f"{way.upper()}, m = {m}" if m else "all clients",
            settings_of(
                *DATA, *keys, *rounds, f"run.seed={seed}", f"algorithm.participation={way}", f"algorithm.clients_per_round={m}"
            ),
            data_seed=seed,
        )
        for cut, keys in cuts.items()
        for way, m in ways
        for seed in range(SEEDS[quick])
    ]


@dataclass(frozen=True)
class Arrival:
    """When a run reached the fixed objective.

    Attributes
    ----------
    cut, way : str
    m : int
        0: all clients.
    seed : int
    target, lowest : float
        The objective to reach, and the least that was reached.
    cost : dict of str to float
        By the names of :data:`COSTS`; infinite where the target wasn't reached.
    run : str
    """

    cut: str
    way: str
    m: int
    seed: int
    target: float
    lowest: float
    cost: dict
    run: str


def arrivals(curves):
    """One Arrival a curve."""
    best = {(curve.panel, curve.seed): curve["objective"].min() for curve in curves if not _m(curve)}
    return [_arrival(curve, (1 + MARGIN) * float(best[curve.panel, curve.seed])) for curve in curves]


def _m(curve):
    return curve.experiment.settings.algorithm.clients_per_round


def _arrival(curve, target):
    there = np.flatnonzero(curve["objective"] <= target)
    at = there[0] if there.size else None
    cost = (
        {"rounds": np.inf, "bytes": np.inf}
        if at is None
        else {"rounds": int(curve["round"][at]), "bytes": int(curve.moved_bytes[at])}
    )
    way = curve.experiment.settings.algorithm.participation
    return Arrival(curve.panel, way, _m(curve), curve.seed, target, float(curve["objective"].min()), cost, curve.experiment.key)


def table(curves):
    """A row a run; a cost is empty where the fixed objective wasn't reached."""
    header = ["cut", "participation", "m", "seed", "target", "lowest_objective", *COSTS, "run"]
    rows = (
        [found.cut, found.way, found.m or "all", found.seed, found.target, found.lowest]
        + ["" if np.isinf(found.cost[name]) else found.cost[name] for name in COSTS]
        + [found.run]
        for found in arrivals(curves)
    )
    return header, rows


class Map:
    """Costs by cut, way and m, over the seeds.

    Parameters
    ----------
    curves : list of Curve

    Attributes
    ----------
    cuts : list of str
        From the most to the least even, Case 2 last.
    m : list of int
        Without all clients.
    """

    def __init__(self, curves):
        self._found = {}
        for found in arrivals(curves):
            self._found.setdefault((found.cut, found.way, found.m), {})[found.seed] = found.cost
        self.cuts = list(dict.fromkeys(cut for cut, _, _ in self._found))
        self.m = sorted({m for _, _, m in self._found} - {0})

    def all_clients(self, cut, cost):
        """Median cost with all clients."""
        return float(np.median([found[cost] for found in self._found[cut, "pcc", 0].values()]))

    def ratio(self, cut, way, m, cost):
        """Median over the seeds of the cost relative to that with all clients; infinite where most seeds don't get there."""
        return float(np.median(self._ratios(cut, way, m, cost)))

    def saves(self, cut, way, m, cost):
        """Whether it costs less than all clients: with every seed, so that it isn't luck, and by 5% or more in the median."""
        ratios = self._ratios(cut, way, m, cost)
        return max(ratios) < 1 and float(np.median(ratios)) <= 1 - SAVING

    def _ratios(self, cut, way, m, cost):
        whole = self._found[cut, "pcc", 0]
        return [found[cost] / whole[seed][cost] for seed, found in self._found[cut, way, m].items()]

    def reached(self, cut, way, m):
        """How many seeds got there, and how many there are."""
        found = [cost["rounds"] for cost in self._found[cut, way, m].values()]
        return int(np.isfinite(found).sum()), len(found)


def draw(curves):
    """The map: the cost to the fixed objective relative to that with all clients, by cut and m, for PCC and PCP."""
    found = Map(curves)
    figure, axes = drawing.grid(2, 2, 1.6 + 0.62 * (len(found.m) + 1), 1.3 + 0.36 * len(found.cuts))
    norm = plt.matplotlib.colors.LogNorm(1 / SCALE, SCALE)
    colours = plt.get_cmap("RdBu_r")
    for row, (cost, words) in zip(axes, COSTS.items(), strict=True):
        for axis, way in zip(row, WAYS, strict=True):
            table = np.array([[found.ratio(cut, way, m, cost) for m in found.m] + [1.0] for cut in found.cuts])
            axis.set_facecolor("0.85")  # shows where the objective wasn't reached
            image = axis.imshow(np.where(np.isfinite(table), table, np.nan), norm=norm, cmap=colours, aspect="auto")
            for i, cut in enumerate(found.cuts):
                for j, m in enumerate(found.m):
                    _write(axis, j, i, _cell(found, cut, way, m, table[i, j]), table[i, j])
                _write(axis, len(found.m), i, _amount(found.all_clients(cut, cost), cost), 1.0)
            axis.set(title=f"{words}, {way.upper()}", xlabel="m, clients drawn a round")
            axis.set_xticks(range(len(found.m) + 1), [*map(str, found.m), "all"])
            axis.set_yticks(range(len(found.cuts)), found.cuts if axis is row[0] else [])
            axis.grid(visible=False)
    bar = figure.colorbar(image, ax=axes, shrink=0.7, extend="both")
    ticks = [1 / SCALE, 1 / 4, 1 / 2, 1, 2, 4, SCALE]
    bar.set_ticks(ticks, labels=[f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label("times the cost with all clients (given in the last column)")
    return figure


def _write(axis, column, row, text, ratio):
    dark = np.isfinite(ratio) and not 1 / 4 < ratio < 4
    axis.text(column, row, text, ha="center", va="center", fontsize=7 if "\n" in text else 8, color="white" if dark else "black")


def _cell(found, cut, way, m, ratio):
    """A cell's text: the ratio, and of how many seeds, unless all got there."""
    reached, seeds = found.reached(cut, way, m)
    if not np.isfinite(ratio):
        return f"{reached}/{seeds}\nreached" if reached else "not\nreached"
    number = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
    return number if reached == seeds else f"{number}\n({reached}/{seeds})"


def _amount(value, cost):
    return f"{value:.0f}" if cost == "rounds" else f"{value / 1e6:.0f} MB"


def findings(curves):
    """What the map shows, in words that follow from the numbers."""
    found = Map(curves)
    return [
        *(_speed(found, cost, way) for cost in COSTS for way in WAYS),
        *(_cheapest(found, way) for way in WAYS),
        *(_trend(found, way) for way in WAYS),
        _summary(found),
    ]


def _faster(found, cost, way):
    """The ratios by cell (cut, m), the cells that save, and those where most seeds don't reach the objective."""
    ratios = {(cut, m): found.ratio(cut, way, m, cost) for cut in found.cuts for m in found.m}
    return (
        ratios,
        [cell for cell in ratios if found.saves(cell[0], way, cell[1], cost)],
        [cell for cell, ratio in ratios.items() if np.isinf(ratio)],
    )


def _speed(found, cost, way):
    ratios, faster, never = _faster(found, cost, way)
    words = f"partial participation takes fewer, with every seed and by {SAVING:.0%} or more in the median, in {len(faster)} of {len(ratios)} cells"
    if faster:
        best = min(faster, key=ratios.get)
        words += f", at best {ratios[best]:.2f} times ({best[0]}, m = {best[1]})"
    if never:
        words += f"; in {len(never)} it doesn't get there within the rounds allowed (" + _listed(never) + ")"
    return Finding(f"{COSTS[cost].capitalize()}, {way.upper()}", None, words + ".")


def _listed(cells, most=6):
    named = [f"{cut}, m = {m}" for cut, m in cells[:most]]
    return "; ".join(named) + (f"; and {len(cells) - most} more" if len(cells) > most else "")


def _cheapest(found, way):
    """The m of least bytes by cut."""
    named = []
    for cut in found.cuts:
        ratios = {m: found.ratio(cut, way, m, "bytes") for m in found.m}
        m = min(ratios, key=ratios.get)
        named.append(f"{cut}: m = {m} ({ratios[m]:.2f})" if ratios[m] < 1 else f"{cut}: all clients")
    return Finding(f"Least bytes, {way.upper()} (times the bytes with all clients)", None, ", ".join(named) + ".")


def _trend(found, way):
    """How the cost in rounds goes with heterogeneity."""
    m = found.m[len(found.m) // 2]
    ratios = [found.ratio(cut, way, m, "rounds") for cut in found.cuts]
    named = ", ".join(
        f"{cut} {'never' if np.isinf(ratio) else f'{ratio:.2f}'}" for cut, ratio in zip(found.cuts, ratios, strict=True)
    )
    return Finding(f"Heterogeneity, {way.upper()}, m = {m} (times the rounds with all clients)", None, named + ".")


def _summary(found):
    """The answer that this map gives."""
    sentences = []
    for way in WAYS:
        for cost, words in COSTS.items():
            _, faster, _ = _faster(found, cost, way)
            cuts = [cut for cut in found.cuts if any(cell[0] == cut for cell in faster)]
            if not faster:
                where = "nowhere on this map"
            elif len(cuts) == len(found.cuts):
                throughout = [str(m) for m in found.m if all((cut, m) in faster for cut in found.cuts)]
                where = "on every cut, " + (
                    f"with m = {', '.join(throughout)}" if throughout else "with an m that differs by cut"
                )
            else:
                where = "only on " + ", ".join(cuts)
            sentences.append(f"{way.upper()} saves {words} {where}")
    return Finding("In short", None, "; ".join(sentences) + ".")
