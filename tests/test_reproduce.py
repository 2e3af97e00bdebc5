"""The paper's figures: runs made once and reused, numbers that are those of the runs, claims judged both ways."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from launch import environment, error_of, fedmavg

from fedmavg_mpi import config, results
from fedmavg_mpi.cli import main
from fedmavg_mpi.errors import FedmavgError
from fedmavg_mpi.reproduce import claims, fig1, fig2, fig3, fig4, figures, participation, tasks, worker
from fedmavg_mpi.reproduce.study import Curve, Experiment, Study, settings_of

TINY = ("data.n_features=20", "data.n_samples=150", "data.n_clusters=4", "model.n_components=4", "partition.n_clients=12")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Figure 1 of a tiny data set."""
    out = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch)
        assert main(["reproduce", "fig1", "--quick", "--out", str(out), "--jobs", "2"]) == 0
    return out


@pytest.fixture
def tiny(monkeypatch):
    make_tiny(monkeypatch)


def make_tiny(patch):
    patch.setattr(tasks, "SYNTHETIC", TINY)
    patch.setattr(fig1, "ROUNDS", 60)


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def ran(monkeypatch):
    """What is handed to child processes from now on."""
    handed = []
    carry_out = worker.carry_out
    monkeypatch.setattr(worker, "carry_out", lambda given, *rest: (handed.extend(given), carry_out(given, *rest)))
    return handed


def test_figure_leaves_numbers_pictures_and_findings(made):
    names = {path.name for path in made.iterdir()}
    assert names == {"fig1.csv", "fig1.png", "fig1.pdf", "fig1.json", "report.md", "runs", "stores"}
    assert len(list((made / "stores").iterdir())) == 1  # one data set for all
    report = (made / "report.md").read_text()
    assert "PCC beats PCP" in report and "--quick" in report and "fig2" not in report
    assert report.count("| shown |") + report.count("| **not shown** |") == len(
        json.loads((made / "fig1.json").read_text())["findings"]
    )


def test_numbers_are_those_of_the_runs(made):
    rows = rows_of(made / "fig1.csv")
    assert {row["panel"] for row in rows} == set(fig1.PANELS)
    for key in {row["run"] for row in rows}:
        attributes, data = results.read(made / "runs" / key)
        curve = [row for row in rows if row["run"] == key]
        curve = [row for row in curve if row["panel"] == curve[0]["panel"] and row["curve"] == curve[0]["curve"]]
        assert [float(row["objective"]) for row in curve] == data["evaluations/objective"].tolist()
        assert [int(row["round"]) for row in curve] == data["evaluations/round"].tolist()
        total = data["rounds/uplink_values"].sum() + attributes["setup_uplink_values"]
        assert int(curve[-1]["uplink_values"]) == total


def test_second_call_runs_nothing_and_draws(made, tiny, monkeypatch):
    handed = ran(monkeypatch)
    times = json.loads((made / "fig1.json").read_text())["times"]
    (made / "fig1.png").unlink()
    assert main(["reproduce", "fig1", "--quick", "--out", str(made)]) == 0
    assert handed == [] and (made / "fig1.png").exists()
    assert json.loads((made / "fig1.json").read_text())["times"] == times
    assert times["last_runs"] == times["runs"] and times["last_seconds"] > 0


def test_goes_on_where_it_was_stopped(made, tiny, monkeypatch):
    gone, cut = sorted((made / "runs").iterdir())[:2]
    (gone / "run.h5").unlink()
    (cut / "run.h5").write_bytes((cut / "run.h5").read_bytes()[:1000])
    handed = ran(monkeypatch)
    assert main(["reproduce", "fig1", "--quick", "--out", str(made), "--jobs", "1"]) == 0
    assert sorted(task["out"] for task in handed) == sorted(map(str, (gone, cut)))


def test_a_changed_setting_is_another_run():
    keys = {Experiment("a", "b", settings_of(*TINY, *more)).key for more in ((), ("run.seed=1",), ("algorithm.q1=3",))}
    assert len(keys) == 3
    assert Experiment("a", "b", settings_of(*TINY)).key == Experiment("c", "d", settings_of(*TINY)).key
    assert Experiment("a", "b", settings_of(*TINY), 1).key not in keys


def test_starts_share_a_data_set():
    experiments = [Experiment("a", "b", settings_of(*TINY, f"run.seed={seed}")) for seed in range(3)]
    assert len({experiment.key for experiment in experiments}) == 3
    assert len({experiment.store_key for experiment in experiments}) == 1


