"""Clients placed by measured seconds: the same run, whatever the cut."""

import numpy as np
import pytest

from fedmavg_mpi import balance, runner
from tests.mpi.conftest import settings, whole_factors


@pytest.mark.parametrize("method", ["reduce", "gather"])
def test_the_placement_changes_no_result(comm, small_store, method, monkeypatch):
    """Not even the bits, under gather; the costs here move every end that there is."""
    monkeypatch.setattr(balance, "fit", lambda timed: np.array([1e3, 1.0]))
    ends, cuts = [], []
    for placement in ("size", "measured"):
        chosen = settings(f"aggregation.method={method}", f"run.placement={placement}", "stop.max_rounds=4")
        federation = runner.Federation(comm, chosen, small_store)
        runner.rounds(federation)
        ends.append(whole_factors(federation))
        cuts.append(federation.placement.cut.tolist())
    if comm.size == 2:
        assert cuts[0] == cuts[1]
    if comm.is_server:
        (w, h), (other_w, other_h) = ends
        same = np.array_equal if method == "gather" else np.allclose
        assert same(w, other_w) and all(same(*pair) for pair in zip(h, other_h))


def test_a_trial_is_timed_on_every_rank_and_in_no_ledger(comm, small_store, monkeypatch):
    seen = []
    monkeypatch.setattr(balance, "fit", lambda timed: seen.append(timed) or np.array([0.0, 1.0]))
    before = comm.ledger.as_array().sum()
    federation = runner.Federation(comm, settings("run.placement=size"), small_store)
    plain = comm.ledger.as_array().sum() - before
    federation = runner.Federation(comm, settings("run.placement=measured"), small_store)
    assert comm.ledger.as_array().sum() - before == 2 * plain
    assert federation.placement.cut[-1] == small_store.sizes.size
    if comm.size > 2 and comm.is_server:
        (timed,) = seen
        assert (timed[:, 2] > 0).all() and timed[:, 0].sum() >= small_store.sizes.size


def test_the_fit_finds_what_a_client_and_a_sample_cost(comm):
    random = np.random.default_rng(0)
    counts = random.integers(1, 50, (30, 2))
    found = balance.fit(np.column_stack([counts, 3e-5 * counts[:, 0] + 6e-6 * counts[:, 1] + 1e-4]))
    assert found == pytest.approx([5.0, 1.0])
    assert balance.fit(np.empty((0, 3))).tolist() == [0, 1]
    assert balance.fit(np.array([[3.0, 0.0, 1.0]])).tolist() == [0, 1]
