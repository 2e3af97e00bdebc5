"""Scaling studies: the cost model's properties and fit, the tables against the run files, the commands, and the batch array."""

import csv
import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch import environment, error_of, fedmavg

from fedmavg_mpi import cli, machines, results
from fedmavg_mpi.scaling import array, cost, projection, table
from fedmavg_mpi.scaling import pieces as measured
from fedmavg_mpi.scaling.problem import Problem, Share, shares
from fedmavg_mpi.scaling.study import Study, launch

SMALL = [
    "data.n_samples=120",
    "data.n_features=30",
    "data.n_clusters=3",
    "model.n_components=3",
    "partition.scheme=iid",
    "partition.n_clients=6",
]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]
PROBLEM = Problem(2000, 10_000, 20, 100)


def made_up_model(cores=0, seed=0, scale=1e-9):
    """A machine in which everything costs something."""
    random = np.random.default_rng(seed)
    alone = {phase: {name: scale * random.uniform(0.5, 2) for name in names} for phase, names in cost.WORK.items()}
    busy = {phase: {name: 1.2 * value for name, value in names.items()} for phase, names in alone.items()}
    network = {name: scale * random.uniform(0.5, 2) for name in cost.NETWORK} | {"latency": 1e-5, "latency_shared": 1e-5}
    return cost.CostModel(cores, alone, busy, network, "made up")


problems = st.builds(
    Problem,
    st.integers(2, 3000),
    st.integers(1000, 10**6),
    st.integers(2, 40),
    st.integers(1, 1000),
    st.integers(0, 200),
    method=st.sampled_from(["reduce", "allreduce", "gather"]),
    participation=st.sampled_from(["pcc", "pcp"]),
)


@given(problems, st.integers(2, 300), st.integers(0, 8))
def test_more_ranks_never_have_more_work_each(problem, n_ranks, seed):
    model = made_up_model()
    work = []
    for ranks in (n_ranks, 2 * n_ranks - 1):  # twice the workers
        share, drawn_ranks = shares(problem, ranks, seed=seed)
        work.append(model.round_terms(problem, ranks, share, drawn_ranks)["clients' work"])
        assert share.drawn_samples <= share.samples * (1 + 1e-9) and drawn_ranks <= max(1, ranks - 1)
    assert work[1] <= work[0] * (1 + 1e-9)


@given(problems, st.integers(2, 40))
def test_messages_only_grow_with_ranks_and_one_process_sends_none(problem, n_ranks):
    model = made_up_model(cores=2)
    by_ranks = [sum(model.message_terms(problem, ranks, ranks - 1).values()) for ranks in (1, n_ranks, n_ranks + 1)]
    assert by_ranks[0] == 0 < by_ranks[1] <= by_ranks[2]


def test_ranks_that_share_cores_divide_them():
    model = made_up_model(cores=2)
    own, shared = (model.round_terms(PROBLEM, ranks, Share(1000, 10, 1000, 10), ranks - 1)["clients' work"] for ranks in (3, 17))
    assert shared == pytest.approx(8 * own)


@pytest.mark.parametrize("drawn", [0, 10])
def test_shares_of_a_store_add_up(drawn):
    sizes = np.random.default_rng(0).integers(3, 383, 100)
    problem = dataclasses.replace(PROBLEM, n_samples=int(sizes.sum()), drawn=drawn)
    share, ranks = shares(problem, 5, sizes)
    assert sizes.sum() / 4 <= share.samples <= sizes.sum() / 4 + sizes.max()
    assert (share.drawn_samples == share.samples and ranks == 4) if drawn == 0 else share.drawn_samples < share.samples
    alone, _ = shares(problem, 1, sizes)
    assert alone.samples == sizes.sum()


def test_the_fit_finds_what_made_the_measurements():
    truth, random = made_up_model(cores=2, scale=1e-7), np.random.default_rng(1)
    pieces = {"messages": []}
    for condition in ("alone", "busy"):
        pieces[condition] = []
        for _ in range(40):
            p = Problem(
                *(int(n) for n in random.integers(2, 60, 4)), q1=int(random.integers(1, 9)), q2=int(random.integers(1, 9))
            )
            s = Share(*random.integers(1, 99, 4).tolist())
            table_of = getattr(truth, condition)
            seconds = {f: sum(table_of[f][n] * c(p, s) for n, c in names.items()) for f, names in cost.WORK.items()}
            pieces[condition].append((p, s, seconds))
    for ranks in (2, 3, 5, 9):
        for up, down in ((64, 64), (10**6, 64), (64, 10**6)):
            pieces["messages"].append((ranks, up, down, truth.message(ranks, up=up) + truth.message(ranks, down=down)))
    found = cost.from_pieces(pieces, 2)
    assert max(abs(said / seen - 1) for _, seen, said in found.fits) < 1e-6
    for phase, names in truth.alone.items():
        assert found.alone[phase] == pytest.approx(names, rel=1e-3), phase
    share, ranks = shares(PROBLEM, 9)
    assert found.seconds(PROBLEM, 9, share, ranks) == pytest.approx(truth.seconds(PROBLEM, 9, share, ranks), rel=1e-4)


