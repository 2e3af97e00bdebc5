"""What a hostile reader found once, kept found."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from launch import environment, error_of, fedmavg

from fedmavg_mpi import config, results, store
from fedmavg_mpi.cli import main
from fedmavg_mpi.datasets import Dataset

JOB = """
[data]
n_features = 10
n_samples = 60
n_clusters = 3
[partition]
scheme = "iid"
n_clients = 5
[model]
n_components = 3
[stop]
max_rounds = 3
[run]
progress = "off"
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def one_error(capsys):
    error = capsys.readouterr().err.strip()
    assert error.startswith("fedmavg: error: ") and "\n" not in error, error
    return error


def test_no_round_at_all(job, tmp_path):
    assert main(["run", job, "--out", str(tmp_path / "run"), "--set", "stop.max_rounds=0"]) == 0
    summary = results.summarize(tmp_path / "run")
    assert summary["rounds"] == 0 and summary["uplink_bytes"] == 0 and summary["round_seconds_median"] is None
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "x.PNG")]) == 0


@pytest.mark.parametrize(
    ("dtype", "scale"), [("float64", 1e300), ("float64", 1e-300), ("float32", 1e30), ("float32", 1e39), ("float32", 1e-30)]
)
@pytest.mark.parametrize("ranks", [None, 3])
def test_values_whose_squares_leave_the_range(job, tmp_path, dtype, scale, ranks):
    np.save(tmp_path / "x.npy", scale * np.random.default_rng(0).random((60, 10)))
    settings = ["--set", "data.source=matrix", "--set", f"data.path={tmp_path / 'x.npy'}", "--set", f"run.dtype={dtype}"]
    error = error_of(fedmavg("run", job, *settings, "--out", tmp_path / "run", ranks=ranks))
    assert "scale the data" in error and not (tmp_path / "run").exists()
    assert (
        fedmavg("run", job, *settings, "--set", "data.normalize=unit", "--out", tmp_path / "run", ranks=ranks).returncode == 0
        or scale == 1e39
    )


