"""The cost model beyond what can be measured here: to 4,096 ranks and 10^6 clients, and where something else than the clients' work limits."""

from dataclasses import dataclass, replace

import numpy as np

from fedmavg_mpi.scaling.problem import shares

RANKS = tuple(2**i for i in range(1, 13))
CLIENTS = (10**2, 10**3, 10**4, 10**5, 10**6)
LIMITS = {  # what may take longer than the clients' work: its terms of a round, and what it is called
    "average": (("broadcast", "average"), "the average (W down and up)"),
    "server": (("server",), "the server's own work"),
    "bookkeeping": (("bookkeeping",), "every rank's bookkeeping of all clients"),
    "small messages": (("step size", "evaluation", "control"), "the exchange of small values (step size, evaluation, control)"),
}


@dataclass(frozen=True)
class Curve:
    """One number of clients over numbers of ranks.

    Attributes
    ----------
    problem : Problem
    ranks : tuple of int
    terms : list of dict of str to float
        The round's, by number of ranks.
    """

    problem: object
    ranks: tuple
    terms: list

    @property
    def seconds(self):
        """Of a round, by number of ranks."""
        return [sum(terms.values()) for terms in self.terms]

    @property
    def fastest(self):
        """The number of ranks with the shortest round."""
        return self.ranks[int(np.argmin(self.seconds))]

    @property
    def crossings(self):
        """By name of :data:`LIMITS`, the first number of ranks at which that takes longer than the clients' work; None: at no number here."""
        return {name: self._crossing(terms) for name, (terms, _) in LIMITS.items()}

    def _crossing(self, names):
        for n_ranks, terms in zip(self.ranks, self.terms, strict=True):
            if sum(terms[name] for name in names) > terms["clients' work"]:
                return n_ranks
        return None

    @property
    def limit(self):
        """(ranks, name): what is first to take longer than the clients' work, of several the longest; None where nothing does."""
        found = {name: n_ranks for name, n_ranks in self.crossings.items() if n_ranks is not None}
        if not found:
            return None
        first = min(found.values())
        terms = self.terms[self.ranks.index(first)]
        longest = {name: sum(terms[term] for term in LIMITS[name][0]) for name, n_ranks in found.items() if n_ranks == first}
        return first, max(longest, key=longest.get)

    def describe(self):
        """The limits in words."""
        p = self.problem
        start = f"P = {p.n_clients:,}, {'all clients' if p.full else f'm = {p.drawn:,}'}, {p.method}: "
        end = f"The shortest round, {duration(min(self.seconds))}, is at {self.fastest:,} ranks."
        if self.limit is None:
            return f"{start}nothing takes longer than the clients' work up to {self.ranks[-1]:,} ranks. {end}"
        first, name = self.limit
        later = [
            f"{LIMITS[other][1]} from {n_ranks:,} on"
            for other, n_ranks in sorted(self.crossings.items(), key=lambda item: item[1] or 0)
            if n_ranks is not None and other != name
        ]
        rest = f", then {', '.join(later)}" if later else ""
        return f"{start}from {first:,} ranks on {LIMITS[name][1]} takes longer than the clients' work{rest}. {end}"


def duration(seconds):
    """A time for people."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def project(cost_model, problem, ranks=RANKS, clients=CLIENTS):
    """Curves for numbers of clients, each as large as this problem's; ranks have a core each, on full nodes.

    Parameters
    ----------
    cost_model : CostModel
    problem : Problem
    ranks, clients : sequence of int

    Returns
    -------
    list of Curve
    """
    cluster = replace(cost_model, cores=0)
    samples, out = problem.n_samples / problem.n_clients, []
    for n_clients in clients:
        larger = replace(problem, n_clients=n_clients, n_samples=round(samples * n_clients))
        terms = [cluster.round_terms(larger, n_ranks, *shares(larger, n_ranks)) for n_ranks in ranks]
        out.append(Curve(larger, tuple(ranks), terms))
    return out


def families(cost_model, problem, drawn=100):
    """Curves by title: all clients and some drawn, and the average by gather, where the server adds every copy.

    Parameters
    ----------
    cost_model : CostModel
    problem : Problem
    drawn : int
        m, where clients are drawn.
    """
    method = problem.method if problem.method != "gather" else "reduce"
    return {
        f"all clients, {method}": project(cost_model, replace(problem, drawn=0, method=method)),
        f"m = {drawn}, {method}": project(
            cost_model, replace(problem, drawn=drawn, method=method), clients=[n for n in CLIENTS if n > drawn]
        ),
        "all clients, gather": project(cost_model, replace(problem, drawn=0, method="gather")),
    }
