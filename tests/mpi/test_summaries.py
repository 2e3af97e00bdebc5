"""k-means from what clients send once, on any number of ranks: against plain loops, the same bits, both ledgers, clients of any kind."""

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

from fedmavg_mpi import rng, runner
from fedmavg_mpi.algorithms.kmeans import cluster
from fedmavg_mpi.communicator import Communicator
from fedmavg_mpi.ledger import KINDS
from fedmavg_mpi.models.trimmed_kmeans import trimmed_kmeans
from tests import naive_kmeans as naive
from tests.mpi.conftest import pooled, settings, whole_factors, write_small_store

NAMES = ["kmeans_parallel", "bel", "cal"]
SEED, K, M, SIZE, SEEDING_ROUNDS, OUTLIER_SHARE = 3, 4, 13, 5, 3, 0.05


def configured(name, *more):
    sizes = (f"algorithm.summary_size={SIZE}", f"algorithm.seeding_rounds={SEEDING_ROUNDS}")
    share = f"algorithm.outlier_share={OUTLIER_SHARE}"
    return runner.check(settings(f"algorithm.name={name}", f"run.seed={SEED}", *sizes, share, *more))


def follow(comm, store, chosen):
    """A run: (federation, history, end, MPI bytes of each round by kind)."""
    federation = runner.Federation(comm, chosen, store)
    moved, run_round = [], federation.algorithm.run_round

    def counted(s):
        before = comm.ledger.as_array()
        done = run_round(s)
        moved.append(dict(zip(KINDS, (comm.ledger.as_array() - before).T.tolist())))
        return done

    federation.algorithm.run_round = counted
    history = runner.rounds(federation)
    return federation, history, whole_factors(federation), moved


def sparse_samples():
    random = np.random.default_rng(3)
    return sparse.csr_array(random.random((60, M)) * (random.random((60, M)) < 0.3))


STORES = {
    "uneven": lambda comm, path: write_small_store(comm, path),
    "sparse": lambda comm, path: write_small_store(comm, path, sparse_samples()),
    "equal": lambda comm, path: write_small_store(comm, path, np.full((60, M), 0.7)),
    "two places": lambda comm, path: write_small_store(comm, path, np.repeat(np.eye(M)[:2] + 0.1, 30, axis=0)),
    "two clients": lambda comm, path: write_small_store(comm, path, client_of_sample=np.repeat([0, 1], [1, 59])),
    "a client a sample": lambda comm, path: write_small_store(comm, path, client_of_sample=np.arange(60)),
    "an empty client": lambda comm, path: write_small_store(comm, path, client_of_sample=np.arange(60) % 3 * 2),
}


@pytest.fixture(params=STORES)
def any_store(request, comm, folder):
    return STORES[request.param](comm, folder / "store.h5")


def random_of(seed):
    return lambda client, stage: rng.generator(seed, rng.SUMMARIES, client, stage)


def kmeans_parallel(clients, seed):
    """(Points, weights, rounds) of the oracle; a round is what goes up and down: see :func:`expected_ledger`."""
    shares = [len(X_p) / 60 for X_p in clients]
    p = rng.generator(seed, rng.CENTRES, 1).choice(len(clients), p=shares)
    first = p, random_of(seed)(p, 0).integers(len(clients[p]), size=1)[0]
    C, weights, offered = naive.kmeans_parallel(clients, SIZE, SEEDING_ROUNDS, first, random_of(seed))
    rounds = [
        {"up": offered[s + 1], "costs": 1, "weights": 0, "down": sum(offered[s]), "numbers down": 1}
        for s in range(SEEDING_ROUNDS)
    ]
    rounds[0]["up"] = [a + b for a, b in zip(offered[0], offered[1])]
    rounds.append(
        {"up": [0] * len(clients), "costs": 0, "weights": len(C), "down": sum(offered[SEEDING_ROUNDS]), "numbers down": 0}
    )
    return C, weights, rounds


def bel(clients, seed):
    B = [
        X if len(X) <= K else cluster(X, np.ones(len(X)), K, random_of(seed)(p, 1))
        for p, X in enumerate(clients)
    ]  # fmt: skip
    t = naive.allot([0 if len(X) <= K else naive.cost(X, B_p) for X, B_p in zip(clients, B)], SIZE)
    points, weights, sent = [], [], []
    for p, X in enumerate(clients):
        sampled, w_b = naive.coreset(X, B[p], t[p], random_of(seed)(p, 2))
        w_b = [1] * len(X) if len(X) <= K else w_b
        chosen = sorted(sampled)
        points += [*X[chosen], *B[p]]
        weights += [*(sampled[q] for q in chosen), *w_b]
        sent.append(len(chosen) + len(B[p]))
    first = {"up": [0] * len(clients), "costs": 1, "weights": 0, "down": 0, "numbers down": 0}
    return points, weights, [first, {"up": sent, "costs": 0, "weights": None, "down": 0, "numbers down": 1}]


def cal(clients, seed):
    points, weights, sent = [], [], []
    for p, X in enumerate(clients):
        summary = naive.ball_growing(X, 2 * OUTLIER_SHARE * len(X), SIZE, random_of(seed)(p, 1))
        points += [X[x] for x in sorted(summary)]
        weights += [summary[x] for x in sorted(summary)]
        sent.append(len(summary))
    return points, weights, [{"up": sent, "costs": 0, "weights": None, "down": 0, "numbers down": 0}]