def test_what_a_child_says_ends_the_command_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "SYNTHETIC", (*TINY, "partition.n_clients=151"))
    assert main(["reproduce", "fig1", "--quick", "--out", str(tmp_path / "out")]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedmavg: error: ")]
    assert error == [
        "fedmavg: error: 150 samples for 151 clients, expected at least one sample a client; lower partition.n_clients"
    ]


def test_a_child_that_dies_ends_the_command(tmp_path):
    with pytest.raises(FedmavgError, match="its process ended with status 1; start again to go on"):
        worker.carry_out([{"config": "", "out": str(tmp_path)}], 1)


def test_a_signal_ends_the_runs_too(tmp_path):
    script = (
        "import sys; from fedmavg_mpi import cli; from fedmavg_mpi.reproduce import fig1, tasks;"
        f"tasks.SYNTHETIC = {TINY}; fig1.ROUNDS = 10**7; sys.exit(cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "reproduce", "fig1", "--quick", "--out", str(tmp_path), "--jobs", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("runs/*/.running"))) < 2:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout.split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 75
        assert process.stderr.read().splitlines()[-1] == "fedmavg: stopped; the same command goes on with what is missing"
    assert len(children) >= 2 and not any(os.path.exists(f"/proc/{child}") for child in children)
    assert list(tmp_path.glob("runs/*/run.h5")) == list(tmp_path.glob("**/*.partial")) == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["fig5"], "invalid choice: 'fig5'"),
        (["fig1", "--jobs", "0"], "expected a whole number, at least 1"),
        (["fig4", "--data", "/no/such/folder"], "ml-latest-small: no such file or folder; give the folder"),
    ],
)
def test_bad_arguments(arguments, words, tmp_path):
    assert words in error_of(fedmavg("reproduce", *arguments, "--out", tmp_path / "out", env={"FEDMAVG_DATA": str(tmp_path)}))
    assert not (tmp_path / "out").exists()


def test_bad_places(tmp_path, tiny, capsys):
    (tmp_path / "file").write_text("")
    assert main(["reproduce", "fig1", "--quick", "--out", str(tmp_path / "file")]) == 2
    assert "can't be written" in capsys.readouterr().err


def test_no_launcher(monkeypatch, capsys):
    monkeypatch.setenv("PMI_SIZE", "3")
    assert main(["reproduce", "fig1", "--quick"]) == 2
    assert "3 ranks, expected one process" in capsys.readouterr().err


def curve(experiment, rows, measure="objective"):
    """A made-up course: ``rows`` of (round, measure), 10 values a round each way."""
    s, values = np.array(rows, float).T
    s = s.astype(int)
    moved = {f"{way}link_{unit}": 10 * s for way in ("up", "down") for unit in ("values", "bytes")}
    return Curve(experiment, {"round": s, measure: values, "objective": values, **moved}, 1.0, {})


def shown(findings, words):
    (found,) = [finding.shown for finding in findings if finding.claim.startswith(words)]
    return found


def flat(experiments, values):
    """Curves that stay at a value by (panel, name)."""
    return [curve(found, [(s, values(found)) for s in range(101)]) for found in experiments]


FIG1_AS_IN_THE_PAPER = {
    "full": {"Q2 = 1": 0.46397, "Q2 = 10": 0.46408, "Q2 = 100": 0.47951, "Q2 = 100, diminishing": 0.46366},
    "partial": {"Q2 = 1": 0.46523, "Q2 = 10": 0.46675, "Q2 = 100": 0.48552, "Q2 = 100, diminishing": 0.46456},
    "q1": {"Q1 = 1": 0.52, "Q1 = 5": 0.47, "Q1 = 10": 0.465, "Q1 = 50": 0.464},
    "participation": {"PCC": 0.471, "PCP": 0.511},
}


@pytest.mark.parametrize(
    "claim, change",
    [
        ("A larger constant Q2 slows the convergence, all clients, at the end", {"full": {"Q2 = 10": 0.45}}),
        ("A larger constant Q2 slows the convergence, m = 10, after 50 rounds", {"partial": {"Q2 = 10": 0.45}}),
        ("Diminishing Q2 does at least as well as any constant Q2, m = 10", {"partial": {"Q2 = 1": 0.45}}),
        ("The gap", {"full": {"Q2 = 100": 0.5}}),
        ("A larger Q1 helps, at the end", {"q1": {"Q1 = 50": 0.47}}),
        ("The returns of a larger Q1 diminish, at the end", {"q1": {"Q1 = 50": 0.1}}),
        ("PCC beats PCP, at the end", {"participation": {"PCC": 0.52}}),
    ],
)
def test_claims_of_figure_1_both_ways(claim, change):
    def found(numbers):
        return fig1.findings(flat(fig1.experiments(True), lambda experiment: numbers[experiment.panel][experiment.curve]))

    assert shown(found(FIG1_AS_IN_THE_PAPER), claim) is True
    changed = {panel: {**values, **change.get(panel, {})} for panel, values in FIG1_AS_IN_THE_PAPER.items()}
    assert shown(found(changed), claim) is False


@pytest.mark.parametrize("case, expected", [("Case 2", True), ("Case 1", False)])
def test_claims_of_figure_2_both_ways(case, expected, data_folder, monkeypatch):
    monkeypatch.setenv("FEDMAVG_DATA", str(data_folder))
    found = fig2.findings(
        flat(fig2.experiments(False), lambda found: 0.5 if (found.panel, found.curve) == (case, "FedMAvg, m = 5") else 0.4)
    )
    assert shown(found, "The number of clients") is expected


@pytest.mark.parametrize("reached, expected", [(0.905, True), (0.95, False)])
def test_claims_of_figure_4_both_ways(reached, expected, data_folder, monkeypatch):
    monkeypatch.setenv("FEDMAVG_DATA", str(data_folder))
    values = {"FedMAvg, m = 10": reached}
    curves = [
        curve(found, [(0, 3.0), (1, 1.0), (2, values.get(found.curve, 0.9))], "rmse_test") for found in fig4.experiments(True)
    ]
    findings = fig4.findings(curves)
    assert shown(findings, "With m = 10 the RMSE comes close") is expected
    assert ("never" in findings[1].numbers) is not expected


def test_figure_3_with_every_method(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "SYNTHETIC", TINY)
    monkeypatch.setattr(tasks, "TCGA", (*TINY, "data.outlier_fraction=0.1"))
    monkeypatch.setitem(fig3.ROUNDS, True, 30)
    assert main(["reproduce", "fig3", "--quick", "--out", str(tmp_path), "--jobs", "2"]) == 0
    rows = rows_of(tmp_path / "fig3.csv")
    ends = {(row["panel"], row["curve"], row["summary_size"]): float(row["accuracy"]) for row in rows}
    n_sizes = sum(len(sizes) for _, sizes in fig3.SUMMARIES.values())
    assert len(ends) == 2 * (len(fig3.BY_ROUNDS) + 1 + n_sizes) and all(0 < accuracy <= 1 for accuracy in ends.values())
    report = (tmp_path / "report.md").read_text()
    assert "KM\\|\\| ends lower than FedMAvg with m = 10, TCGA" in report


def map_of(rounds):
    """A map's curves, which reach the fixed objective after ``rounds(cut, way, m)``; None: never."""
    curves = []
    for experiment in participation.experiments(True):
        algorithm = experiment.settings.algorithm
        at = rounds(experiment.panel, algorithm.participation, algorithm.clients_per_round)
        curves.append(curve(experiment, [(s, 0.5 if at is not None and s >= at else 0.6) for s in range(101)]))
    return curves


def test_map_of_participation_says_what_it_shows():
    slower = map_of(lambda cut, way, m: 20 if m == 0 else 40)
    words = {finding.claim: finding.numbers for finding in participation.findings(slower)}
    assert "PCP saves rounds nowhere on this map" in words["In short"]
    assert words["Rounds, PCC"].startswith(
        "partial participation takes fewer, with every seed and by 5% or more in the median, in 0 of 12 cells"
    )
    faster = map_of(lambda cut, way, m: {0: 20, 2: None}.get(m, 10 if cut == "Case 2" and way == "pcp" else 30))
    words = {finding.claim: finding.numbers for finding in participation.findings(faster)}
    assert "PCP saves rounds only on Case 2" in words["In short"] and "PCC saves rounds nowhere" in words["In short"]
    assert "at best 0.50 times (Case 2, m = 10)" in words["Rounds, PCP"]
    assert "in 4 it doesn't get there" in words["Rounds, PCC"]
    header, rows = participation.table(faster)
    rows = [dict(zip(header, row)) for row in rows]
    assert {row["rounds"] for row in rows if row["m"] == 2} == {""}
    assert {row["rounds"] for row in rows if row["m"] == "all"} == {20}


@pytest.mark.parametrize("rounds", [lambda cut, way, m: 20, lambda cut, way, m: None if m else 20])
def test_map_of_participation_is_drawn(rounds, tmp_path):
    from fedmavg_mpi.report import plots

    assert plots.save(participation.draw(map_of(rounds)), tmp_path / "map.png").stat().st_size > 10_000


def test_report_passes_over_what_is_missing_or_broken(tmp_path):
    claims.leave(
        tmp_path, "fig2", "title", "setting.", False, [claims.Finding("it rains", False, "0 mm")], claims.Times(3, 10.0, 2, 5.0)
    )
    (tmp_path / "fig1.json").write_text("{")
    (tmp_path / "fig4.json").write_text('{"name": "fig4"}')
    report = claims.write_report(tmp_path, figures.FIGURES).read_text()
    assert (
        "| it rains | **not shown** | 0 mm |" in report
        and "fig1" not in report
        and "fig4" not in report
        and "--quick" not in report
    )


def test_study_reads_what_it_ran(tmp_path, capsys):
    experiment = Experiment("a", "b", settings_of(*TINY, "stop.max_rounds=3"))
    (found,), n_run, elapsed = Study(tmp_path, 1).carry_out("title", [experiment], 1)
    assert n_run == 1 and elapsed > 0 and found["round"].tolist() == [0, 1, 2, 3] and found.at_round(2) == found["objective"][2]
    assert "1 runs, 1 to do" in capsys.readouterr().err
    settings = config.read(tmp_path / "runs" / experiment.key / results.CONFIG_FILE)
    assert settings.data.source == "store" and settings.partition.n_clients == 12
