"""Runs that are stopped by signals or killed, and go on, in processes of their own."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import environment, error_of, fedmavg

from fedmavg_mpi import results, signals

JOB = """
[data]
source = "store"
path = "{store}"

[model]
n_components = 6
rho = 1e-4

[algorithm]
clients_per_round = 4
penalty_continuation = true
stage_rounds = 60

[aggregation]
method = "gather"

[stop]
max_rounds = 400

[run]
checkpoint_every = 20
progress = "off"
"""
SAME = ("rounds", "stop_reason", "objective", "accuracy", "uplink_bytes", "downlink_bytes", "w_sha256", "h_sha256")
SAME_RANKS = ("mpi_sent_bytes", "mpi_received_bytes", "mpi_evaluation_sent_bytes")


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job whose rounds take a few milliseconds, and how it ends when nothing disturbs it, on 3 ranks."""
    folder = tmp_path_factory.mktemp("restart")
    sizes = "data.n_features=60", "data.n_samples=1500", "data.n_clusters=6", "partition.n_clients=12"
    settings = [word for size in sizes for word in ("--set", size)]
    done = fedmavg("data", "prepare", "synthetic", *settings, "--out", folder / "store.h5")
    assert done.returncode == 0, done.stderr
    (folder / "job.toml").write_text(JOB.format(store=folder / "store.h5"))
    done = fedmavg("run", folder / "job.toml", "--out", folder / "whole", ranks=3)
    assert done.returncode == 0, done.stderr
    return folder / "job.toml", results.summarize(folder / "whole")


