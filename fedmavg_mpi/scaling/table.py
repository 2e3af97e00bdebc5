"""The table of a study, from its run files and nothing else; and beside it what the cost model says."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmavg_mpi import results
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.ledger import KINDS
from fedmavg_mpi.scaling import problem as problems
from fedmavg_mpi.scaling import study as studies

EVALUATION = KINDS.index("evaluation")


@dataclass
class Point:
    """One number of ranks, over its runs; warm-up rounds left out.

    Attributes
    ----------
    n_ranks, n_workers, n_samples, n_clients : int
    seconds : list of float
        The median round of each run.
    phases : dict of str to dict
        By phase: the median round's ``min``, ``mean``, ``max`` over ranks, and ``server``.
    ranks : list of dict
        By run and rank: bytes sent and received (evaluation apart), peak memory.
    terms : dict of str to float or None
        The cost model's round, term by term.
    """

    n_ranks: int
    n_samples: int
    n_clients: int
    seconds: list
    phases: dict
    ranks: list
    terms: dict = None

    @property
    def n_workers(self):
        """Ranks that own clients."""
        return max(1, self.n_ranks - 1)

    @property
    def median(self):
        """Seconds of a round: the median of the runs' medians."""
        return float(np.median(self.seconds))

    @property
    def model(self):
        """Seconds of a round by the cost model; None without one."""
        return None if self.terms is None else sum(self.terms.values())

    @property
    def model_error(self):
        """Of the model, relative to what was measured."""
        return None if self.terms is None else self.model / self.median - 1


def points(study, directory, cost_model=None):
    """The study's points, in the order of their ranks.

    Raises
    ------
    DataError
        A run is missing or damaged.
    """
    runs = {}
    for i, n_ranks in enumerate(study.elements):
        path = Path(directory) / "runs" / str(i)
        try:
            attributes, data = results.read(path)
        except DataError as error:
            raise DataError(f"element {i} of the study: {error}") from None
        found = int(attributes["ranks"]), int(attributes["rounds"])
        if found != (n_ranks, study.warm_up + study.rounds):
            raise DataError(
                f"{path}: a run of {found[1]} rounds on {found[0]} ranks, expected {study.warm_up + study.rounds} on {n_ranks}"
            )
        runs.setdefault(n_ranks, []).append((i, attributes, data))
    out = [_point(study, n_ranks, of_ranks) for n_ranks, of_ranks in runs.items()]
    if cost_model is not None:
        predict(study, directory, cost_model, out)
    return out


def _point(study, n_ranks, runs):
    timed = slice(study.warm_up, None)
    attributes = runs[0][1]
    names = attributes["phases"].split(", ")
    phases = {}
    for j, name in enumerate(names):
        phases[name] = {
            over: float(np.median([np.median(data[f"rounds/phase_seconds_{over}"][timed, j]) for *_, data in runs]))
            for over in ("min", "mean", "max", "server")
        }
    by_rank = []
    for i, _, data in runs:
        sent, received = data["mpi/sent"], data["mpi/received"]
        for rank, peak in enumerate(data["ranks/peak_memory_bytes"].tolist()):
            by_rank.append(
                {
                    "run": i,
                    "ranks": n_ranks,
                    "rank": rank,
                    "sent_bytes": int(sent[rank].sum() - sent[rank, EVALUATION]),
                    "received_bytes": int(received[rank].sum() - received[rank, EVALUATION]),
                    "evaluation_sent_bytes": int(sent[rank, EVALUATION]),
                    "evaluation_received_bytes": int(received[rank, EVALUATION]),
                    "peak_memory_bytes": int(peak),
                }
            )
    seconds = [float(np.median(data["rounds/seconds"][timed])) for *_, data in runs]
    return Point(n_ranks, int(attributes["samples"]), int(attributes["clients"]), seconds, phases, by_rank)


def predict(study, directory, cost_model, found):
    """Enter the cost model's rounds into the points, where it knows the algorithm."""
    for point in found:
        settings, store = studies.settings_of(directory, study.size(point.n_ranks))
        if not is_modelled(settings):
            continue
        of_round = problems.of_settings(settings, store, (study.warm_up + 1, study.warm_up + study.rounds))
        share, n_drawn_ranks = problems.shares(of_round, point.n_ranks, store.sizes, store.costs, settings.run.seed)
        point.terms = cost_model.round_terms(of_round, point.n_ranks, share, n_drawn_ranks)