def test_a_model_goes_through_its_file(tmp_path):
    model = made_up_model(cores=3)
    path = tmp_path / "machine.toml"
    path.write_text(model.to_toml())
    again = cost.read(path)
    assert (again.cores, again.alone, again.busy, again.network) == (3, model.alone, model.busy, model.network)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "not valid TOML"),
        ("", "cores is None"),
        ("machine.cores = -1", "cores is -1"),
        ("machine.cores = 2", r"\[network\] is missing"),
        ("machine.cores = 2\nnetwork.speed = 1", "has 'speed', expected any of latency"),
        ("machine.cores = 2\nnetwork.latency = -1.0", "latency = -1.0, expected seconds"),
        ("alone = 3\nmachine.cores = 2\nnetwork.latency = 1.0", r"\[alone.local factor\] is missing"),
    ],
)
def test_a_file_that_is_no_model(tmp_path, text, words):
    path = tmp_path / "machine.toml"
    path.write_text(text)
    with pytest.raises(cost.ConfigError, match=words):
        cost.read(path)


def test_the_projection_names_what_limits():
    model = made_up_model()
    slow = {"average": ("network", "reduce_byte"), "server": ("server", None), "small messages": ("network", "latency")}
    for name, (where, key) in slow.items():
        made = made_up_model(scale=1e-12)
        made.network["latency"] = 1e-9
        made.alone["local factor"]["value"] = made.busy["local factor"]["value"] = 1e-9
        if where == "network":
            made.network[key] = 1e-2 if key == "latency" else 1e-6
        else:
            for part in (made.alone, made.busy):
                part["control"]["call"] = 0.5
        (curve,) = projection.project(made, PROBLEM, clients=[100])
        assert curve.limit[1] == name and projection.LIMITS[name][1] in curve.describe()
    for title, curves in projection.families(model, PROBLEM).items():
        assert curves[0].ranks[-1] == 4096 and curves[-1].problem.n_clients == 10**6, title
        for curve in curves:
            assert all(np.isfinite(curve.seconds)) and curve.describe()
    free = dataclasses.replace(model, network=dict.fromkeys(cost.NETWORK, 0.0))
    for part in (free.alone, free.busy):
        for phase in (*cost.SERVER, "bookkeeping"):
            part[phase] = {}
    assert "nothing takes longer" in projection.project(free, PROBLEM, clients=[10**6])[0].describe()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "machine.toml"
    path.write_text(made_up_model(cores=2).to_toml())
    return path


@pytest.fixture(scope="module")
def study_done(tmp_path_factory, model_file):
    out = tmp_path_factory.mktemp("study") / "weak"
    done = fedmavg(
        *("scaling", "weak", *SETTINGS, "--ranks", "2,1,3", "--rounds", 3, "--warm-up", 2, "--repeats", 2),
        *("--machine-model", model_file, "--out", out),
    )
    assert done.returncode == 0, done.stderr
    return out, done


def test_a_study_tells_what_its_run_files_hold(study_done):
    out, done = study_done
    for name in ("scaling.md", "scaling.png", "scaling.pdf", "projection.png", "projection.pdf", "machine.toml", "study.toml"):
        assert (out / name).stat().st_size > 0, name
    assert (out / "scaling.md").read_text() in done.stdout
    rows = {int(row["ranks"]): row for row in csv.DictReader((out / "scaling.csv").open())}
    by_rank = list(csv.DictReader((out / "ranks.csv").open()))
    assert sorted(rows) == [1, 2, 3] and len(by_rank) == 2 * (1 + 2 + 3)
    for ranks, row in rows.items():
        runs = [results.read(out / "runs" / str(i)) for i in range(6) if (1, 2, 3)[i % 3] == ranks]
        medians = [np.median(data["rounds/seconds"][2:]) for _, data in runs]
        assert float(row["seconds"]) == pytest.approx(np.median(medians))
        assert [float(row["seconds_least"]), float(row["seconds_most"])] == pytest.approx([min(medians), max(medians)])
        assert (int(row["samples"]), int(row["clients"])) == (120 * max(1, ranks - 1), 6 * max(1, ranks - 1))
        sent = results.summarize(out / "runs" / str(ranks - 1))["mpi_sent_bytes"]
        assert int(row["sent_bytes"]) == sum(sent)
        assert [int(r["sent_bytes"]) for r in by_rank if int(r["run"]) == ranks - 1] == sent
        names = runs[0][0]["phases"].split(", ")
        waits = [np.median(data["rounds/phase_seconds_max"][2:, names.index("wait")]) for _, data in runs]
        assert float(row["wait_max"]) == pytest.approx(np.median(waits))
        assert float(row["model_seconds"]) / float(row["seconds"]) - 1 == pytest.approx(float(row["model_error"]))
    assert float(rows[1]["speed_up"]) == 1 == float(rows[1]["efficiency"]) and float(rows[1]["sent_bytes"]) == 0


