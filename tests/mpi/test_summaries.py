"""k-means from what clients send once, on any number of ranks: the same bits, both ledgers, clients of any kind."""

import numpy as np
import pytest
from mpi4py import MPI
from scipy import sparse

from fedmavg_mpi import rng, runner
from fedmavg_mpi.algorithms.kmeans import cluster
from fedmavg_mpi.communicator import Communicator
from fedmavg_mpi.ledger import KINDS
from tests import naive_kmeans as naive
from tests.mpi.conftest import pooled, settings, whole_factors, write_small_store

NAMES = ["kmeans_parallel"]
SEED = 3
FEW_CLIENTS = np.repeat([0, 1], [1, 59])


def configured(name, *more):
    return runner.check(settings(f"algorithm.name={name}", f"run.seed={SEED}", "algorithm.summary_size=5", *more))


def follow(comm, store, chosen):
    """A run: (federation, history, end, MPI bytes of the rounds by kind)."""
    federation = runner.Federation(comm, chosen, store)
    before = comm.ledger.as_array()
    history = runner.rounds(federation)
    moved = dict(zip(KINDS, (comm.ledger.as_array() - before).T.tolist()))
    return federation, history, whole_factors(federation), moved


def sparse_samples():
    random = np.random.default_rng(3)
    return sparse.csr_array(random.random((60, 13)) * (random.random((60, 13)) < 0.3))


STORES = {
    "uneven": lambda comm, path: write_small_store(comm, path),
    "sparse": lambda comm, path: write_small_store(comm, path, sparse_samples()),
    "equal": lambda comm, path: write_small_store(comm, path, np.full((60, 13), 0.7)),
    "two places": lambda comm, path: write_small_store(comm, path, np.repeat(np.eye(13)[:2] + 0.1, 30, axis=0)),
    "two clients": lambda comm, path: write_small_store(comm, path, client_of_sample=FEW_CLIENTS),
    "a client a sample": lambda comm, path: write_small_store(comm, path, client_of_sample=np.arange(60)),
}


@pytest.fixture(params=STORES)
def any_store(request, comm, folder):
    return STORES[request.param](comm, folder / "store.h5")


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


def test_kmeans_parallel_is_the_oracles(comm, any_store):
    _, _, end, _ = follow(comm, any_store, configured("kmeans_parallel", "algorithm.seeding_rounds=3"))
    if comm.is_server:
        clients = [X_p.T for X_p in pooled(any_store)]
        p = rng.generator(SEED, rng.CENTRES, 1).choice(len(clients), p=[len(X_p) / 60 for X_p in clients])
        first = p, rng.generator(SEED, rng.SUMMARIES, p, 0).integers(len(clients[p]), size=1)[0]
        C, weights = naive.kmeans_parallel(clients, 5, 3, first, lambda p, s: rng.generator(SEED, rng.SUMMARIES, p, s))
        wanted = cluster(np.array(C), np.array(weights), 4, rng.generator(SEED, rng.CENTRES))
        np.testing.assert_allclose(end[0].T, wanted, rtol=1e-10, atol=1e-12)
