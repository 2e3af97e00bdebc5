"""Batch jobs on a real SLURM: the same bits as on a laptop, on from the checkpoint after the limit, arrays, cancellation."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment

from tests import openmpi
from tests.slurm.cluster import until

ROOT = Path(__file__).parents[2]

SMALL_DEMO = """
[data]
n_features = 100
n_samples = 1000
n_clusters = 5
[partition]
n_clients = 20
[model]
n_components = 5
[algorithm]
clients_per_round = 5
penalty_continuation = true
[aggregation]
method = "gather"
[stop]
max_rounds = 60
rel_tol = 0.0
[run]
progress = "off"
"""

MACHINE = """
[queue]
partition = "debug"
signal_seconds = {signal_seconds}
[nodes]
cores = 2
scratch = "{scratch}"
[software]
environment = "{environment}"
variables = {variables}
[launch]
program = "{program}"
mpi = "{mpi}"
options = {options}
"""


@pytest.fixture
def desk(cluster, tmp_path):
    return Desk(cluster, tmp_path)


class Desk:
    """A folder from which jobs are submitted."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        (folder / "small.toml").write_text(SMALL_DEMO)
        self.env = cluster.environment()
        self.env["PYTHONPATH"] = str(ROOT)
        self.env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), self.env["PATH"]])

    def machine(self, program="srun", mpi="pmi2", environment="", signal_seconds=30, options=()):
        path = self.folder / f"{program}-{mpi}.toml"
        facts = {
            "program": program,
            "mpi": mpi,
            "environment": environment,
            "signal_seconds": signal_seconds,
            "options": list(options),
        }
        path.write_text(
            MACHINE.format(**facts, scratch=self.folder / "kernels", variables=list(map("=".join, openmpi.VARIABLES.items())))
        )
        return path

    def fedmavg(self, *arguments):
        done = self.call(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def call(self, *arguments):
        command = [sys.executable, "-m", "fedmavg_mpi.cli", *map(str, arguments)]
        return subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=200)

    def submit(self, machine, *arguments):
        return self.fedmavg("jobs", "submit", "--machine", machine, "--job", "small.toml", "--time", "10", *arguments)

    def summary(self, directory):
        return json.loads(self.fedmavg("summary", directory, "--json"))

    def log(self, number):
        return (self.folder / f"small-{number}.log").read_text()