def test_phases_and_waiting_are_within_the_round(study_done):
    out, _ = study_done
    for i in range(6):
        attributes, data = results.read(out / "runs" / str(i))
        names = attributes["phases"].split(", ")
        assert (data["rounds/phase_seconds_min"] <= data["rounds/phase_seconds_mean"] * (1 + 1e-12)).all()
        assert (data["rounds/phase_seconds_mean"] <= data["rounds/phase_seconds_max"] * (1 + 1e-12)).all()
        waited = data["ranks/phase_seconds"][:, names.index("wait")]
        assert (waited == 0).all() if attributes["ranks"] == 1 else (waited > 0).all()


def test_a_study_is_reported_again_and_not_overwritten(study_done, model_file):
    out, _ = study_done
    before = (out / "scaling.csv").read_text()
    assert fedmavg("scaling", "report", out).returncode == 0
    assert (out / "scaling.csv").read_text() == before
    again = fedmavg("scaling", "strong", *SETTINGS, "--machine-model", model_file, "--out", out)
    assert "holds another scaling study; choose another --out" in error_of(again)


@pytest.mark.slow
def test_a_machine_is_measured_and_its_study_modelled(tmp_path):
    done = fedmavg(
        *(
            "scaling",
            "strong",
            *SETTINGS,
            "--ranks",
            "1,2",
            "--rounds",
            2,
            "--warm-up",
            1,
            "--repeats",
            1,
            "--out",
            tmp_path / "s",
        )
    )
    assert done.returncode == 0, done.stderr
    assert cost.read(tmp_path / "s" / "machine.toml").cores > 0
    fits = list(csv.DictReader((tmp_path / "s" / "fits.csv").open()))
    assert len(fits) > 50 and all(float(row["seconds"]) > 0 for row in fits)
    path = tmp_path / "s" / "pieces" / "0.json"
    path.write_text("{")
    (tmp_path / "s" / "machine.toml").unlink()
    again = fedmavg(
        "scaling", "strong", *SETTINGS, "--ranks", "1,2", "--rounds", 2, "--warm-up", 1, "--repeats", 1, "--out", tmp_path / "s"
    )
    assert again.returncode == 2
    assert f"fedmavg: error: {path}: not what fedmavg scaling has written; remove it" in again.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "1,x"], "--ranks '1,x', expected whole numbers with commas"),
        (["--ranks", "0"], "--ranks '0', expected whole numbers"),
        (["--rounds", "0"], "expected a whole number, at least 1"),
        (["--launcher", "mpirun"], "expected a command with {ranks} in it"),
        (["--launcher", "no-such-launcher {ranks}"], "no-such-launcher: not found"),
        (["--machine-model", "nowhere.toml"], "nowhere.toml: No such file"),
        (["--slurm", "nowhere"], "--machine 'nowhere': no jobs/machines/nowhere.toml here"),
        (["--config", "nowhere.toml"], "nowhere.toml: No such file"),
        (["--set", "model.n_component=3"], "unknown key 'model.n_component'"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, model_file, arguments, words):
    given = [*SETTINGS, "--out", tmp_path / "study", "--ranks", "1"]
    if "--machine-model" not in arguments:
        given += ["--machine-model", model_file]
    assert words in error_of(fedmavg("scaling", "strong", *given, *arguments))


def test_a_run_that_fails_ends_the_study_which_then_goes_on(tmp_path, model_file):
    given = ["scaling", "strong", *SETTINGS, "--ranks", "1,2", "--rounds", "2", "--warm-up", "1", "--repeats", "1"]
    given += ["--machine-model", model_file, "--out", tmp_path / "s"]
    failed = fedmavg(*given, "--launcher", "false {ranks}")
    assert failed.returncode == 2 and "a run on 1 ranks ended with status 1" in failed.stderr.splitlines()[-1]
    alone = fedmavg(*given, "--launcher", "env R={ranks}")  # which starts one process where two are to be
    assert "a run of 3 rounds on 1 ranks, expected 3 on 2" in alone.stderr.splitlines()[-1]
    assert "holds another scaling study" in error_of(fedmavg(*given, "--set", "run.seed=1"))