def test_two_runs_at_once_in_one_directory(job, tmp_path):
    slow = ["run", job, "--out", str(tmp_path / "run"), "--set", "stop.max_rounds=200000", "--set", "stop.rel_tol=0"]
    first = subprocess.Popen(
        [sys.executable, "-m", "fedmavg_mpi.cli", *slow], env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        while not (tmp_path / "run" / ".running").exists():
            time.sleep(0.05)
        assert "another run is writing there" in error_of(fedmavg(*slow))
    finally:
        first.send_signal(signal.SIGTERM)
        assert "SIGTERM" in first.communicate(timeout=60)[1]
    assert first.returncode == 75
    left = tmp_path / "run"  # nothing, or what the run goes on from if its rounds had begun
    assert not left.exists() or [entry.name for entry in left.iterdir()] == ["checkpoint"]


def test_a_killed_runs_leavings_are_cleared(job, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".clients-1.h5").write_text("left")
    (out / ".running").touch()
    assert main(["run", job, "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["config.toml", "run.h5"]


def tampered(path, name):
    """A store with something wrong, by what is wrong."""
    with h5py.File(path, "a") as file:
        if name == "short samples":
            part = file["samples"][:-1]
            del file["samples"]
            file["samples"] = part
        elif name == "short labels":
            part = file["labels"][:-1]
            del file["labels"]
            file["labels"] = part
        elif name == "reversed offsets":
            file["clients/offsets"][1:3] = file["clients/offsets"][1:3][::-1]
        elif name == "wrong features":
            file.attrs["n_features"] = 11
        elif name == "of_row twice":
            file["clients/of_row"][0] = file["clients/of_row"][1]
        elif name == "label beyond":
            file["labels"][0] = 77
        elif name == "names of other samples":
            file["sample_names"] = [b"a", b"b"]
        elif name == "NaN":
            file["samples"][3, 3] = np.nan


@pytest.mark.parametrize(
    "name",
    [
        "short samples",
        "short labels",
        "reversed offsets",
        "wrong features",
        "of_row twice",
        "label beyond",
        "names of other samples",
        "NaN",
    ],
)
def test_stores_whose_parts_disagree(job, tmp_path, name, capsys):
    path = tmp_path / "store.h5"
    assert main(["data", "prepare", "synthetic", "--config", job, "--out", str(path)]) == 0
    tampered(path, name)
    capsys.readouterr()
    assert main(["run", job, "--set", "data.source=store", "--set", f"data.path={path}", "--out", str(tmp_path / "run")]) == 2
    one_error(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", ["global", "local"])
@pytest.mark.parametrize("ranks", [None, 2])
def test_a_run_that_diverges_says_so(job, tmp_path, ranks, step):
    settings = [f"algorithm.step_size_w={step}", "algorithm.curvature_factor_w=1e-9", "algorithm.q2=60", "run.evaluate_every=0"]
    done = fedmavg("run", job, *(word for x in settings for word in ("--set", x)), "--out", tmp_path / "run", ranks=ranks)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "fedmavg: warning: objective not finite" in done.stderr
    assert json.loads(fedmavg("summary", tmp_path / "run", "--json").stdout)["objective"] is None
    again = fedmavg("run", job, *(word for x in settings for word in ("--set", x)), "--out", tmp_path / "run", "--resume")
    assert again.returncode == 1 and "objective not finite" in again.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("ranks", [0, 1, 3])
def test_a_signal_before_the_rounds_leaves_nothing(job, tmp_path, number, ranks):
    """While a store of 160 MB is made and written: by ``data prepare`` (0), or by a run on so many ranks."""
    size = ["--set", "data.n_samples=20000", "--set", "data.n_features=1000"]
    command = [sys.executable, "-m", "fedmavg_mpi"]
    command = ["mpirun", "-n", str(ranks), *command] if ranks > 1 else command
    words = ["run", job, "--out", str(tmp_path / "out")] if ranks else ["data", "prepare", "synthetic", "--config", job]
    words += [] if ranks else ["--out", str(tmp_path / "s.h5")]
    process = subprocess.Popen([*command, *words, *size], env=environment(), stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.rglob(".*.partial")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr and "fedmavg: " in stderr, stderr
    assert process.returncode == (75 if ranks or number == signal.SIGTERM else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_after_the_work_is_done_changes_no_status(job, tmp_path, number):
    """As where a time limit meets a run that is just ending."""
    ended = "import os, sys; from fedmavg_mpi.cli import main; status = main(sys.argv[2:]); os.kill(os.getpid(), int(sys.argv[1])); sys.exit(status)"
    command = [
        "mpirun",
        "-n",
        "2",
        sys.executable,
        "-c",
        ended,
        str(int(number)),
        "run",
        str(job),
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert results.summarize(tmp_path / "run")["rounds"] == 3


def test_ledgers_depend_on_no_path(job, tmp_path):
    found = []
    for name in ("a", "a-much-longer-name"):
        done = fedmavg("run", job, "--out", tmp_path / name, ranks=2)
        assert done.returncode == 0, done.stderr
        found.append([results.summarize(tmp_path / name)[f"mpi_{way}_bytes"] for way in ("sent", "received")])
    assert found[0] == found[1]


def test_names_that_no_file_can_have(job, tmp_path, capsys):
    long = str(tmp_path / ("x" * 300))
    for arguments in (
        ["run", job, "--out", long],
        ["summary", long],
        ["report", long],
        ["data", "prepare", "synthetic", "--config", job, "--out", long],
        ["data", "inspect", long],
        ["run", long],
        ["run", job, "--set", f"data.path={long}", "--set", "data.source=matrix", "--out", str(tmp_path / "run")],
        ["run", job, "--set", 'data.path="a\\u0000b"', "--set", "data.source=store", "--out", str(tmp_path / "run")],
        ["run", job, "--set", 'data.path="a\\nb.npy"', "--set", "data.source=matrix", "--out", str(tmp_path / "run")],
        ["run", job, "--set", "run.a\nb=3", "--out", str(tmp_path / "run")],
        ["run", job, "--set", "model.rho=" + 3000 * "[", "--out", str(tmp_path / "run")],
    ):
        assert main(arguments) == 2, arguments
        one_error(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run"],
        ["nothing"],
        ["run", "a.toml", "--out", ""],
        ["run", "a.toml", "--out", "a\nb"],
        *(["recommend", "d", "--user", "1", "-n", count] for count in ("0", "-1", "\u00b2", "1.5", "9" * 5000, "")),
    ],
)
def test_wrong_arguments_are_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    one_error(capsys)


def test_commands_for_one_process_answer_once_under_mpirun(job, tmp_path):
    done = fedmavg("data", "prepare", "synthetic", "--config", job, "--out", tmp_path / "s.h5", ranks=3)
    assert done.returncode == 0 and done.stdout.count("clients ") == 1
    assert "exists" in error_of(fedmavg("data", "prepare", "synthetic", "--config", job, "--out", tmp_path / "s.h5", ranks=3))
    assert "CONFIG.toml" in error_of(fedmavg("run", ranks=3))


def test_texts_may_look_like_numbers_and_hold_quotes(job, tmp_path, capsys):
    for name in ("123", "1e5", "x'''y", 'a"b', "true"):
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "x.npy", np.random.default_rng(0).random((60, 10)))
        settings = ["--set", f"data.path={folder / 'x.npy'}", "--set", "data.source=matrix"]
        assert main(["run", job, *settings, "--out", str(folder / "run")]) == 0, capsys.readouterr().err
        assert config.read(folder / "run" / "config.toml").data.path == str(folder / "x.npy")
        assert (
            main(["data", "prepare", "matrix", "--config", job, "--path", str(folder / "x.npy"), "--out", str(folder / "s.h5")])
            == 0
        )
    assert config.read(None, ["data.path=123"]).data.path == "123"
    assert config.read(None, ['data.path="123"']).data.path == "123"


def test_the_resolved_configuration_is_true_of_a_store(job, tmp_path):
    path = tmp_path / "s.h5"
    settings = ["--set", "partition.n_clients=11", "--set", "partition.scheme=clustered", "--set", "data.normalize=unit"]
    assert main(["data", "prepare", "synthetic", "--config", job, *settings, "--out", str(path)]) == 0
    assert main(["run", job, "--set", "data.source=store", "--set", f"data.path={path}", "--out", str(tmp_path / "run")]) == 0
    found = config.read(tmp_path / "run" / "config.toml")
    assert (found.partition.n_clients, found.partition.scheme, found.data.normalize) == (11, "clustered", "unit")


def test_a_penalty_above_the_largest_never_falls(job, tmp_path):
    settings = ["algorithm.penalty_continuation=true", "model.rho=1000", "stop.max_rounds=450", "algorithm.clients_per_round=2"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["run", job, *words, "--out", str(tmp_path / "run")]) == 0
    _, data = results.read(tmp_path / "run")
    assert set(data["rounds/rho"]) == {1000.0}


def test_report_of_odd_names_and_single_evaluations(job, tmp_path):
    places = [tmp_path / name for name in ("_hidden", "a$b$_{", "plain")]
    for place in places:
        assert main(["run", job, "--out", str(place), "--set", "run.evaluate_every=0"]) == 0
    assert main(["report", *map(str, places), "--out", str(tmp_path / "f.svg")]) == 0
    assert (tmp_path / "f.svg").read_text().count("PCC") or (tmp_path / "f.svg").stat().st_size > 10_000


def test_read_only_places(job, tmp_path):
    if (
        os.getuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,ro", "none", tmp_path], capture_output=True).returncode
    ):
        pytest.skip("mounting a read-only file system needs root")
    try:
        source = Path("/tmp") / f"job-{os.getpid()}.toml"
        source.write_text(JOB)
        assert "Read-only" in error_of(fedmavg("data", "prepare", "synthetic", "--config", source, "--out", tmp_path / "s.h5"))
        assert "Read-only" in error_of(fedmavg("run", source, "--out", tmp_path / "run", ranks=2))
    finally:
        source.unlink()
        subprocess.run(["umount", tmp_path], check=True)


def test_a_worker_out_of_memory_says_so(tmp_path, monkeypatch, capsys):
    path = tmp_path / "s.h5"
    store.write(path, Dataset(np.ones((4, 2))), np.arange(4), "by hand")

    def full(*_):
        raise MemoryError

    monkeypatch.setattr("fedmavg_mpi.store.np.empty", full)
    with pytest.raises(Exception, match="don't fit in this rank's memory"):
        store.ClientStore(path).slab(range(4), np.float64)
