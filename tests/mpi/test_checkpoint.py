"""A run that stops at a checkpoint and goes on is the run that never stopped, on any number of ranks."""

import numpy as np
import pytest
from mpi4py import MPI

from fedmavg_mpi import runner
from fedmavg_mpi.applications import clustering as application
from fedmavg_mpi.checkpoint import Checkpoints
from fedmavg_mpi.communicator import Communicator, FailedElsewhereError
from fedmavg_mpi.errors import ConfigError, DataError
from fedmavg_mpi.kernels import tiles
from fedmavg_mpi.signals import StopSignals
from tests.mpi import small_ratings
from tests.mpi.conftest import settings

STOP = 4
CLUSTERING = [
    # algorithm, method, m, participation, step
    ("fedmavg", "reduce", 0, "pcc", "global"),
    ("fedmavg", "reduce", 3, "pcp", "global"),
    ("fedmavg", "allreduce", 2, "pcc", "local"),
    ("fedmavg", "allreduce", 2, "pcp", "global"),
    ("fedmavg", "gather", 3, "pcp", "global"),
    ("fedmavg", "gather", 3, "pcc", "local"),
    ("gradient_sharing", "gather", 0, "pcc", "global"),
    ("fedmavg", "gather", 3, "pcc", "global", "algorithm.upload_dtype=bfloat16"),
    ("centralized", "gather", 0, "pcc", "local"),
]
RATINGS = [
    ("fedmavg", "reduce", "dense", "clients", 0),
    ("fedmavg", "gather", "rows", "rows", 3),
    ("fedavg", "reduce", "rows", "clients", 3),
    ("gossip", "gather", "rows", "clients", 0),
    ("centralized", "gather", "dense", "clients", 0),
]


def clustering(mode, *more):
    name, method, m, participation, step, *others = mode
    return runner.check(
        settings(
            f"algorithm.name={name}",
            f"aggregation.method={method}",
            f"algorithm.clients_per_round={m}",
            f"algorithm.participation={participation}",
            f"algorithm.step_size_w={step}",
            "algorithm.penalty_continuation=true",
            "algorithm.stage_rounds=3",
            "model.rho=1e-3",
            "stop.max_rounds=9",
            *others,
            *more,
        )
    )


def recommendation(mode, *more):
    name, method, upload, weighting, m = mode
    return runner.check(
        small_ratings.configured(
            name,
            f"aggregation.method={method}",
            f"algorithm.upload={upload}",
            f"aggregation.weighting={weighting}",
            f"algorithm.clients_per_round={m}",
            "model.biases=true",
            "stop.max_rounds=9",
            *more,
        )
    )


class StopAfter(StopSignals):
    """As if a signal arrived at the server in round ``STOP``."""

    def __init__(self, federation):
        super().__init__()
        self.federation = federation

    @property
    def received(self):
        return "SIGTERM" if self.federation.comm.is_server and self.federation.history.n_rounds >= STOP - 1 else None

    @received.setter
    def received(self, value):
        pass


def checkpoints_of(federation, folder, mark="the same"):
    return Checkpoints(federation.comm, folder, federation.placement, mark)


def state_of(federation):
    """What two equal runs have in common: (server's part, the rank's ledger, private parts in client order), ready to be compared."""
    comm = federation.comm
    with comm.uncounted():
        server, rank, private, _ = federation.state()
        whole = {
            name: comm.gather(np.ascontiguousarray(part), federation.placement.rows, "control") for name, part in private.items()
        }
    server.pop("history/seconds", None)
    return server, rank["ledger"], whole if comm.is_server else {}


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def stopped_and_resumed(comm, store, chosen, folder, second=None):
    """(the run that never stopped, the one that did), both finished; the second part on the communicator ``second``."""
    uninterrupted = runner.Federation(comm, chosen, store)
    before = comm.ledger.as_array()
    runner.rounds(uninterrupted)
    moved = comm.ledger.as_array() - before

    first = runner.Federation(comm, chosen, store)
    comm.ledger.restore(before)  # as if each of the two was all that this process did
    history = runner.rounds(first, checkpoints_of(first, folder), StopAfter(first))
    assert history.interrupted and history.n_rounds == STOP

    second = second or comm
    resumed = runner.Federation(second, chosen, store)
    resumed.restore(*checkpoints_of(resumed, folder).latest())
    runner.rounds(resumed)
    if second is comm:
        np.testing.assert_array_equal(comm.ledger.as_array() - before, moved)
    return uninterrupted, resumed


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("mode", CLUSTERING, ids=lambda mode: "-".join(map(str, mode)))
def test_clustering_goes_on_bit_for_bit(comm, folder, small_store, mode, dtype):
    runs = stopped_and_resumed(comm, small_store, clustering(mode, f"run.dtype={dtype}"), folder)
    (server, _, private), (wanted_server, _, wanted_private) = map(state_of, runs[::-1])
    assert_same(server, wanted_server)
    assert_same(private, wanted_private)