def is_modelled(settings):
    """Whether the cost model is for such runs."""
    algorithm = settings.algorithm
    return settings.model.kind == "clustering" and algorithm.name in ("fedmavg", "fedavg") and algorithm.upload_dtype == "same"


def cores_used(study, n_ranks):
    """Cores at work: a worker keeps one busy, and the server none while it waits."""
    n_workers = max(1, n_ranks - 1)
    return min(n_workers, study.cores) if study.cores else n_workers


def ideal(study, base, n_ranks):
    """Seconds of a round if the base's work were spread over the cores without loss."""
    growth = study.size(n_ranks) / study.size(base.n_ranks)
    return base.median * growth * cores_used(study, base.n_ranks) / cores_used(study, n_ranks)


def speed_up(study, base, point, seconds=None):
    """How many times as much is done in a second as at the base, for the base's workers."""
    growth = study.size(point.n_ranks) / study.size(base.n_ranks)
    return growth * base.median / (point.median if seconds is None else seconds) * cores_used(study, base.n_ranks)


def rows(study, found):
    """The table: list of dict, a row a number of ranks. Speed-up and efficiency are against the smallest number."""
    base, out = found[0], []
    for point in found:
        row = {
            "ranks": point.n_ranks,
            "workers": point.n_workers,
            "samples": point.n_samples,
            "clients": point.n_clients,
            "seconds": point.median,
            "seconds_least": min(point.seconds),
            "seconds_most": max(point.seconds),
            "speed_up": speed_up(study, base, point),
            "efficiency": ideal(study, base, point.n_ranks) / point.median,
            "time_over_ideal": point.median / ideal(study, base, point.n_ranks),
            "model_seconds": point.model,
            "model_error": point.model_error,
        }
        for name, over in point.phases.items():
            row |= {f"{name.replace(' ', '_')}_{which}": value for which, value in over.items()}
        for name in ("sent_bytes", "received_bytes", "evaluation_sent_bytes", "evaluation_received_bytes"):
            row[name] = sum(rank[name] for rank in point.ranks) // len(point.seconds)
        peaks = [rank["peak_memory_bytes"] for rank in point.ranks]
        row |= {"peak_memory_min": min(peaks), "peak_memory_mean": float(np.mean(peaks)), "peak_memory_max": max(peaks)}
        row |= {f"model_{name.replace(' ', '_')}": value for name, value in (point.terms or {}).items()}
        out.append(row)
    return out


def write_csv(path, table):
    """A table as CSV; None is an empty field."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


def markdown(study, found):
    """The table for people."""
    table = rows(study, found)
    head = ["ranks", "workers", "samples", "clients", "round, ms", "speed-up", "efficiency", "model, ms", "model's error"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table:
        cells = [str(row[name]) for name in ("ranks", "workers", "samples", "clients")]
        cells += [f"{1e3 * row['seconds']:.1f} ({1e3 * row['seconds_least']:.1f} to {1e3 * row['seconds_most']:.1f})"]
        cells += [f"{row['speed_up']:.2f}", f"{row['efficiency']:.2f}"]
        cells += (
            ["-", "-"] if row["model_seconds"] is None else [f"{1e3 * row['model_seconds']:.1f}", f"{row['model_error']:+.0%}"]
        )
        lines.append("| " + " | ".join(cells) + " |")
    phases = list(found[0].phases)
    lines += ["", "Milliseconds a round by phase, least / mean / most over ranks:", ""]
    lines += ["| ranks | " + " | ".join(phases) + " |", "|" + "---|" * (len(phases) + 1)]
    for point in found:
        cells = [" / ".join(f"{1e3 * point.phases[name][over]:.2f}" for over in ("min", "mean", "max")) for name in phases]
        lines.append(f"| {point.n_ranks} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Bytes that all ranks handed to MPI in a run (evaluation apart); peak memory, least / mean / most over ranks (each rank's in `ranks.csv`):",
        "",
    ]
    lines += ["| ranks | sent, MB | received, MB | peak memory, MB |", "|---|---|---|---|"]
    for row in table:
        peak = " / ".join(f"{row[f'peak_memory_{over}'] / 1e6:.0f}" for over in ("min", "mean", "max"))
        moved = [f"{row[f'{way}_bytes'] / 1e6:.3f}" for way in ("sent", "received")]
        lines.append(f"| {row['ranks']} | {moved[0]} | {moved[1]} | {peak} |")
    return "\n".join(lines)
