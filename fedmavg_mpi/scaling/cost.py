"""The cost model: the seconds of a round from the problem, the ranks and what a machine was measured to do.

    round = slowest worker's work + server's work + bookkeeping + messages

Work is linear in a few counts of operations (:data:`WORK`), each with a coefficient in seconds that one process alone was measured at, and
another that it was measured at with all cores busy: cores share the memory. Beyond a rank a core, work is divided by the cores.
A message goes through a tree of ``log2(ranks)`` steps, each a latency and the bytes over the bandwidth; ranks that share their cores
take part in it one after the other besides.
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from fedmavg_mpi.errors import ConfigError

# What a round does by phase of the clock: counts of operations by name, from a Problem p and a worker's Share s.
WORK = {
    "local factor": {
        "value": lambda p, s: p.n_features * s.samples,  # W'X: each value of X is read once ...
        "product": lambda p, s: p.n_features * s.samples * p.n_components,  # ... and multiplied K times
        "step": lambda p, s: s.samples * p.n_components**2 * p.q1,
        "entry": lambda p, s: s.samples * p.n_components,
        "client": lambda p, s: s.clients,
        "model": lambda p, s: p.n_features * p.n_components,
        "call": lambda p, s: 1,
    },
    "shared factor": {
        "value": lambda p, s: p.n_features * s.drawn_samples,
        "product": lambda p, s: p.n_features * s.drawn_samples * p.n_components,
        "mixing": lambda p, s: s.drawn_samples * p.n_components**2,
        "client": lambda p, s: s.drawn_clients,
        "power": lambda p, s: s.drawn_clients * p.n_components**3 * (int(p.q2).bit_length() - 1),
        "model": lambda p, s: p.n_features * p.n_components,
        "square": lambda p, s: p.n_features * p.n_components**2,
        "call": lambda p, s: 1,
    },
    "evaluation": {
        "entry": lambda p, s: s.samples * p.n_components,
        "client": lambda p, s: s.clients,
        "call": lambda p, s: 1,
    },
    "step size": {
        "client": lambda p, s: s.clients * p.n_components**2,
        "cube": lambda p, s: p.n_components**3,
        "call": lambda p, s: 1,
    },
    "average": {
        "model": lambda p, s: p.n_features * p.n_components,
        "square": lambda p, s: p.n_features * p.n_components**2,
        "call": lambda p, s: 1,
    },
    "control": {
        "square": lambda p, s: p.n_features * p.n_components**2,
        "cube": lambda p, s: p.n_components**3,
        "call": lambda p, s: 1,
    },
    "client by client": {"client": lambda p, s: s.clients},  # where products are formed so: what gather costs the workers more
    "copies": {"copy": lambda p, s: p.n_features * p.n_components * p.n_distinct},  # and the server, which adds each of them
    "bookkeeping": {  # on every rank, for all clients: draws and their ranks
        "client": lambda p, s: p.n_clients,
        "call": lambda p, s: 1,
    },
}
WORKER, SERVER = (
    ("local factor", "shared factor", "evaluation", "client by client"),
    ("step size", "average", "control", "copies"),
)
ONLY_GATHER = ("client by client", "copies")
NETWORK = {  # of the pieces of communication, by the tree's depth d, its excess over one rank a core x, and bytes b
    "latency": lambda d, x, up, down: d,
    "latency_shared": lambda d, x, up, down: x,
    "reduce_byte": lambda d, x, up, down: d * up,
    "reduce_byte_shared": lambda d, x, up, down: x * up,
    "broadcast_byte": lambda d, x, up, down: d * down,
    "broadcast_byte_shared": lambda d, x, up, down: x * down,
}
NEGLIGIBLE = 1e-12


@dataclass
class CostModel:
    """A machine in coefficients.

    Attributes
    ----------
    cores : int
        That ranks share; 0: one for each rank.
    alone, busy : dict of str to dict of str to float
        Seconds an operation, by phase and name, with one process at work and with all cores at work.
    network : dict of str to float
        Seconds a step, and a byte and step, by name.
    about : str
        Where it is from.
    """

    cores: int
    alone: dict
    busy: dict
    network: dict
    about: str = ""
    fits: list = field(default_factory=list)  # (piece, measured, fitted) in seconds

    def cores_for(self, n_ranks):
        """Cores that so many ranks have."""
        return self.cores or n_ranks

    def work(self, phase, problem, share, n_workers):
        """Seconds of a phase's work on one of so many workers, each on a core of its own."""
        cores = self.cores or n_workers
        counts = {name: count(problem, share) for name, count in WORK[phase].items()}
        alone, busy = (
            sum(table.get(phase, {}).get(name, 0.0) * n for name, n in counts.items()) for table in (self.alone, self.busy)
        )
        weight = 1.0 if self.cores == 0 else (min(n_workers, cores) - 1) / max(1, cores - 1)
        return alone + (busy - alone) * weight

    def message(self, n_ranks, up=0, down=0):
        """Seconds of one collective of so many ranks: bytes to the server, or from it."""
        if n_ranks < 2:
            return 0.0
        counts = message_counts(n_ranks, self.cores_for(n_ranks), up, down)
        return sum(self.network.get(name, 0.0) * n for name, n in counts.items())

    def gathered(self, n_ranks, nbytes):
        """Seconds of a gather whose parts add up to so many bytes, which all pass the server's link."""
        if n_ranks < 2:
            return 0.0
        return self.message(n_ranks) + self.network.get("reduce_byte", 0.0) * nbytes

    def round_terms(self, problem, n_ranks, share, n_drawn_ranks):
        """The seconds of a round, term by term.

        Parameters
        ----------
        problem : Problem
        n_ranks : int
            1: one process; else the server and workers.
        share : Share
            The busiest worker's.
        n_drawn_ranks : float
            Workers that own drawn clients.

        Returns
        -------
        dict of str to float
            ``clients' work`` (on the workers), ``server``, ``bookkeeping``, and messages: ``broadcast``, ``step size``, ``average``,
            ``evaluation``, ``control``.
        """
        p, n_workers = problem, max(1, n_ranks - 1)
        crowd = max(1.0, n_workers / (self.cores or n_workers))
        rates = {"evaluation": p.evaluates}
        work = {phase: rates.get(phase, 1.0) * self.work(phase, p, share, n_workers) for phase in WORK}
        left_out = (() if p.global_step else ("step size",)) + (() if p.method == "gather" else ONLY_GATHER)
        work |= dict.fromkeys(left_out, 0.0)
        receiving = work["average"] if n_ranks > 1 else 0.0  # a worker, too, takes the new W
        terms = {
            "clients' work": crowd * (sum(work[phase] for phase in WORKER) + receiving),
            "server": sum(work[phase] for phase in SERVER),
            "bookkeeping": crowd * work["bookkeeping"],
        }
        return terms | self.message_terms(p, n_ranks, n_drawn_ranks)

    def message_terms(self, p, n_ranks, n_drawn_ranks):
        """The messages' part of :meth:`round_terms`."""
        k, drawn = p.n_components, 1 + n_drawn_ranks if n_ranks > 1 else 1
        updating = p.n_clients if p.participation == "pcc" else p.n_distinct
        gather = p.method == "gather"
        terms = dict.fromkeys(("broadcast", "step size", "average", "evaluation", "control"), 0.0)
        terms["broadcast"] = self.message(n_ranks, down=p.model_bytes)
        if gather:
            terms["average"] = self.gathered(drawn, p.n_distinct * p.model_bytes)
        else:
            terms["average"] = self.message(drawn, up=p.model_bytes)
            if p.method == "allreduce":
                terms["average"] += self.message(drawn, down=p.model_bytes)
        if p.global_step:
            sums = self.gathered(n_ranks, updating * k * k * 8) if gather else self.message(n_ranks, up=k * k * 8)
            terms["step size"] = sums + self.message(drawn, down=8)
        sums = self.gathered(n_ranks, p.n_clients * 32) if gather else self.message(n_ranks, up=32)
        table = self.message(n_ranks, up=k * p.n_labels * 8) if p.n_labels else 0.0
        terms["evaluation"] = p.evaluates * (sums + table)
        terms["control"] = self.message(n_ranks, down=40)
        return terms

    def seconds(self, *arguments):
        """The seconds of a round; arguments as of :meth:`round_terms`."""
        return sum(self.round_terms(*arguments).values())

    def to_toml(self):
        """The model as TOML, for :func:`read`."""
        lines = [f"# {line}" for line in self.about.splitlines()]
        lines += ["# seconds an operation (see fedmavg_mpi/scaling/cost.py)", "", "[machine]"]
        lines += [f"cores = {self.cores}  # that ranks share; 0: one for each rank", "", "[network]"]
        lines += [f"{name} = {value!r}" for name, value in self.network.items()]
        for condition in ("alone", "busy"):
            for phase, table in getattr(self, condition).items():
                lines += ["", f'[{condition}."{phase}"]', *(f"{name} = {value!r}" for name, value in table.items())]
        return "\n".join(lines) + "\n"