@pytest.mark.parametrize("mode", RATINGS, ids=lambda mode: "-".join(map(str, mode)))
def test_recommendation_goes_on_bit_for_bit(comm, folder, mode):
    store = small_ratings.write_ratings(comm, folder / "ratings.h5")
    runs = stopped_and_resumed(comm, store, recommendation(mode), folder)
    (server, _, private), (wanted_server, _, wanted_private) = map(state_of, runs[::-1])
    assert_same(server, wanted_server)
    assert_same(private, wanted_private)


@pytest.mark.parametrize("mode", [mode for mode in CLUSTERING if mode[1] == "gather"], ids=lambda mode: "-".join(map(str, mode)))
def test_goes_on_with_one_process_for_many(comm, folder, small_store, mode):
    """... and the other way round below."""
    if not comm.is_server:
        stopped_only(comm, small_store, clustering(mode), folder)
        comm.broadcast_text("compared")
        return
    uninterrupted = runner.Federation(Communicator(MPI.COMM_SELF), clustering(mode), small_store)
    runner.rounds(uninterrupted)
    stopped_only(comm, small_store, clustering(mode), folder)
    alone = runner.Federation(Communicator(MPI.COMM_SELF), clustering(mode), small_store)
    alone.restore(*checkpoints_of(alone, folder).latest())
    runner.rounds(alone)
    compare_but_traffic(alone, uninterrupted)
    assert alone.history.ranks_since == (0 if comm.size == 1 else STOP)
    comm.broadcast_text("compared")


@pytest.mark.parametrize("mode", [mode for mode in CLUSTERING if mode[1] == "gather"], ids=lambda mode: "-".join(map(str, mode)))
def test_goes_on_with_many_for_one_process(comm, folder, small_store, mode):
    uninterrupted = None
    if comm.is_server:
        alone = Communicator(MPI.COMM_SELF)
        stopped_only(alone, small_store, clustering(mode), folder)
        uninterrupted = runner.Federation(alone, clustering(mode), small_store)
        runner.rounds(uninterrupted)
    comm.broadcast_text("written")
    resumed = runner.Federation(comm, clustering(mode), small_store)
    resumed.restore(*checkpoints_of(resumed, folder).latest())
    runner.rounds(resumed)
    found = state_of(resumed)
    if comm.is_server:
        wanted = state_of(uninterrupted)
        assert_same(without_traffic(found[0]), without_traffic(wanted[0]))
        assert_same(found[2], wanted[2])


@pytest.mark.parametrize("begun_by", ["all ranks", "the server alone"])
def test_the_way_of_forming_products_stays_over_two_resumes(comm, folder, small_store, monkeypatch, begun_by):
    """Whatever a start would choose then; also at a server that has no samples."""

    def federation(comm, name):
        monkeypatch.setattr(application, "fastest_products", lambda *shape: name)
        return runner.Federation(comm, clustering(CLUSTERING[0]), small_store)

    if begun_by == "all ranks" or comm.is_server:
        first = federation(comm if begun_by == "all ranks" else Communicator(MPI.COMM_SELF), "blas")
        runner.rounds(first, checkpoints_of(first, folder), StopAfter(first))
    comm.broadcast_text("written")
    for _ in range(2):
        resumed = federation(comm, "tiles")
        resumed.restore(*checkpoints_of(resumed, folder).latest())
        assert resumed.shard.products.name == "blas"
        runner.rounds(resumed, checkpoints_of(resumed, folder), StopAfter(resumed))


