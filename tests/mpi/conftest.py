"""What the tests under 1, 2, 3, 4 ranks share: the communicator, and a small federation on all ranks."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fedmavg_mpi import communicator, config, runner, store
from fedmavg_mpi.datasets import Dataset


@pytest.fixture(scope="session")
def comm():
    return communicator.connect()


@pytest.fixture
def folder(comm):
    """A folder that all ranks see."""
    path = Path(comm.broadcast_text(tempfile.mkdtemp() if comm.is_server else None))
    yield path
    with comm.together():  # all are done with it
        pass
    if comm.is_server:
        shutil.rmtree(path)


@pytest.fixture
def small_store(comm, folder):
    """A store of 60 samples x 13 features of 3 classes on 7 uneven clients, one of them of a single sample."""
    return write_small_store(comm, folder / "store.h5")


def write_small_store(comm, path, samples=None, client_of_sample=None):
    random = np.random.default_rng(7)
    labels = random.integers(0, 3, 60).astype(np.int32)
    if samples is None:
        samples = random.random((3, 13))[labels] + 0.3 * random.random((60, 13))
        samples[5] = 0  # a legal all-zero sample, and a feature that is always zero
        samples[:, 4] = 0
    if client_of_sample is None:
        client_of_sample = np.repeat(np.arange(7), [12, 1, 17, 3, 9, 14, 4])[random.permutation(60)]
    if comm.is_server:
        store.write(path, Dataset(samples, labels=labels, label_names=["a", "b", "c"]), client_of_sample, "by hand")
    comm.broadcast_text("written")
    return store.ClientStore(path)


def settings(*overrides):
    """A configuration for the small store."""
    return config.read(None, ["model.n_components=4", "model.rho=1e-2", "model.nu=1e-3", "run.progress=off", *overrides])


def whole_factors(federation):
    """W (M x K) and the list of H_p (K x N_p) at the server; (None, None) elsewhere."""
    comm, placement = federation.comm, federation.placement
    h = comm.gather(np.ascontiguousarray(federation.shard.h.T), placement.rows, "control")
    if not comm.is_server:
        return None, None
    return federation.algorithm.w.T.copy(), np.split(h.T, np.cumsum(placement.sizes)[:-1], axis=1)


def pooled(client_store, dtype=np.float64):
    """The clients' samples as the oracle takes them: list of M x N_p."""
    samples = client_store.slab(range(client_store.sizes.size), dtype)
    samples = samples if isinstance(samples, np.ndarray) else samples.toarray()
    return [part.T.astype(np.float64) for part in np.split(samples, client_store.offsets[1:-1])]


__all__ = ["pooled", "runner", "settings", "whole_factors", "write_small_store"]