ORACLES = {"kmeans_parallel": kmeans_parallel, "bel": bel, "cal": cal}


def centres_of(name, points, weights, seed):
    random, points, weights = rng.generator(seed, rng.CENTRES), np.array(points, float), np.array(weights, float)
    if name == "cal":
        return trimmed_kmeans(points, weights, K, OUTLIER_SHARE * weights.sum(), random)[0]
    return cluster(points, weights, K, random)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_same_bits_as_one_process(comm, any_store, name, dtype):
    chosen = configured(name, f"run.dtype={dtype}")
    (_, history, end, _), (_, alone, wanted, _) = (
        follow(part, any_store, chosen) for part in (comm, Communicator(MPI.COMM_SELF))
    )
    if comm.is_server:
        assert end[0].dtype == dtype and np.isfinite(end[0]).all()
        np.testing.assert_array_equal(end[0], wanted[0])
        np.testing.assert_array_equal(np.hstack(end[1]), np.hstack(wanted[1]))
        assert np.hstack(end[1]).sum() == 60
        for side in ("uplink_values", "uplink_bytes", "downlink_values", "downlink_bytes"):
            assert history.per_round[side] == alone.per_round[side]
        assert history.stop_reason == "centres found"


@pytest.mark.parametrize("name", NAMES)
def test_centres_are_the_oracles(comm, any_store, name):
    _, history, end, _ = follow(comm, any_store, configured(name))
    if comm.is_server:
        clients = [X_p.T for X_p in pooled(any_store)]
        points, weights, rounds = ORACLES[name](clients, SEED)
        wanted = centres_of(name, points, weights, SEED)
        if len(np.unique(np.vstack(clients), axis=0)) < K:  # which centres stand at the same place is up to rounding
            np.testing.assert_allclose([naive.cost(X_p, end[0].T) for X_p in clients], 0, atol=1e-25)
        else:
            np.testing.assert_allclose(end[0].T, wanted, rtol=1e-10, atol=1e-12)
        assert len(history.per_round["uplink_values"]) == len(rounds)


@pytest.mark.parametrize("itemsize", [8, 4])
@pytest.mark.parametrize("name", NAMES)
def test_ledgers_are_the_closed_form(comm, small_store, name, itemsize):
    dtype = f"float{8 * itemsize}"
    federation, history, _, moved = follow(comm, small_store, configured(name, f"run.dtype={dtype}"))
    _, _, rounds = ORACLES[name]([X_p.T for X_p in pooled(small_store, dtype)], SEED)
    own, P = federation.placement.clients_of(comm.rank), small_store.sizes.size
    for s, sends in enumerate(rounds):
        weights = [sends["weights"]] * P if sends["weights"] is not None else sends["up"]
        by_client = [points * M * itemsize + 8 * w for points, w in zip(sends["up"], weights, strict=True)]
        here = sum(by_client[p] for p in own)
        down = sends["down"] * M * itemsize
        if comm.size == 1:
            wanted = [0, 0], [0, 0]
        elif comm.is_server:
            wanted = [0, sum(by_client)], [down, 0]
        else:
            wanted = [here, 0], [0, down if len(own) else 0]
        assert (moved[s]["model_up"], moved[s]["model_down"]) == wanted
        assert moved[s]["evaluation"] == moved[s]["step_size"] == [0, 0]
        if comm.is_server:
            found = {side: history.per_round[side][s] for side in history.per_round if "link" in side}
            assert found == {
                "uplink_values": sum(sends["up"]) * M + sum(weights) + P * sends["costs"],
                "uplink_bytes": sum(by_client) + 8 * P * sends["costs"],
                "downlink_values": P * (sends["down"] * M + sends["numbers down"]),
                "downlink_bytes": P * (down + 8 * sends["numbers down"]),
            }


def test_sparse_rows_count_their_values_and_indices(comm, folder):
    store = write_small_store(comm, folder / "sparse.h5", sparse_samples())
    _, history, _, moved = follow(comm, store, configured("cal"))
    clients = [X_p.T for X_p in pooled(store)]
    points, weights, _ = cal(clients, SEED)
    values = np.count_nonzero(points)
    if comm.is_server:
        assert history.per_round["uplink_values"] == [2 * values + len(weights)]
        assert history.per_round["uplink_bytes"] == [12 * values + 8 * len(weights)]
        assert moved[0]["model_up"] == [0, (12 * values + 8 * len(weights)) * (comm.size > 1)]


@pytest.mark.parametrize("name", NAMES)
def test_as_good_as_the_same_method_on_pooled_data(comm, small_store, name):
    """Mean cost over seeds of the samples that are kept, against the range of the plain method with one client."""
    samples = np.hstack(pooled(small_store)).T
    t = OUTLIER_SHARE * 60 * (name == "cal")

    def cost(centres):
        distances = [naive.nearest(x, centres)[1] for x in samples]
        return np.dot(naive.trim(distances, [1] * 60, t), distances)

    found = [follow(comm, small_store, configured(name, f"run.seed={seed}"))[2][0] for seed in range(10)]
    if comm.is_server:
        plain = [cost(centres_of(name, *ORACLES[name]([samples], seed)[:2], seed)) for seed in range(10)]
        assert min(plain) * 0.999 <= np.mean([cost(W.T) for W in found]) <= max(plain)