def message_counts(n_ranks, cores, up, down):
    """By name of :data:`NETWORK`, how often its seconds are in one collective."""
    depth = float(np.ceil(np.log2(n_ranks)))
    excess = max(0.0, (n_ranks - 1) / cores - 1)
    return {name: count(depth, excess, up, down) for name, count in NETWORK.items()}


def fit(rows, seconds):
    """Non-negative coefficients whose relative errors on these measurements are least.

    Parameters
    ----------
    rows : list of dict of str to float
        Counts of operations of each measurement, by name.
    seconds : sequence of float

    Returns
    -------
    dict of str to float
    """
    if not rows:
        return {}
    names = list(rows[0])
    counts, seconds = np.array([[row[name] for name in names] for row in rows], float), np.array(seconds, float)
    scale = np.maximum(np.abs(counts).max(axis=0), NEGLIGIBLE)
    weights = 1 / np.maximum(seconds, NEGLIGIBLE)
    found, _ = nnls(counts / scale * weights[:, None], seconds * weights)
    return {name: float(value) for name, value in zip(names, found / scale, strict=True)}


def from_pieces(pieces, cores, about=""):
    """The model that fits measured pieces best.

    Parameters
    ----------
    pieces : dict
        As :mod:`fedmavg_mpi.scaling.pieces` measures them: ``alone``, ``busy``: lists of (Problem, Share, seconds by phase);
        ``messages``: list of (ranks, bytes up, bytes down, seconds of both).
    cores : int
    about : str
    """
    fits, tables = [], {}
    for condition in ("alone", "busy"):
        tables[condition] = {}
        for phase, operations in WORK.items():
            measured = [(p, s, found[phase]) for p, s, found in pieces[condition] if phase in found]
            rows = [{name: count(p, s) for name, count in operations.items()} for p, s, _ in measured]
            table = fit(rows, [found for *_, found in measured])
            tables[condition][phase] = table
            for row, (p, s, found) in zip(rows, measured, strict=True):
                label = f"{condition}, {phase}: M = {p.n_features}, K = {p.n_components}, {s.samples:g} samples of {s.clients:g} clients"
                fits.append((label, found, sum(table[name] * n for name, n in row.items())))
    rows, measured = [], []
    for n_ranks, up, down, found in pieces["messages"]:
        parts = [message_counts(n_ranks, cores, up, 0), message_counts(n_ranks, cores, 0, down)]
        rows.append({name: parts[0][name] + parts[1][name] for name in NETWORK})
        measured.append(found)
    network = fit(rows, measured)
    for (n_ranks, up, down, found), row in zip(pieces["messages"], rows, strict=True):
        label = f"reduce of {up} bytes and broadcast of {down}, {n_ranks} ranks"
        fits.append((label, found, sum(network[name] * n for name, n in row.items())))
    return CostModel(cores, tables["alone"], tables["busy"], network, about, fits)


