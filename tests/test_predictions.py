"""From a ratings file to answers in the user's own ids, by the command line."""

import numpy as np
import pytest
from launch import error_of, fedmavg
from small_movielens import ITEMS, RANGE, write_job, write_ratings

from fedmavg_mpi import results
from fedmavg_mpi.cli import main


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    """A folder of ratings, and who has rated what."""
    folder = tmp_path_factory.mktemp("ml")
    return folder, write_ratings(folder)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "biases"])
def run(request, ratings, tmp_path_factory):
    """A finished run that kept its local factors."""
    place = tmp_path_factory.mktemp("run")
    job = write_job(place / "job.toml", ratings[0])
    done = fedmavg("run", job, "--set", f"model.biases={str(request.param).lower()}", "--out", place / "out", ranks=3)
    assert done.returncode == 0, done.stderr
    assert "RMSE (held out)" in done.stdout
    return place / "out"


def predicted(run, user, item):
    """mean + b_i + c_p + w_i'h_p, clipped; without training ratings of user or item, what is left of it."""
    attributes, data = results.read(run)
    p, i = [name.decode() for name in data["users/ids"]].index(user), [name.decode() for name in data["items/ids"]].index(item)
    w, h, biased = data["factors/W"][i], data["factors/H"][:, p], attributes["biases"]
    value = float(w[:2] @ h[:2]) + (attributes["mean_rating"] if biased else 0)
    if not (data["users/known"][p] and data["items/known"][i]):
        value = attributes["mean_rating"]
    if biased:
        value += w[2] * data["items/known"][i] + h[2] * data["users/known"][p]
    return min(max(value, attributes["rating_minimum"]), attributes["rating_maximum"])


def test_predict_is_the_formula_for_every_pair(run, ratings, capsys):
    _, data = results.read(run)
    items = [name.decode() for name in data["items/ids"]]
    assert set(items) == {ITEMS[i] for rated in ratings[1].values() for i in rated}
    for user in ratings[1]:
        for item in items:
            assert main(["predict", str(run), "--user", user, "--item", item]) == 0
            assert float(capsys.readouterr().out) == pytest.approx(predicted(run, user, item), abs=6e-5)


def test_recommend_leaves_out_what_was_seen_and_sorts(run, ratings, capsys):
    _, data = results.read(run)
    items = [name.decode() for name in data["items/ids"]]
    for user, rated in ratings[1].items():
        assert main(["recommend", str(run), "--user", user, "-n", "10"]) == 0
        lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
        assert {line[1] for line in lines} == set(items) - {ITEMS[i] for i in rated}
        values = [predicted(run, user, line[1]) for line in lines]
        assert values == sorted(values, reverse=True)
        assert all(line[2:] == ["Nine, the film (2009)"] for line in lines if line[1] == "9")
        assert main(["recommend", str(run), "--user", user, "-n", "1"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == min(1, len(lines))


def test_what_cannot_be_answered(run, ratings, tmp_path, capsys):
    for arguments in (
        ["recommend", str(run), "--user", "nobody"],
        ["predict", str(run), "--user", "42", "--item", "nothing"],
        ["recommend", str(tmp_path), "--user", "42"],
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err.strip()
        assert error.startswith("fedmavg: error: ") and "\n" not in error
    job = write_job(tmp_path / "job.toml", ratings[0])
    assert main(["run", job, "--set", "run.save_local_factors=false", "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["recommend", str(tmp_path / "out"), "--user", "42"]) == 2
    assert "save_local_factors" in capsys.readouterr().err


BAD_FILES = {
    "outside": ("userId,movieId,rating\n1,2,3\n1,3,9\n", "line 3"),
    "text": ("userId,movieId,rating\n1,2,good\n", "line 2"),
    "columns": ("userId,rating\n1,2\n", "userId"),
    "empty": ("", "empty"),
    "overflow": ("userId,movieId,rating\n1,2,3\n99999999999999999999,2,3\n", "line 3"),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("ranks", [None, 3])
def test_bad_ratings(tmp_path, case, ranks):
    text, words = BAD_FILES[case]
    (tmp_path / "ratings.csv").write_text(text)
    job = write_job(tmp_path / "job.toml", tmp_path / "ratings.csv")
    error = error_of(fedmavg("run", job, *RANGE, "--out", tmp_path / "out", ranks=ranks))
    assert words in error and "ratings.csv" in error and not (tmp_path / "out").exists()


@pytest.mark.parametrize("fraction", ["0", "1", "1.5", "0.9999999", "1e-9"])
def test_a_test_fraction_that_leaves_nothing(ratings, tmp_path, fraction, capsys):
    job = write_job(tmp_path / "job.toml", ratings[0])
    assert main(["run", job, "--set", f"data.test_fraction={fraction}", "--out", str(tmp_path / "out")]) == 2
    assert "data.test_fraction" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fedmavg", "fedavg", "gradient_sharing", "centralized", "gossip"])
def test_every_algorithm_runs_on_ratings(ratings, tmp_path, name):
    job = write_job(tmp_path / "job.toml", ratings[0])
    settings = ("--set", "model.biases=true", "--set", f"algorithm.name={name}", "--set", "algorithm.step_size_w=local")
    hashes = set()
    for ranks in (None, 3):
        out = tmp_path / f"out{ranks}"
        done = fedmavg("run", job, *settings, "--set", "aggregation.method=gather", "--out", out, ranks=ranks)
        assert done.returncode == 0, done.stderr
        summary = results.summarize(out)
        hashes.add((summary["w_sha256"], summary["h_sha256"]))
        assert np.isfinite(summary["rmse_test"]) and np.isfinite(summary["rmse_train"])
    assert len(hashes) == 1
