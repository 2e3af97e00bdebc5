"""What a hostile reader found in runs on ratings once, kept found."""

import shutil

import h5py
import matplotlib.pyplot as plt
import numpy as np
import pytest
from launch import error_of, fedmavg
from scipy import sparse
from small_movielens import RANGE, write_job, write_ratings

from fedmavg_mpi import config, predictions, results, store
from fedmavg_mpi.cli import main
from fedmavg_mpi.datasets import Dataset

DIVERGING = ("algorithm.curvature_factor_w=1e-3", "algorithm.q2_schedule=constant", "algorithm.q2=60", "run.evaluate_every=0")
DIVERGING = tuple(word for setting in (*DIVERGING, "stop.max_rounds=60") for word in ("--set", setting))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with ratings, a job, a store of them and a finished run."""
    folder = tmp_path_factory.mktemp("ratings")
    write_ratings(folder)
    job = write_job(folder / "job.toml", folder)
    assert main(["data", "prepare", "movielens", "--path", str(folder), "--out", str(folder / "s.h5")]) == 0
    assert main(["run", job, "--out", str(folder / "run")]) == 0
    return folder


@pytest.fixture
def refused(capsys):
    """Call a command that must end with status 2 and one line of error; gives the line."""

    def call(*arguments):
        capsys.readouterr()
        assert main(list(map(str, arguments))) == 2, arguments
        error = capsys.readouterr().err.strip()
        assert error.startswith("fedmavg: error: ") and "\n" not in error, error
        return error

    return call


def on_store(place, path="s.h5"):
    return ["run", place / "job.toml", "--set", "data.source=store", "--set", f"data.path={place / path}"]


@pytest.mark.parametrize("how", ["unit", "offset"])
def test_ratings_are_not_normalized(place, tmp_path, refused, how):
    for arguments in (
        ["run", place / "job.toml", "--out", tmp_path / "new"],
        [*on_store(place), "--out", tmp_path / "new"],
        ["data", "prepare", "movielens", "--path", place, "--out", tmp_path / "new"],
    ):
        assert "data.normalize" in refused(*arguments, "--set", f"data.normalize={how}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", ["movielens", "store"])
def test_the_resolved_configuration_is_true_of_ratings(place, tmp_path, source, refused):
    arguments = ["run", str(place / "job.toml")] if source == "movielens" else list(map(str, on_store(place)))
    out = str(tmp_path / "run")
    assert main([*arguments, "--out", out]) == 0
    found = config.read(tmp_path / "run" / "config.toml")
    assert (found.partition.n_clients, found.data.rating_minimum, found.data.rating_maximum) == (5, 0.5, 5.0)
    assert main([*arguments, "--out", out, "--resume"]) == 0
    assert "data.rating_minimum = 0.5" in refused(*arguments, "--set", "data.rating_maximum=9", "--out", out, "--resume")
    assert main(["run", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "again")]) == 0
    assert results.summarize(tmp_path / "again")["h_sha256"] == results.summarize(out)["h_sha256"]


def test_what_is_stated_of_a_store_is_true_of_it(place, tmp_path, refused):
    error = refused(*on_store(place), *RANGE, "--out", tmp_path / "run")
    assert "rating_maximum = 6.0" in error and "5.0" in error and not (tmp_path / "run").exists()
    assert main(["data", "prepare", "movielens", "--path", str(place), *RANGE, "--out", str(tmp_path / "s.h5")]) == 0
    shutil.copy(place / "job.toml", tmp_path / "job.toml")
    assert main([*map(str, on_store(tmp_path)), *RANGE, "--out", str(tmp_path / "run")]) == 0


def test_samples_are_normalized_as_their_store_was(tmp_path, refused):
    sizes = [word for size in ("n_features=9", "n_samples=40", "n_clusters=2") for word in ("--set", f"data.{size}")]
    made = ["data", "prepare", "synthetic", *sizes, "--set", "partition.n_clients=4", "--out", str(tmp_path / "s.h5")]
    assert main(made) == 0
    (tmp_path / "job.toml").write_text(f'[data]\nsource = "store"\npath = "{tmp_path / "s.h5"}"\n')
    error = refused("run", tmp_path / "job.toml", "--set", "data.normalize=unit", "--out", tmp_path / "run")
    assert "'unit'" in error and "'none'" in error


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("step", ["global", "local"])
def test_a_run_that_diverges_says_so_and_answers_nothing(place, tmp_path, ranks, step, refused):
    out = tmp_path / "run"
    done = fedmavg("run", place / "job.toml", *DIVERGING, "--set", f"algorithm.step_size_w={step}", "--out", out, ranks=ranks)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "fedmavg: warning: objective not finite" in done.stderr
    summary = results.summarize(out)
    assert summary["stop_reason"] == "objective not finite" and summary["objective"] is None
    for command in (["recommend"], ["predict", "--item", "9"]):
        assert "not finite" in refused(command[0], out, *command[1:], "--user", "3")
    assert "finite" in refused("report", out, "--out", tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("value", "dtype"), [("1e300", "float64"), ("1e300", "float32"), ("-1e30", "float32"), ("1e-300", "float64")]
)
@pytest.mark.parametrize("ranks", [None, 2])
def test_ratings_whose_squares_leave_the_range(tmp_path, value, dtype, ranks):
    lines = [f"{user},{item},{value if (user, item) == (3, 3) or '-3' in value else 3}" for user in range(6) for item in range(6)]
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating", *lines]))
    job = write_job(tmp_path / "job.toml", tmp_path / "ratings.csv")
    error = error_of(fedmavg("run", job, "--set", f"run.dtype={dtype}", "--out", tmp_path / "run", ranks=ranks))
    assert "scale the ratings" in error and not (tmp_path / "run").exists()


def change(file, name, how):
    """Put ``how(values)`` in place of a dataset."""
    values = how(file[name][:])
    del file[name]
    file[name] = values


TAMPERED_STORES = {
    "NaN": lambda file: change(file, "csr/data", lambda x: np.where(np.arange(x.size) == 2, np.nan, x)),
    "infinite": lambda file: change(file, "csr/data", lambda x: np.where(np.arange(x.size) == 2, np.inf, x)),
    "short data": lambda file: change(file, "csr/data", lambda x: x[:-1]),
    "short indices": lambda file: change(file, "csr/indices", lambda x: x[:-1]),
    "short indptr": lambda file: change(file, "csr/indptr", lambda x: x[:-1]),
    "falling indptr": lambda file: change(file, "csr/indptr", lambda x: np.r_[0, x[1:-1][::-1], x[-1]]),
    "cut indptr": lambda file: change(file, "csr/indptr", lambda x: np.r_[x[:-1], x[-1] - 1]),
    "short offsets": lambda file: change(file, "clients/offsets", lambda x: np.r_[x[:-2], x[-1]]),
    "no offsets": lambda file: change(file, "clients/offsets", lambda x: x[:0]),
    "flat offsets": lambda file: change(file, "clients/offsets", lambda x: x[None]),
    "texts as offsets": lambda file: change(file, "clients/offsets", lambda x: np.array([b"a"] * x.size)),
    "equal items": lambda file: change(file, "csr/indices", lambda x: np.zeros_like(x)),
    "items in reverse": lambda file: change(file, "csr/indices", lambda x: x[::-1]),
    "item beyond": lambda file: change(file, "csr/indices", lambda x: np.where(np.arange(x.size) == x.size - 1, 99, x)),
    "short sample names": lambda file: change(file, "sample_names", lambda x: x[:-1].astype("S")),
    "numbers as names": lambda file: change(file, "sample_names", lambda x: np.arange(x.size)),
    "short titles": lambda file: change(file, "titles", lambda x: x[:-1].astype("S")),
    "narrow range": lambda file: file.attrs.update(rating_minimum=2.0, rating_maximum=3.0),
    "range NaN": lambda file: file.attrs.update(rating_minimum=np.nan),
    "half a range": lambda file: file.attrs.__delitem__("rating_maximum"),
    "words for a number": lambda file: file.attrs.update(n_features="many"),
}


@pytest.mark.parametrize("name", TAMPERED_STORES)
def test_stores_of_ratings_whose_parts_disagree(place, tmp_path, name, refused):
    shutil.copy(place / "s.h5", tmp_path / "s.h5")
    with h5py.File(tmp_path / "s.h5", "a") as file:
        TAMPERED_STORES[name](file)
    shutil.copy(place / "job.toml", tmp_path / "job.toml")
    assert "s.h5: " in refused(*on_store(tmp_path), "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


TAMPERED_RUNS = {
    **{
        f"{how} {name}": (lambda file, name=name: file.__delitem__(name))
        if how == "no"
        else (lambda file, name=name: change(file, name, lambda x: x[:-1].astype("S") if x.dtype.kind == "O" else x[:-1]))
        for name in ("rounds/uplink_bytes", "rounds/seconds", "evaluations/round", "mpi/sent", "ranks/phase_seconds", "factors/W",
                     "factors/H", "users/ids", "items/ids", "users/known", "items/known", "users/rated_offsets", "users/rated_items")
        for how in ("no", "short")
    },
    "no mean": lambda file: file.attrs.__delitem__("mean_rating"),
    "mean of words": lambda file: file.attrs.update(mean_rating="high"),
    "no rounds": lambda file: file.attrs.__delitem__("rounds"),
    "rounds of words": lambda file: file.attrs.update(rounds="ten"),
    "more rounds": lambda file: file.attrs.update(rounds=99),
    "more evaluated": lambda file: change(file, "evaluations/round", lambda x: x + 50),
    "texts as W": lambda file: change(file, "factors/W", lambda x: np.full(x.shape, b"x")),
    "W as numbers": lambda file: change(file, "factors/W", lambda x: x.ravel()),
    "NaN in H": lambda file: change(file, "factors/H", lambda x: x * np.nan),
    "item beyond": lambda file: change(file, "users/rated_items", lambda x: x + 50),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED_RUNS)
def test_run_files_whose_parts_disagree(place, tmp_path, name, refused, capsys):
    shutil.copytree(place / "run", tmp_path / "run")
    with h5py.File(tmp_path / "run" / "run.h5", "a") as file:
        TAMPERED_RUNS[name](file)
    refused("recommend", tmp_path / "run", "--user", "3")
    refused("predict", tmp_path / "run", "--user", "3", "--item", "9")
    for command in (["summary", tmp_path / "run"], ["report", tmp_path / "run", "--out", tmp_path / "x.png"]):
        status = main(list(map(str, command)))  # those that read less than was changed may answer
        assert status in (0, 2) and capsys.readouterr().err.count("\n") == (status == 2)


def test_titles_that_the_terminal_cannot_show(place, tmp_path):
    shutil.copy(place / "ratings.csv", tmp_path / "ratings.csv")
    (tmp_path / "movies.csv").write_text(
        "movieId,title\n" + "".join(f"{item},Čas – 時間\n" for item in ("70", "9", "alpha", "12"))
    )
    job = write_job(tmp_path / "job.toml", tmp_path)
    assert main(["run", job, "--out", str(tmp_path / "run")]) == 0
    for encoding in ("ascii", "latin-1"):
        done = fedmavg("recommend", tmp_path / "run", "--user", "7", env={"PYTHONIOENCODING": encoding}.items())
        assert done.returncode == 0 and done.stderr == "" and "\\u6642" in done.stdout


def test_answers_are_of_users_whose_rows_are_in_another_order(tmp_path, place):
    """A store may hold the data set's users in any order."""
    values = np.array([[5, 0, 1, 2], [0, 4, 2, 1], [3, 3, 0, 0]], float)
    names = {"sample_names": list("abc"), "feature_names": list("wxyz")}
    dataset = Dataset(sparse.csr_array(values), rating_range=(1.0, 5.0), **names)
    store.write(tmp_path / "s.h5", dataset, np.array([2, 0, 1]), "by hand")
    shutil.copy(place / "job.toml", tmp_path / "job.toml")
    assert main([*map(str, on_store(tmp_path)), "--out", str(tmp_path / "run")]) == 0
    predictor = predictions.Predictor(tmp_path / "run")
    for user, seen in zip("abc", values, strict=True):
        assert {item for item, _, _ in predictor.recommend(user, 9)} == {
            name for name, x in zip("wxyz", seen, strict=True) if x == 0
        }


