"""Starts of a clustering that look at the data first: one function a start, each giving the first W and leaving its H with the clients.

All ranks call a start together, before the algorithm begins; what clients and server exchange for it is counted in a ledger of its own.
"""

import numpy as np

from fedmavg_mpi import rng
from fedmavg_mpi.algorithms.cal import Cal
from fedmavg_mpi.algorithms.kmeans_parallel import KMeansParallel
from fedmavg_mpi.ledger import ProtocolLedger

EXTRA_COLUMNS, POWER_ITERATIONS = 8, 2  # of the randomized decomposition (Halko, Martinsson and Tropp 2011)


def from_centres(algorithm):
    """A start that is the end of a k-means algorithm: W its centres, H the samples' clusters as indicators."""

    def start(*parts):
        seeding, ledger = algorithm(*parts), ProtocolLedger()
        for s in range(1, seeding.n_rounds + 1):
            ledger.include(seeding.run_round(s)[2])
        everyone = seeding.sampler.all_clients
        seeding.share_model(everyone, "model_down")
        ledger.downlink(everyone.size * seeding.w.size, seeding.w.itemsize)
        return seeding.w, ledger

    return start


def nndsvd(settings, comm, placement, sampler, aggregation, model, shard, clock, w):
    """Non-negative double singular value decomposition (Boutsidis and Gallopoulos 2008), of data that stay where they are.

    The leading singular vectors u_k come from a randomized range finder (Halko, Martinsson and Tropp 2011, Algorithm 4.4): in each
    iteration the server sends Q (M x l) and each client X_p X_p' Q. Then v_k = X_p' u_k / sigma_k is formed by each client alone. Of u_k
    and v_k, with sigma_k, the positive or the negative parts are taken, whichever pair has the larger product of norms.
    """
    ledger, everyone = ProtocolLedger(), sampler.all_clients
    ranks = placement.ranks_of(everyone)
    samples = shard.samples
    width = min(model.n_components + EXTRA_COLUMNS, *w.shape[1:], int(placement.sizes.sum()))

    def send_down(values):
        buffer = np.ascontiguousarray(values, np.float64)
        comm.broadcast(buffer, "model_down", ranks)
        ledger.downlink(everyone.size * buffer.size, 8)
        return buffer

    def send_up(of_range, shape):
        def values(clients):
            return np.array([of_range(begin, end) for begin, end in shard.ranges(clients)], np.float64).reshape(
                len(clients), *shape
            )

        ledger.uplink(everyone.size * int(np.prod(shape)), 8)
        total = aggregation.sum_over_clients(values, everyone, "model_up")
        aggregation.latest.pop("model_up", None)  # not needed again, unlike those of the rounds
        return total

    q = rng.generator(sampler.seed, rng.START_SHARED, 1).standard_normal((w.shape[1], width))  # from the seed, on all ranks
    for _ in range(POWER_ITERATIONS + 1):
        total = send_up(lambda begin, end, q=q: samples[begin:end].T @ (samples[begin:end] @ q), q.shape)
        q = send_down(np.linalg.qr(total)[0] if comm.is_server else q)
    small = send_up(lambda begin, end: (samples[begin:end] @ q).T @ (samples[begin:end] @ q), (width, width))
    u = np.zeros((w.shape[1], model.n_components))
    if comm.is_server:
        values, vectors = np.linalg.eigh(small)
        sigma = np.sqrt(np.maximum(values[::-1], 0))[: model.n_components]
        u[:, : sigma.size] = q @ vectors[:, ::-1][:, : sigma.size]
    u = send_down(u)

    projections = np.vstack([np.zeros((0, model.n_components)), *(samples[a:b] @ u for a, b in shard.ranges(shard.all_clients))])
    squares = np.stack([np.square(np.maximum(sign * projections, 0)) for sign in (1, -1)])  # 2 x n x K, of sigma_k v_k
    norms_v = send_up(lambda begin, end: squares[:, begin:end].sum(axis=1), (2, model.n_components))

    scales = np.zeros((2, model.n_components))  # of H's rows: a factor, and the sign of the parts that are taken
    if comm.is_server:
        norms_v = np.sqrt(norms_v)
        norms_u = np.sqrt(np.stack([np.square(np.maximum(sign * u, 0)).sum(axis=0) for sign in (1, -1)]))
        products = norms_u * norms_v  # sigma_k |u_k+-| |v_k+-|
        taken = products.argmax(axis=0)
        pick = taken, np.arange(model.n_components)
        signs, root = 1 - 2 * taken, np.sqrt(products[pick])
        w = (root * np.maximum(signs * u, 0) / np.where(norms_u[pick] > 0, norms_u[pick], 1)).T.astype(w.dtype)
        scales[:] = root / np.where(norms_v[pick] > 0, norms_v[pick], 1), signs
    scales = send_down(scales)
    shard.restore_private_factors(np.maximum(scales[1] * projections, 0) * scales[0])
    w = np.ascontiguousarray(w)
    comm.broadcast(w, "model_down", ranks)
    ledger.downlink(everyone.size * w.size, w.itemsize)
    return w, ledger


STARTS = {"kmeans_parallel": from_centres(KMeansParallel), "robust": from_centres(Cal), "nndsvd": nndsvd}
