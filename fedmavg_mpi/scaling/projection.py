"""The cost model beyond what can be measured here: to 4,096 ranks and 10^6 clients, and where something else than the clients' work limits."""

from dataclasses import dataclass, replace

import numpy as np

from fedmavg_mpi.scaling.problem import shares

RANKS = tuple(2**i for i in range(1, 13))
CLIENTS = (10**2, 10**3, 10**4, 10**5, 10**6)
WORDS = {  # what a round's terms are called where they limit it
    "server": "the server's own work",
    "bookkeeping": "every rank's bookkeeping of all clients",
    "broadcast": "the broadcast of W",
    "step size": "the exchange of the step size",
    "average": "the average",
    "evaluation": "the messages of the evaluation",
    "control": "the server's decision",
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
    def limit(self):
        """(ranks, term): the first number of ranks at which the clients' work is less than half of the round, and the largest of the rest."""
        for n_ranks, terms in zip(self.ranks, self.terms, strict=True):
            rest = {name: seconds for name, seconds in terms.items() if name != "clients' work"}
            if sum(rest.values()) > terms["clients' work"]:
                return n_ranks, max(rest, key=rest.get)
        return None

    def describe(self):
        """The limit in words."""
        p = self.problem
        who = "all clients" if p.full else f"m = {p.drawn:,}"
        start = f"P = {p.n_clients:,}, {who}, {p.method}: "
        if self.limit is None:
            return start + f"the clients' work is most of a round up to {self.ranks[-1]:,} ranks."
        n_ranks, term = self.limit
        share = self.terms[self.ranks.index(n_ranks)][term] / self.seconds[self.ranks.index(n_ranks)]
        return (
            f"{start}from {n_ranks:,} ranks on the clients' work is less than half of a round, and {WORDS[term]} is most of the rest "
            f"({share:.0%} of the round); the shortest round, {duration(min(self.seconds))}, is at {self.fastest:,} ranks."
        )


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
        f"m = {drawn}, {method}": project(cost_model, replace(problem, drawn=drawn, method=method)),
        "all clients, gather": project(cost_model, replace(problem, drawn=0, method="gather")),
    }