def test_only_made_up_data_can_grow(tmp_path):
    done = fedmavg("scaling", "weak", "--set", "data.source=matrix", "--set", "data.path=x.npy", "--out", tmp_path / "s")
    assert "data.source = 'matrix' in a weak study, expected 'synthetic'" in error_of(done)
    assert "no scaling study (study.toml) there" in error_of(fedmavg("scaling", "report", tmp_path))


def test_a_study_is_not_started_by_a_launcher(tmp_path):
    done = fedmavg("scaling", "strong", "--out", tmp_path / "s", ranks=2)
    assert "under a launcher of 2 ranks" in error_of(done)


def test_runs_that_a_launcher_starts_do_not_see_the_one_before(monkeypatch, tmp_path):
    monkeypatch.setenv("PMI_RANK", "3")
    script = "import os, sys; sys.exit('PMI_RANK' in os.environ)"
    (tmp_path / "told.py").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launch("env R={ranks}", 4, ["told"])


def test_ideal_and_speed_up_are_those_of_the_cores():
    names = ("sent_bytes", "received_bytes", "evaluation_sent_bytes", "evaluation_received_bytes", "peak_memory_bytes")
    rank = dict.fromkeys(names, 1)
    points = {ranks: table.Point(ranks, 100, 10, [seconds], {}, [rank]) for ranks, seconds in {1: 8.0, 3: 4.0, 17: 5.0}.items()}
    strong = Study("strong", (1, 3, 17), 1, 1, 1, cores=2)
    assert table.ideal(strong, points[1], 17) == 4 and table.speed_up(strong, points[1], points[17]) == pytest.approx(1.6)
    assert table.rows(strong, list(points.values()))[2]["time_over_ideal"] == pytest.approx(1.25)
    weak = dataclasses.replace(strong, kind="weak")
    assert table.ideal(weak, points[1], 17) == 64 and table.ideal(weak, points[1], 3) == 8
    assert table.speed_up(weak, points[1], points[3]) == pytest.approx(4)


def test_the_array_starts_each_element_on_its_own_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1])
    out = tmp_path / "study"
    arguments = [
        "scaling",
        "strong",
        *SETTINGS,
        "--ranks",
        "1,2,5",
        "--repeats",
        "2",
        "--slurm",
        "laptop-slurm",
        "--out",
        str(out),
    ]
    assert cli.main(arguments) == 0
    text = (out / "study.sbatch").read_text()
    for line in (
        "#SBATCH --array=0-5%1",
        "#SBATCH --ntasks=5",
        "#SBATCH --nodes=3",
        "ranks=(1 2 5 1 2 5)",
        "nodes=(1 1 3 1 1 3)",
    ):
        assert line in text.splitlines(), line
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "srun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (fake / "srun").chmod(0o755)
    env = environment(PATH=f"{fake}:{environment()['PATH']}", SLURM_ARRAY_TASK_ID="2", SLURM_ARRAY_JOB_ID="7", SLURM_JOB_ID="9")
    done = subprocess.run(["bash", out / "study.sbatch"], capture_output=True, text=True, env=env)
    config, run = out / "configs" / "size-1.toml", out / "runs" / "2"
    told = ["--mpi=pmi2", "--nodes=3", "--ntasks=5", "fedmavg", "run", str(config), "--out", str(run), "--resume"]
    assert done.stdout.splitlines() == told, done.stderr
    assert list((out / "stores").glob("*.h5")) and "configs" in text
    with pytest.raises(cost.ConfigError, match="expected at most"):
        few = dataclasses.replace(machines.read("laptop-slurm"), queue=machines.QueueFacts(max_nodes=1))
        array.script(Study("strong", (9,), 1, 1, 1, 0), out, few, None, [])


def test_passes_over_pieces_are_joined_by_their_medians():
    def found(seconds):
        piece = [dataclasses.asdict(Problem(8, 64, 2, 2)), dataclasses.asdict(Share(64, 2, 64, 2)), {"round": seconds}]
        return {"alone": [piece], "busy": [piece], "messages": [[2, 8, 8, seconds]]}

    joined = measured.together([found(3.0), found(1.0), found(10.0)])
    assert joined["alone"] == joined["busy"] == [(Problem(8, 64, 2, 2), Share(64, 2, 64, 2), {"round": 3.0})]
    assert joined["messages"] == [(2, 8, 8, 3.0)]
