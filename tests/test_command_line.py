"""The program as a user meets it: runs, summaries, stores, and one line for everything that goes wrong."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from launch import environment, error_of, fedmavg

from fedmavg_mpi import config, results
from fedmavg_mpi.cli import main

SMALL = """
[data]
n_features = 40
n_samples = 300
n_clusters = 4
snr_db = 3.0
[partition]
n_clients = 12
[model]
n_components = 4
[algorithm]
clients_per_round = 4
[stop]
max_rounds = 30
[run]
progress = "off"
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def summary_of(directory):
    done = fedmavg("summary", directory, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_run_writes_what_summary_tells(job, tmp_path):
    out = tmp_path / "run"
    done = fedmavg("run", job, "--out", out, "--set", "run.save_local_factors=true", ranks=3)
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout and "objective" in done.stdout and "accuracy" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["config.toml", "run.h5"]
    found = summary_of(out)
    assert found["rounds"] == 30 and found["stop_reason"] == "round limit"
    assert found["ranks"] == 3 and found["clients"] == 12 and found["seed"] == 0 and found["dtype"] == "float64"
    assert found["products"] in ("tiles", "blas")
    assert 0 < found["objective"] < 1 and 0 < found["accuracy"] <= 1 and found["rmse_test"] is None
    assert len(found["mpi_sent_bytes"]) == 3 and found["mpi_sent_bytes"][0] > 0
    assert set(found["phase_seconds"]["broadcast"]) == {"min", "mean", "max"}
    with h5py.File(out / "run.h5") as file:
        assert file["factors/W"].shape == (40, 4) and file["factors/H"].shape == (4, 300)
        assert file["rounds/drawn"].shape == (30, 4)
        assert (file["labels"][:] == np.argmax(file["factors/H"][:], axis=0)).all()
        assert file["clients/of_sample"].shape == (300,)
        assert results.sha256(file["factors/W"][:]).hexdigest() == found["w_sha256"]
        assert not any(name.endswith("_dtype") for name in file.attrs)
    assert config.read(out / "config.toml").run.save_local_factors is True


@pytest.mark.parametrize("participation", ["pcc", "pcp"])
def test_same_bits_on_any_number_of_ranks(job, tmp_path, participation):
    hashes = set()
    for ranks in (None, 1, 2, 3, 4, 8):
        out = tmp_path / f"run{ranks}"
        setting = ("--set", "aggregation.method=gather", "--set", f"algorithm.participation={participation}")
        assert fedmavg("run", job, "--out", out, *setting, ranks=ranks).returncode == 0
        found = summary_of(out)
        hashes.add((found["w_sha256"], found["h_sha256"]))
        assert found["uplink_bytes"] > 0
    assert len(hashes) == 1


def test_reduce_agrees_within_rounding(job, tmp_path):
    factors = []
    for ranks in (None, 2, 3, 4, 8):
        out = tmp_path / f"run{ranks}"
        assert fedmavg("run", job, "--out", out, "--set", "run.save_local_factors=true", ranks=ranks).returncode == 0
        _, data = results.read(out)
        factors.append((data["factors/W"], data["factors/H"]))
    for w, h in factors[1:]:
        np.testing.assert_allclose(w, factors[0][0], atol=1e-9)
        np.testing.assert_allclose(h, factors[0][1], atol=1e-9)


def test_store_gives_what_its_source_gives(job, tmp_path):
    store = tmp_path / "store.h5"
    assert fedmavg("data", "prepare", "synthetic", "--config", job, "--out", store).returncode == 0
    done = fedmavg("data", "inspect", store)
    assert done.returncode == 0 and "12" in done.stdout and "300 x 40" in done.stdout and "clustered" in done.stdout
    assert fedmavg("run", job, "--out", tmp_path / "a", ranks=2).returncode == 0
    settings = ("--set", "data.source=store", "--set", f"data.path={store}")
    assert fedmavg("run", job, *settings, "--out", tmp_path / "b", ranks=2).returncode == 0
    assert summary_of(tmp_path / "a")["h_sha256"] == summary_of(tmp_path / "b")["h_sha256"]


def test_report_draws_a_figure(job, tmp_path):
    assert main(["run", str(job), "--out", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "figure.png")]) == 0
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_default_run_directory_is_new_each_time(job, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(job)]) == 0 and main(["run", str(job)]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_force_replaces_a_finished_run(job, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["run", str(job), "--out", out]) == 0
    capsys.readouterr()
    assert main(["run", str(job), "--out", out]) == 2
    assert "finished run" in capsys.readouterr().err
    assert main(["run", str(job), "--out", out, "--force", "--set", "run.seed=5"]) == 0
    assert results.summarize(out)["seed"] == 5


BAD_SETTINGS = {
    "unknown key": ("algorithm.q3=1", "did you mean 'q2'"),
    "unknown section": ("algoritm.q1=1", "did you mean 'algorithm'"),
    "unknown value": ("aggregation.method=reduc", "did you mean 'reduce'"),
    "wrong type": ("algorithm.q1=ten", "expected a whole number"),
    "control character": ('data.path="a\\u0001b"', "control characters"),
    "truth for number": ("run.seed=true", "expected a whole number"),
    "fraction for whole": ("algorithm.q1=1.5", "expected a whole number"),
    "m below 1": ("algorithm.clients_per_round=-1", "at least 0"),
    "K below 1": ("model.n_components=0", "at least 1"),
    "Q1 below 0": ("algorithm.q1=-1", "at least 0"),
    "Q2 below 1": ("algorithm.q2=0", "at least 1"),
    "not finite": ("model.rho=nan", "finite"),
    "no value": ("algorithm.q1", "section.key=value"),
    "K above N": ("model.n_components=301", "301 components"),
    "P above N": ("partition.n_clients=301", "301 clients"),
    "no path": ("data.source=matrix", "data.path is empty"),
    "no file": ("data.source=store --set data.path=/nowhere/x.h5", "no such file"),
    "rho 0": ("model.rho=0 --set algorithm.penalty_continuation=true", "expected above 0"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings_are_one_line_and_leave_nothing(job, tmp_path, case, capsys):
    setting, words = BAD_SETTINGS[case]
    out = tmp_path / "deep" / "run"
    assert main(["run", str(job), "--out", str(out), "--set", *setting.split()]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("fedmavg: error: ") and "\n" not in error and words in error
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize("case", ["unknown key", "P above N", "no file"])
def test_bad_settings_under_mpirun(job, tmp_path, case):
    setting, words = BAD_SETTINGS[case]
    start = time.monotonic()
    error = error_of(fedmavg("run", job, "--out", tmp_path / "run", "--set", *setting.split(), ranks=3))
    assert words in error and not (tmp_path / "run").exists()
    assert time.monotonic() - start < 60  # nobody waited for the time-out


def bad_configs(folder):
    yield "missing", folder / "none.toml", "No such file"
    (folder / "broken.toml").write_text("[data\n")
    yield "broken", folder / "broken.toml", "not valid TOML"
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    yield "binary", folder / "binary.toml", "UTF-8"
    (folder / "flat.toml").write_text("run = 3\n")
    yield "flat", folder / "flat.toml", "expected a section"
    yield "directory", folder, "Is a directory"


def test_bad_config_files(tmp_path, capsys):
    for _, path, words in bad_configs(tmp_path):
        assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err.strip()
        assert words in error and "\n" not in error
        assert not (tmp_path / "out").exists()


def test_bad_output_places(job, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none/run"):
        assert main(["run", str(job), "--out", str(out)]) == 2
        error = capsys.readouterr().err.strip()
        assert "can't be written" in error and "\n" not in error


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", place], capture_output=True).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_full_disk_when_the_store_is_written(job, tiny_disk):
    error = error_of(fedmavg("run", job, "--out", tiny_disk / "run", "--set", "data.n_features=2000", ranks=2))
    assert "No space left" in error
    assert list(tiny_disk.iterdir()) == []


def test_full_disk_when_the_run_is_written(job, tmp_path, tiny_disk):
    store = tmp_path / "store.h5"
    assert fedmavg("data", "prepare", "synthetic", "--config", job, "--out", store).returncode == 0
    (tiny_disk / "fill").write_bytes(bytes(2 * 1024 * 1024 - 16384))
    error = error_of(
        fedmavg("run", job, "--set", "data.source=store", "--set", f"data.path={store}", "--out", tiny_disk / "run", ranks=2)
    )
    assert "No space left" in error
    assert [path.name for path in tiny_disk.iterdir()] == ["fill"]


def damaged_stores(path):
    """Ways in which a store may be broken, as (file, words of the message)."""
    whole = path.read_bytes()
    cut = path.with_name("cut.h5")
    cut.write_bytes(whole[: len(whole) // 2])
    yield cut, "cut short"
    text = path.with_name("text.h5")
    text.write_text("hello")
    yield text, "cut short or not a client store"
    empty = path.with_name("empty.h5")
    empty.touch()
    yield empty, "cut short or not a client store"
    older = path.with_name("older.h5")
    shutil.copy(path, older)
    with h5py.File(older, "a") as file:
        file.attrs["version"] = 99
    yield older, "version 99"
    other = path.with_name("other.h5")
    with h5py.File(other, "w") as file:
        file["x"] = 1
    yield other, "not a client store"
    lacking = path.with_name("lacking.h5")
    shutil.copy(path, lacking)
    with h5py.File(lacking, "a") as file:
        del file["samples"]
    yield lacking, "cut short or not a client store"


def test_damaged_stores(job, tmp_path, capsys):
    store = tmp_path / "store.h5"
    assert main(["data", "prepare", "synthetic", "--config", str(job), "--out", str(store)]) == 0
    capsys.readouterr()
    for path, words in damaged_stores(store):
        for arguments in (
            ["run", str(job), "--set", "data.source=store", "--set", f"data.path={path}", "--out", str(tmp_path / "run")],
            ["data", "inspect", str(path)],
        ):
            assert main(arguments) == 2
            error = capsys.readouterr().err.strip()
            assert words in error and str(path) in error and "\n" not in error
        assert not (tmp_path / "run").exists()


def test_summary_of_what_is_no_run(tmp_path, capsys):
    assert main(["summary", str(tmp_path)]) == 2
    (tmp_path / "run.h5").write_text("no")
    assert main(["summary", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("fedmavg: error: ") == 2


def test_singletons_are_refused(job, tmp_path):
    for variable in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        done = fedmavg("run", job, "--out", tmp_path / "run", env={variable: "3"}.items())
        assert "started 3 processes" in error_of(done)
        other = fedmavg("run", job, "--out", tmp_path / "run", env={variable: "3", "PMI_RANK": "1"}.items())
        assert other.returncode == 2 and other.stderr == ""
    assert not (tmp_path / "run").exists()


def test_one_rank_that_raises_ends_all(tmp_path):
    script = tmp_path / "raises.py"
    script.write_text(
        "from fedmavg_mpi import cli\n"
        "def work(comm):\n"
        "    if comm.rank == 2:\n"
        "        raise ZeroDivisionError('a bug')\n"
        "    comm.broadcast_text('never')\n"
        "    comm.broadcast_text('never')\n"
        "    import numpy as np\n"
        "    comm.reduce(np.zeros(3), 'control', comm.everyone)\n"
        "    return 0\n"
        "raise SystemExit(cli._on_all_ranks(work))\n"
    )
    start = time.monotonic()
    done = subprocess.run(
        ["mpirun", "-n", "4", sys.executable, script], capture_output=True, text=True, timeout=60, env=environment()
    )
    assert done.returncode != 0 and "ZeroDivisionError: a bug" in done.stderr
    assert time.monotonic() - start < 30
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(script) not in listed


@pytest.mark.parametrize("ranks", [None, 3])
def test_doctor(ranks):
    done = fedmavg("doctor", ranks=ranks)
    assert re.search(rf"^ranks +{ranks or 1} on", done.stdout, re.M) and "MPI library" in done.stdout and "numba" in done.stdout
    assert done.returncode == (2 if "problem: " in done.stdout else 0)


def test_import_without_a_writable_cache(tmp_path):
    """numba refuses to keep kernels nowhere; the package then keeps them in memory."""
    code = "import fedmavg_mpi.kernels.jit as j, numba\nold=numba.njit\nprint(callable(j.jit(lambda x: x)))"
    patched = (
        "import numba\nreal=numba.njit\n"
        "def njit(**o):\n    if o.pop('cache', False):\n        raise RuntimeError('cannot cache: no locator available')\n    return real(**o)\n"
        "numba.njit=njit\n" + code
    )
    done = subprocess.run([sys.executable, "-c", patched], capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr
