"""What a round has to do, in numbers: the problem, and the largest share of it that a worker has."""

from dataclasses import dataclass, replace

import numpy as np

from fedmavg_mpi.participation import Sampler
from fedmavg_mpi.placement import Placement
from fedmavg_mpi.schedule import shared_steps

ROUNDS_DRAWN = 20  # over which the largest share of the draws is averaged
MOST_DRAWN = 10_000  # draws that are placed one by one; beyond, shares are near enough to even


@dataclass(frozen=True)
class Problem:
    """A clustering problem and how a round goes.

    Attributes
    ----------
    n_features, n_samples, n_components, n_clients : int
        M, N, K, P.
    drawn : int
        m; 0: all clients.
    q1, q2 : int
        Local steps on H and on W.
    itemsize : int
        Bytes of a value of W.
    method : str
        Of :data:`fedmavg_mpi.aggregation.METHODS`.
    participation : str
    global_step : bool
    n_labels : int
        Known classes, whose table an evaluation sums; 0: none.
    evaluates : float
        Evaluations a round.
    """

    n_features: int
    n_samples: int
    n_components: int
    n_clients: int
    drawn: int = 0
    q1: int = 10
    q2: int = 1
    itemsize: int = 8
    method: str = "reduce"
    participation: str = "pcc"
    global_step: bool = True
    n_labels: int = 0
    evaluates: float = 1.0

    @property
    def full(self):
        """Whether all clients take part."""
        return self.drawn == 0 or self.drawn >= self.n_clients

    @property
    def n_distinct(self):
        """Distinct clients that upload in a round, as expected of clients of equal size."""
        if self.full:
            return float(self.n_clients)
        return self.n_clients * -np.expm1(self.drawn * np.log1p(-1 / self.n_clients))

    @property
    def model_bytes(self):
        """Of one W."""
        return self.n_features * self.n_components * self.itemsize


@dataclass(frozen=True)
class Share:
    """What the busiest worker has of a round: samples and clients that are updated, and of those drawn."""

    samples: float
    clients: float
    drawn_samples: float
    drawn_clients: float


def of_settings(settings, store, rounds=(1, 1)):
    """The problem of a configuration on a store.

    Parameters
    ----------
    settings : Config
    store : ClientStore
    rounds : (int, int)
        First and last round that are looked at, for the steps on W.
    """
    algorithm, run = settings.algorithm, settings.run
    steps = [shared_steps(algorithm.q2_schedule, algorithm.q2, s) for s in range(rounds[0], rounds[1] + 1)]
    return Problem(
        store.n_features,
        store.n_samples,
        settings.model.n_components,
        store.sizes.size,
        algorithm.clients_per_round,
        algorithm.q1,
        round(float(np.mean(steps))),
        np.dtype(run.dtype).itemsize,
        settings.aggregation.method,
        algorithm.participation,
        algorithm.step_size_w == "global",
        len(store.label_names or ()),
        1 / run.evaluate_every if run.evaluate_every else 0.0,
    )


def shares(problem, n_ranks, sizes=None, costs=None, seed=0):
    """The busiest worker's share.

    Parameters
    ----------
    problem : Problem
    n_ranks : int
    sizes, costs : ndarray (P,), optional
        Of the clients, as the store has them; by default all alike.
    seed : int
        Of the draws.

    Returns
    -------
    share : Share
        With draws, the mean over some rounds of the busiest worker in each.
    n_drawn_ranks : float
        Workers that own drawn clients.
    """
    n_workers = max(1, n_ranks - 1)
    if sizes is None and (problem.full or problem.drawn > MOST_DRAWN):
        busy = min(n_workers, problem.n_clients)
        clients = np.ceil(problem.n_clients / busy)
        samples = clients * problem.n_samples / problem.n_clients
        part = problem.n_distinct / problem.n_clients
        whole = Share(samples, clients, part * samples, part * clients)
        return (whole if problem.participation == "pcc" else only_drawn(whole)), float(busy)
    if sizes is None:
        return _drawn_evenly(problem, n_workers, seed)
    placement = Placement(sizes, n_ranks, costs)
    rows, clients = placement.rows, np.diff(placement.cut)
    busiest = int(rows.argmax())
    share = Share(int(rows[busiest]), int(clients[busiest]), int(rows[busiest]), int(clients[busiest]))
    if problem.full:
        return share, float((clients > 0).sum())
    sampler = Sampler(sizes, problem.drawn, problem.participation, seed)
    found, ranks = [], []
    for s in range(1, ROUNDS_DRAWN + 1):
        drawn = sampler.draw(s).clients
        count = placement.split(drawn)
        on_rank = np.bincount(np.repeat(np.arange(n_ranks), count), weights=sizes[drawn], minlength=n_ranks)
        found.append((on_rank.max(), count[on_rank.argmax()]))
        ranks.append((count > 0).sum())
    samples, clients = np.mean(found, axis=0)
    share = replace(share, drawn_samples=float(samples), drawn_clients=float(clients))
    return (share if problem.participation == "pcc" else only_drawn(share)), float(np.mean(ranks))


def _drawn_evenly(problem, n_workers, seed):
    """As :func:`shares` for clients that are all alike, without a list of them."""
    random = np.random.default_rng(seed)
    each, busy = problem.n_samples / problem.n_clients, min(n_workers, problem.n_clients)
    found, ranks = [], []
    for _ in range(ROUNDS_DRAWN):
        drawn = np.unique(random.integers(problem.n_clients, size=problem.drawn))
        owners, counts = np.unique(drawn * busy // problem.n_clients, return_counts=True)
        found.append(counts.max())
        ranks.append(owners.size)
    clients = np.ceil(problem.n_clients / busy)
    share = Share(clients * each, clients, float(np.mean(found)) * each, float(np.mean(found)))
    return (share if problem.participation == "pcc" else only_drawn(share)), float(np.mean(ranks))


def only_drawn(share):
    """The share where clients that are not drawn do nothing (PCP); an evaluation looks at all of them still."""
    return replace(share, samples=share.drawn_samples, clients=share.drawn_clients)