def read(path):
    """A model from its file.

    Raises
    ------
    ConfigError
        Not such a file.
    """
    try:
        tables = tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a machine model that fedmavg scaling fit has written") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    machine, network = tables.get("machine"), tables.get("network")
    conditions = {c: tables[c] if isinstance(tables.get(c), dict) else {} for c in ("alone", "busy")}
    cores = machine.get("cores") if isinstance(machine, dict) else None
    if type(cores) is not int or cores < 0:
        raise ConfigError(f"{path}: [machine] cores is {cores!r}, expected a whole number, 0 for one core a rank")
    known = {("network",): NETWORK} | {(c, phase): names for c in ("alone", "busy") for phase, names in WORK.items()}
    work = {(c, phase): conditions[c].get(phase) for c in ("alone", "busy") for phase in WORK}
    for where, table in {("network",): network, **work}.items():
        words = f"{path}: [{'.'.join(where)}]"
        if not isinstance(table, dict):
            raise ConfigError(f"{words} is missing; expected seconds for {', '.join(known[where])}")
        for name, value in table.items():
            if name not in known[where]:
                raise ConfigError(f"{words} has {name!r}, expected any of {', '.join(known[where])}")
            if type(value) not in (int, float) or not 0 <= value < np.inf:
                raise ConfigError(f"{words} {name} = {value!r}, expected seconds, at least 0")
    return CostModel(cores, conditions["alone"], conditions["busy"], network, f"read from {Path(path).name}")