def test_inspect_tells_of_ratings(place, capsys):
    assert main(["data", "inspect", str(place / "s.h5")]) == 0
    words = capsys.readouterr().out
    assert "0.5 to 5" in words and "with titles" in words and "5, each a client" in words


def test_report_counts_the_set_up_and_names_the_algorithm(place, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plt, "close", drawn.append)
    runs = {name: tmp_path / name for name in ("centralized", "gossip", "fedmavg")}
    for name, out in runs.items():
        more = ["--set", f"algorithm.name={name}", "--set", f"algorithm.clients_per_round={2 * (name == 'fedmavg')}"]
        assert main(["run", str(place / "job.toml"), *more, "--out", str(out)]) == 0
    assert main(["report", *map(str, runs.values()), "--out", str(tmp_path / "x.svg")]) == 0
    lines = {line.get_label(): line for line in drawn[0].axes[1].lines}
    assert list(lines) == ["centralized: centralized", "gossip: gossip", "fedmavg: fedmavg, m = 2, PCC"]
    for (label, line), out in zip(lines.items(), runs.values(), strict=True):
        summary = results.summarize(out)
        ends = sum(summary[f"{before}{way}_bytes"] for before in ("", "setup_") for way in ("uplink", "downlink"))
        assert line.get_xdata()[-1] == pytest.approx(ends / 1e9), label
        assert line.get_xdata()[0] > 0
