"""The choice between ways of forming products: measured once, kept, and never in the way."""

import json

import numpy as np
import pytest
from scipy import sparse

from fedmavg_mpi import communicator, config, store
from fedmavg_mpi.applications import clustering, fastest
from fedmavg_mpi.config import RunConfig
from fedmavg_mpi.datasets import Dataset
from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.federation import Federation
from fedmavg_mpi.kernels import tiles
from fedmavg_mpi.models.products import DENSE


@pytest.fixture
def choose(tmp_path, monkeypatch):
    """A choice by the given seconds a trial, and the trials that it took."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tiles, "COMPILED", True)
    trials = []

    def chosen(seconds, n_components=3, **run):
        monkeypatch.setattr(fastest, "trial", lambda name, *shape: trials.append(name) or seconds[name])
        return fastest.fastest_products(communicator.connect(), RunConfig(**run), n_components, 9)

    return chosen, trials, tmp_path / "fedmavg_mpi" / fastest.CACHE


def test_the_faster_one_is_taken_and_kept(choose):
    chosen, trials, path = choose
    assert chosen({"tiles": 1.0, "blas": 0.5}) == "blas"
    assert chosen({"tiles": 0.5, "blas": 1.0}) == "blas"  # as it was found before
    assert len(trials) == 2
    assert chosen({"tiles": 0.5, "blas": 1.0}, n_components=4) == "tiles"
    assert chosen({"tiles": 0.5, "blas": 1.0}, dtype="float32") == "tiles"
    assert sorted(json.loads(path.read_text()).values()) == ["blas", "tiles", "tiles"]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_noise_does_not_choose(choose):
    chosen, *_ = choose
    assert chosen({"tiles": 1.0, "blas": 0.9}) == "tiles"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\0", "[" * 100_000, "[[[], 1]]"], ids=range(6))
def test_a_broken_file_is_replaced(choose, text):
    chosen, trials, path = choose
    path.parent.mkdir()
    path.write_text(text)
    assert chosen({"tiles": 1.0, "blas": 0.5}) == chosen({"tiles": 1.0, "blas": 0.5}) == "blas"
    assert len(trials) == 2


def test_a_folder_that_cannot_be_written_is_no_error(choose, tmp_path, monkeypatch):
    chosen, trials, _ = choose
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert chosen({"tiles": 1.0, "blas": 0.5}) == "blas"


def test_a_folder_in_the_files_place_is_no_error_and_gathers_nothing(choose):
    chosen, trials, path = choose
    path.mkdir(parents=True)
    assert chosen({"tiles": 1.0, "blas": 0.5}) == "blas"
    assert list(path.parent.iterdir()) == [path]


def test_an_account_without_a_home_is_no_error(choose, monkeypatch):
    chosen, trials, _ = choose
    monkeypatch.setenv("XDG_CACHE_HOME", "~no such account/cache")
    assert chosen({"tiles": 1.0, "blas": 0.5}) == chosen({"tiles": 1.0, "blas": 0.5}) == "blas"
    assert len(trials) == 4


def test_what_is_asked_for_is_taken(choose, monkeypatch):
    chosen, trials, _ = choose
    assert chosen({}, products="blas") == "blas" and chosen({}, products="tiles") == "tiles"
    monkeypatch.setattr(tiles, "COMPILED", False)
    assert chosen({}, products="auto") == "blas" and not trials
    with pytest.raises(ConfigError, match="NUMBA_DISABLE_JIT"):
        chosen({}, products="tiles")


@pytest.mark.parametrize("name", fastest.NAMES)
@pytest.mark.parametrize("n_features", [1, 5, 10**7])
def test_a_trial_takes_time_and_little_memory(name, n_features, monkeypatch):
    shapes = []
    monkeypatch.setattr(fastest, "DENSE", {name: lambda samples: shapes.append(samples.nbytes) or DENSE[name](samples)})
    assert fastest.trial(name, 3, n_features, np.dtype("float32")) > 0
    assert shapes[0] <= fastest.SAMPLES_BYTES


def test_nothing_is_measured_for_sparse_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(clustering, "fastest_products", None)
    samples = sparse.csr_array(np.eye(6) + 0.1)
    store.write(tmp_path / "s.h5", Dataset(samples), np.arange(6) // 3, "by hand")
    chosen = config.read(None, ["model.n_components=2", "run.progress=off", "run.products=tiles"])
    federation = Federation(communicator.connect(), chosen, store.ClientStore(tmp_path / "s.h5"))
    assert federation.shard.products.name == "sparse"