@pytest.fixture(scope="module")
def laptop_hash(tmp_path_factory):
    """What one process without SLURM comes to."""
    folder = tmp_path_factory.mktemp("laptop")
    (folder / "small.toml").write_text(SMALL_DEMO)
    for command in (["run", "small.toml", "--out", "run"], ["summary", "run", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "fedmavg_mpi.cli", *command],
            cwd=folder,
            env=environment(PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["w_sha256"]


LAUNCHES = {
    "mpirun": ("mpirun", "pmi2"),
    "srun": ("srun", "pmi2"),
    "mpirun of Open MPI": ("mpirun", "pmix"),
    "srun with pmix": ("srun", "pmix"),
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_same_bits_as_on_a_laptop(desk, laptop_hash, launch):
    program, mpi = LAUNCHES[launch]
    folder = openmpi.environment_folder() if mpi == "pmix" else ""
    if launch == "srun with pmix" and (reason := desk.cluster.lacks("pmix")):
        pytest.skip(reason)
    number = desk.submit(desk.machine(program, mpi, folder), "--ntasks", 3)
    assert re.fullmatch(r"\d+", number)
    job = desk.cluster.wait(number)
    assert job["JobState"] == "COMPLETED", desk.log(number)
    assert job["NodeList"] == "n[1-2]"
    assert desk.summary(f"runs/small-{number}")["ranks"] == 3
    assert desk.summary(f"runs/small-{number}")["w_sha256"] == laptop_hash
    table = desk.fedmavg("jobs", "status", number).splitlines()
    assert re.match(rf"{number} +small +COMPLETED .* runs/small-{number}: 60 rounds", table[1])


STAND_IN = """#!/bin/bash
# a run that stops at a signal and goes on from where it was
while [[ $1 != --out ]]; do settings+=" $1"; shift; done
mkdir -p "$2"
echo "$settings" > "$2/settings"
trap 'touch "$2/checkpoint"; exit 75' USR1 TERM
touch "$2/started"
[[ -e $2/checkpoint || $settings == *seed* ]] && exit 0
while :; do sleep 0.1; done
"""


@pytest.fixture
def stand_in(desk):
    """A desk whose ``fedmavg`` on the nodes is a stand-in."""
    folder = desk.folder / "environment" / "bin"
    folder.mkdir(parents=True)
    (folder / "activate").write_text(f"PATH={folder}:$PATH\n")
    (folder / "fedmavg").write_text(STAND_IN)
    (folder / "fedmavg").chmod(0o755)
    return desk, desk.machine(environment=folder.parent)


def test_goes_back_into_the_queue_after_a_signal(stand_in):
    desk, machine = stand_in
    number = desk.submit(machine, "--ntasks", 3, "--out", "runs/here")
    until(lambda: (desk.folder / "runs/here/started").exists(), 20, lambda: desk.log(number))
    desk.cluster.ask("scancel", "--batch", "--signal=USR1", number)
    job = desk.cluster.wait(number)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1"), desk.log(number)
    assert "goes back into the queue" in desk.log(number)


def test_a_cancelled_job_stays_away(stand_in):
    desk, machine = stand_in
    number = desk.submit(machine, "--ntasks", 3)
    until(lambda: (desk.folder / f"runs/small-{number}/started").exists(), 20, lambda: desk.log(number))
    desk.cluster.ask("scancel", number)
    job = desk.cluster.wait(number)
    assert (job["JobState"], job["Restarts"]) == ("CANCELLED", "0"), desk.log(number)
    assert (desk.folder / f"runs/small-{number}/checkpoint").exists()


def test_arrays(stand_in):
    """Each element of a sweep runs once, with its own settings, in a directory of its own."""
    desk, machine = stand_in
    seeds = desk.submit(machine, "--array", "3,5", "--ntasks", 1)
    sweep = desk.submit(machine, "--sweep", "run.seed=1,2", "--sweep", "algorithm.q2=7,8", "--at-once", 3, "--ntasks", 1)
    expected = {f"{seeds}/{seed}": f"--set run.seed={seed}" for seed in (3, 5)}
    points = [
        "run.seed=1 --set algorithm.q2=7",
        "run.seed=1 --set algorithm.q2=8",
        "run.seed=2 --set algorithm.q2=7",
        "run.seed=2 --set algorithm.q2=8",
    ]
    expected |= {f"{sweep}/{i}": f"--set {point}" for i, point in enumerate(points)}
    until(lambda: not desk.cluster.ask("squeue", "-h", "-j", f"{seeds},{sweep}"), 60, "the arrays have not ended")
    found = {
        str(path.parent.relative_to(desk.folder)): path.read_text().strip() for path in desk.folder.glob("runs/*/*/settings")
    }
    assert found == {f"runs/small-{place}": f"run small.toml {settings}" for place, settings in expected.items()}
    assert desk.fedmavg("jobs", "status", sweep).count("COMPLETED") == 4


def test_sbatch_refuses_in_one_line(desk):
    machine = desk.machine()
    machine.write_text(machine.read_text().replace('"debug"', '"nowhere"'))
    done = desk.call("jobs", "submit", "--machine", machine, "--job", "small.toml", "--time", "10")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "invalid partition" in done.stderr


SLOW = """
import os, sys, time
from fedmavg_mpi import cli
from fedmavg_mpi.algorithms.fedmavg import FedMAvg
def run_round(self, *arguments, of=FedMAvg.run_round):
    time.sleep(0.5)
    return of(self, *arguments)
if "SLURM_RESTART_COUNT" not in os.environ:
    FedMAvg.run_round = run_round
sys.exit(cli.main(sys.argv[2:]))
"""


def test_goes_on_after_its_limit(desk):
    """A job whose limit is shorter than its run ends with the bits of an uninterrupted one."""
    (desk.folder / "slow.py").write_text(SLOW)  # not half of the rounds within the limit, before the job is requeued
    # SLURM looks every 30 s: the signal comes 25 to 55 s after the start, and the end 30 s later at the earliest
    machine = desk.machine(signal_seconds=5, options=[sys.executable, "slow.py"])
    rounds = ("--set", "stop.max_rounds=300")
    number = desk.submit(machine, "--ntasks", 3, "--time", "1", *rounds)
    desk.fedmavg("run", "small.toml", "--out", "uninterrupted", *rounds)
    job = desk.cluster.wait(number, 300)
    assert job["JobState"] == "COMPLETED", desk.log(number)
    assert int(job["Restarts"]) >= 1 and "goes back into the queue" in desk.log(number)
    for name in ("rounds", "w_sha256", "h_sha256"):
        assert desk.summary(f"runs/small-{number}")[name] == desk.summary("uninterrupted")[name]
