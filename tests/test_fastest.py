"""The choice between ways of forming products: measured once, kept, and never in the way."""

import json

import pytest

from fedmavg_mpi import communicator
from fedmavg_mpi.applications import fastest
from fedmavg_mpi.config import RunConfig
from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.kernels import tiles


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


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\0"])
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


def test_what_is_asked_for_is_taken(choose, monkeypatch):
    chosen, trials, _ = choose
    assert chosen({}, products="blas") == "blas" and chosen({}, products="tiles") == "tiles"
    monkeypatch.setattr(tiles, "COMPILED", False)
    assert chosen({}, products="auto") == "blas" and not trials
    with pytest.raises(ConfigError, match="NUMBA_DISABLE_JIT"):
        chosen({}, products="tiles")


@pytest.mark.parametrize("name", fastest.NAMES)
def test_a_trial_takes_time(name):
    assert fastest.trial(name, 3, 5, fastest.np.dtype("float32")) > 0