def test_compiled_products_do_not_go_on_without_the_compiler(comm, folder, small_store, monkeypatch):
    monkeypatch.setattr(application, "fastest_products", lambda *shape: "tiles")
    stopped_only(comm, small_store, clustering(CLUSTERING[0]), folder)
    monkeypatch.setattr(tiles, "COMPILED", False)
    resumed = runner.Federation(comm, clustering(CLUSTERING[0]), small_store)
    with pytest.raises((ConfigError, FailedElsewhereError)):
        resumed.restore(*checkpoints_of(resumed, folder).latest())


def stopped_only(comm, store, chosen, folder):
    federation = runner.Federation(comm, chosen, store)
    runner.rounds(federation, checkpoints_of(federation, folder), StopAfter(federation))


def without_traffic(server):
    return {name: value for name, value in server.items() if name not in ("history/mpi", "history/ranks_since", "holders")}


def compare_but_traffic(found, wanted):
    found, wanted = state_of(found), state_of(wanted)
    assert_same(without_traffic(found[0]), without_traffic(wanted[0]))
    assert_same(found[2], wanted[2])


def written(comm, folder, small_store):
    """Two generations of a run: after rounds 2 and 4."""
    chosen = clustering(CLUSTERING[0], "run.checkpoint_every=2")
    federation = runner.Federation(comm, chosen, small_store)
    runner.rounds(federation, checkpoints_of(federation, folder), StopAfter(federation))
    return federation


def latest_round(federation, folder, mark="the same"):
    """The round of the newest whole checkpoint, on every rank."""
    server, *_ = checkpoints_of(federation, folder, mark).latest()
    return len(server["history/seconds"])


def harm(comm, path, how):
    if comm.is_server:
        content = path.read_bytes()
        if how == "gone":
            path.unlink()
        elif how == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif how == "flipped":  # one bit, where the HDF5 library would crash
            place = min(1057, len(content) // 2)
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        elif how == "zeroed":  # a sector, on which it would loop for ever
            start = next((begin for begin in range(512, len(content), 512) if any(content[begin : begin + 512])), 0)
            path.write_bytes(content[:start] + bytes(min(512, len(content) - start)) + content[start + 512 :])
        elif how == "empty":
            path.write_bytes(b"")
    comm.broadcast_text("harmed")


@pytest.mark.parametrize("how", ["gone", "cut", "flipped", "zeroed", "empty"])
@pytest.mark.parametrize("which", ["server.h5", "server.sha256", "rank"])
def test_a_harmed_checkpoint_gives_way_to_the_one_before(comm, folder, small_store, which, how):
    federation = written(comm, folder, small_store)
    assert latest_round(federation, folder) == 4
    name = which if which != "rank" else f"rank-{comm.size - 1:04d}.h5"
    harm(comm, folder / "checkpoint" / "round-00000004" / name, how)
    assert latest_round(federation, folder) == 2
    harm(comm, folder / "checkpoint" / "round-00000002" / name, how)
    if which == "server.sha256" and how == "gone":
        assert checkpoints_of(federation, folder).latest() is None
        return
    with pytest.raises((DataError, FailedElsewhereError)):
        latest_round(federation, folder)


def test_only_two_generations_stay(comm, folder, small_store):
    chosen = clustering(CLUSTERING[0], "run.checkpoint_every=1")
    federation = runner.Federation(comm, chosen, small_store)
    with StopSignals() as stop:
        runner.rounds(federation, checkpoints_of(federation, folder), stop)
    if comm.is_server:
        names = sorted(path.name for path in (folder / "checkpoint").iterdir())
        assert names == ["round-00000008", "round-00000009"]


def test_checkpoint_of_another_run(comm, folder, small_store):
    federation = written(comm, folder, small_store)
    checkpoints = checkpoints_of(federation, folder, "another")
    with pytest.raises((DataError, FailedElsewhereError)) as caught:
        checkpoints.latest()
    if comm.is_server:
        assert "the same where this one has another" in str(caught.value)