def start(job, out, ranks, *more):
    """The process of a run, started as the leader of a process group."""
    command = [sys.executable, "-m", "fedmavg_mpi.cli", "run", str(job), "--out", str(out), *more]
    if ranks > 1:
        command = ["mpirun", "-n", str(ranks), *command]
    return subprocess.Popen(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_checkpoint(out, process):
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoint/round-*/server.sha256")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ranks_of(out):
    """Ids of the processes that carry out the run in a directory."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")  # empty for one that is dead
            except OSError:
                continue
            if str(out).encode() in words and b"python" in words[0]:
                found.append(int(folder.name))
    return found


def same(found, wanted, names=SAME):
    assert {name: found[name] for name in names} == {name: wanted[name] for name in names}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=lambda number: number.name)
def test_signal_then_resume(job, tmp_path, number, ranks):
    path, whole = job
    out = tmp_path / "run"
    process = start(path, out, ranks)
    wait_for_checkpoint(out, process)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "--resume" in stderr and "Traceback" not in stderr and "Abort" not in stderr
    assert not (out / "run.h5").exists()
    refused = fedmavg("run", path, "--out", out, ranks=ranks)
    assert "--resume" in error_of(refused)
    done = fedmavg("run", path, "--out", out, "--resume", ranks=ranks)
    assert done.returncode == 0 and "going on after round" in done.stderr
    found = results.summarize(out)
    same(found, whole, (*SAME, *SAME_RANKS) if ranks == 3 else SAME)
    assert not (out / "checkpoint").exists()
    again = fedmavg("run", path, "--out", out, "--resume", ranks=ranks)  # as a job that was requeued once too often
    assert again.returncode == 0
    assert results.summarize(out) == found


def test_a_worker_that_alone_gets_the_signal_stops_all(job, tmp_path):
    path, whole = job
    process = start(path, tmp_path / "run", 3)
    wait_for_checkpoint(tmp_path / "run", process)
    os.kill(max(ranks_of(tmp_path / "run")), signal.SIGUSR1)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    done = fedmavg("run", path, "--out", tmp_path / "run", "--resume", ranks=2)  # and on fewer ranks
    assert done.returncode == 0
    same(results.summarize(tmp_path / "run"), whole)


def test_resume_where_there_is_nothing_starts(job, tmp_path):
    path, whole = job
    done = fedmavg("run", path, "--out", tmp_path / "run", "--resume", ranks=2)
    assert done.returncode == 0 and "going on" not in done.stderr
    same(results.summarize(tmp_path / "run"), whole)


@pytest.fixture
def stopped(job, tmp_path):
    """A directory whose run was stopped, and has two generations."""
    process = start(job[0], tmp_path / "run", 3)
    wait_for_checkpoint(tmp_path / "run", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    return tmp_path / "run"


def generations(out):
    return sorted((out / "checkpoint").glob("round-*"))


def test_cut_checkpoint_gives_way_to_the_one_before(job, stopped):
    path, whole = job
    newest = generations(stopped)[-1] / "rank-0001.h5"
    newest.write_bytes(newest.read_bytes()[:-100])
    done = fedmavg("run", path, "--out", stopped, "--resume", ranks=3)
    assert done.returncode == 0
    assert "rank-0001.h5" in done.stderr and "trying the checkpoint before it" in done.stderr
    same(results.summarize(stopped), whole, (*SAME, *SAME_RANKS))


def test_no_whole_checkpoint_left_is_refused(job, stopped):
    for generation in generations(stopped):
        (generation / "rank-0002.h5").write_bytes(b"not HDF5")
    words = error_of_last_line(fedmavg("run", job[0], "--out", stopped, "--resume", ranks=3))
    assert "rank-0002.h5" in words and "--force" in words
    assert generations(stopped)
    done = fedmavg("run", job[0], "--out", stopped, "--force", ranks=3)
    assert done.returncode == 0


def error_of_last_line(done):
    """As ``error_of``, after words on a checkpoint that gives way."""
    *before, last = done.stderr.strip().splitlines()
    assert done.returncode == 2 and all("trying the checkpoint before it" in line for line in before), done.stderr
    assert last.startswith("fedmavg: error: ")
    return last


@pytest.mark.parametrize(
    ("setting", "words"),
    [("run.seed=1", "run.seed = 0 where this one has run.seed = 1"), ("model.n_components=5", "n_components")],
)
def test_checkpoint_of_another_run_is_refused(job, stopped, setting, words):
    assert words in error_of_last_line(fedmavg("run", job[0], "--set", setting, "--out", stopped, "--resume", ranks=2))
    done = fedmavg("run", job[0], "--out", stopped, "--resume", ranks=3)  # unharmed
    assert done.returncode == 0


def test_finished_run_of_another_configuration_is_refused(job, tmp_path):
    path, _ = job
    assert fedmavg("run", path, "--set", "stop.max_rounds=2", "--out", tmp_path / "run").returncode == 0
    assert "run.seed" in error_of(fedmavg("run", path, "--set", "run.seed=3", "--out", tmp_path / "run", "--resume"))


def test_resume_needs_a_directory(job):
    assert "--out" in error_of(fedmavg("run", job[0], "--resume"))


def test_another_number_of_rounds_for_a_run_that_was_stopped(job, stopped):
    assert "max_rounds" in error_of_last_line(
        fedmavg("run", job[0], "--set", "stop.max_rounds=5", "--out", stopped, "--resume", ranks=3)
    )
    done = fedmavg("run", job[0], "--set", "stop.max_rounds=390", "--out", stopped, "--resume", ranks=3)
    assert done.returncode == 0
    assert json.loads(fedmavg("summary", stopped, "--json").stdout)["rounds"] == 390
    refused = fedmavg("run", job[0], "--set", "stop.max_rounds=400", "--out", stopped, "--resume", ranks=3)
    assert "stop.max_rounds = 390" in error_of(refused)


def test_a_file_in_the_checkpoints_place(job, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").touch()
    assert "expected a folder" in error_of(fedmavg("run", job[0], "--out", tmp_path / "run", "--resume"))


def test_killed_at_any_moment(job, tmp_path):
    """30 times a rank is killed: all are gone within 10 seconds, and the run ends as if nothing had happened."""
    path, whole = job
    moments = random.Random(4)
    out = tmp_path / "run"
    for _ in range(30):
        process = start(path, out, 3, "--resume", "--set", "run.checkpoint_every=10")
        delay = moments.uniform(0.0, 4.0)
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        victims = ranks_of(out)
        if victims:
            os.kill(moments.choice(victims), signal.SIGKILL)
        elif process.poll() is None:  # before there were ranks
            process.kill()
        process.communicate(timeout=10)
        deadline = time.monotonic() + 10
        while ranks_of(out):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    done = fedmavg("run", path, "--out", out, "--resume", "--set", "run.checkpoint_every=10", ranks=3)
    assert done.returncode == 0, done.stderr
    same(results.summarize(out), whole, (*SAME, *SAME_RANKS))
    assert {entry.name for entry in out.iterdir()} == {"config.toml", "run.h5"}


def test_a_signal_is_seen_behind_what_a_library_makes_of_it():
    """h5py has been seen to put a TypeError in the place of what a handler raised in one of its callbacks."""
    stopped = SystemExit("stopped")
    try:
        try:
            raise stopped
        except SystemExit:
            raise TypeError("of the library")  # noqa: B904
    except TypeError as error:
        assert signals.behind(error) is stopped
    assert signals.behind(stopped) is stopped and signals.behind(TypeError()) is None
