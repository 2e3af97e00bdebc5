"""What each client's round costs, measured before the first one, so that clients can be placed by it.

Small clients cost more a sample than large ones: each has its own small matrices and calls. How much more depends on M, K and the machine.
Every rank times a trial round on a few runs of its clients; seconds that fit them best, one sum a client and one sum a sample (or value of
sparse samples), then hold for all clients. Two numbers from many timings, because a small client's own time is mostly noise.
"""

import time

import numpy as np
from scipy.optimize import nnls

BLOCKS = 8  # runs of clients that each rank times
PASSES = 4  # of each, of which the shortest counts; the first compiles


def measured_costs(comm, settings, store, application):
    """The costs of all clients; all ranks call this together, and nothing of it is in a ledger.

    Parameters
    ----------
    comm : Communicator
    settings : Config
    store : ClientStore
    application : one of ``APPLICATIONS``
        Of clients that are placed by size. Its factors change.

    Returns
    -------
    ndarray of float64 (P,)
    """
    shard, model = application.shard, application.model
    w = model.start(settings.run.seed, np.dtype(settings.run.dtype))
    shard.receive(w)
    application.take_step(settings.model.rho, application.local_curvature(w, settings.model.rho), False)
    n_clients, first = shard.sizes.size, application.placement.clients_of(comm.rank).start
    # of as many clients each, whatever their sizes, and halves of them, so that counts of clients and of samples differ
    ends = np.unique(np.linspace(0, n_clients, BLOCKS + 1).astype(int))
    blocks = list(zip(ends[:-1], ends[1:], strict=True))
    blocks += [(begin, (begin + end) // 2) for begin, end in blocks[::2] if end - begin > 1]
    costs = store.costs[first : first + n_clients]
    rows = [(end - begin, costs[begin:end].sum(), seconds(shard, w, np.arange(begin, end), settings)) for begin, end in blocks]
    counts = np.zeros(comm.size, np.int64)
    counts[comm.rank] = len(rows)
    comm.reduce(counts, "control", comm.everyone)
    comm.broadcast(counts, "control", comm.everyone)
    timed = comm.gather(np.array(rows, np.float64).reshape(-1, 3), counts, "control")
    each = np.array([0.0, 1.0])
    if comm.is_server:
        each[:] = fit(timed)
    comm.broadcast(each, "control", comm.everyone)
    return each[0] + each[1] * store.costs


def seconds(shard, w, clients, settings):
    """The shortest time that these clients' part of a round has taken."""
    taken, weights = [], np.full(clients.size, 1 / clients.size)
    for _ in range(PASSES):
        shard.receive(w)
        start = time.perf_counter()
        shard.form_products(clients)
        shard.update_local_factors(clients, settings.algorithm.q1)
        shard.contribution(clients, weights, None, 1)
        taken.append(time.perf_counter() - start)
    return min(taken)


def fit(timed):
    """Seconds a client and seconds a sample from timings.

    Parameters
    ----------
    timed : ndarray (timings x 3)
        Clients, samples, seconds of each.

    Returns
    -------
    ndarray (2,)
        Relative to each other; (0, 1) where the timings say nothing of samples.
    """
    if not len(timed):
        return np.array([0.0, 1.0])
    counts = np.column_stack([timed[:, :2], np.ones(len(timed))])  # a timing has a part that is nobody's
    scale = counts.max(axis=0).clip(1)
    weights = 1 / timed[:, 2].clip(1e-9)
    found, _ = nnls(counts / scale * weights[:, None], np.ones(len(timed)))
    found /= scale
    return found[:2] / found[1] if found[1] > 0 else np.array([0.0, 1.0])
