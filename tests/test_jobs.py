"""Batch scripts as text, what is refused before it can get into one, and how a script supervises its run."""

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import environment

from fedmavg_mpi import cli, jobs, machines, slurm
from fedmavg_mpi.errors import ConfigError

ROOT = Path(__file__).parents[1]
GOLDEN = sorted([*(ROOT / "jobs").glob("*.sbatch"), *(ROOT / "tests" / "golden").glob("*.sbatch")])
TWO_CORES = machines.Machine(nodes=machines.NodeFacts(cores=2))
PLAIN = slurm.Job("demo", "jobs/demo.toml", nodes=1, ntasks=2, time="10")


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    """Scripts and machines are found from where a user calls."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_scripts_say_how_they_were_made(path, capsys):
    """The second line of a script renders it again, word for word."""
    command = shlex.split(path.read_text().splitlines()[1].removeprefix("# "))
    assert command[0] == "fedmavg" and cli.main(command[1:]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert subprocess.run(["bash", "-n", path]).returncode == 0


def test_there_are_scripts():
    assert {path.parent.name for path in GOLDEN} == {"golden", "jobs"}


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "jobs" / "machines").glob("*.toml"))])
def test_every_machine_renders(name, capsys):
    assert cli.main(["jobs", "render", "--machine", name, "--job", "jobs/demo.toml"]) == 0
    assert f"--machine {name} " in capsys.readouterr().out


HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "a'; touch pwned; '",
    'a"; touch pwned; "',
    "a\ntouch pwned",
    "a b",
    "*",
    "ä",
    "-x",
    "",
]


@pytest.mark.parametrize("word", HOSTILE)
def test_a_directive_holds_plain_words_only(word):
    for job in (dataclasses.replace(PLAIN, name=word), *([dataclasses.replace(PLAIN, out=word)] if word else [])):
        with pytest.raises(ConfigError, match="expected only letters"):
            slurm.script(TWO_CORES, job, [])
    for name in ("partition", "account", "qos") if word else ():
        with pytest.raises(ConfigError, match=rf"queue\.{name} is .*expected only letters"):
            slurm.script(dataclasses.replace(TWO_CORES, queue=machines.QueueFacts(**{name: word})), PLAIN, [])
    if word not in ("*", "-x"):  # which mean nothing to sbatch
        options = machines.QueueFacts(options=(f"--constraint={word}",))
        with pytest.raises(ConfigError, match=r"queue\.options holds"):
            slurm.script(dataclasses.replace(TWO_CORES, queue=options), PLAIN, [])


@pytest.mark.parametrize("word", HOSTILE)
def test_the_shell_takes_values_as_they_stand(tmp_path, word):
    """A rendered script, run with programs that tell their arguments, passes each value on unchanged and does nothing else."""
    software = machines.SoftwareFacts(modules=(word,), variables=(f"FOUND={word}",))
    machine = machines.Machine(
        nodes=machines.NodeFacts(cores=2, scratch=f"$HOME/{word}"),
        software=software,
        launch=machines.LaunchFacts(options=(word,)),
    )
    job = dataclasses.replace(PLAIN, config=word, settings=(f"data.path={word}",), sweep=(("data.labels", ("x", word)),))
    told = tmp_path / "told"
    tell = f'#!/bin/bash\nprintf \'%s\\0\' "$@" "$FOUND" "$NUMBA_CACHE_DIR" > {told}\n'
    done = run_script(
        tmp_path, slurm.script(machine, job, []), srun=tell, module=f'#!/bin/bash\nprintf %s "$2" > {tmp_path}/loaded\n'
    )
    assert done.returncode == 0, done.stderr
    assert told.read_bytes().decode().split("\0")[:-1] == [
        *("--mpi=pmi2", word, "fedmavg", "run", word, "--set", f"data.path={word}", "--set", f"data.labels={word}"),
        *("--out", "runs/demo-7/1", "--resume", word, f"{tmp_path}/{word}"),
    ]
    assert (tmp_path / "loaded").read_text() == word
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == []


def test_a_line_break_never_ends_the_comment(capsys):
    arguments = ["jobs", "render", "--machine", "laptop-slurm", "--job", "jobs/demo.toml", "--set", "run.seed=1\n"]
    assert cli.main(arguments) == 2
    assert "control characters" in capsys.readouterr().err


REFUSED = {
    "--name $(id)": "expected only letters",
    "--machine nowhere": "known: generic-mpich, generic-openmpi, laptop-slurm",
    "--machine ../x": "known: ",
    "--job none.toml": "No such file",
    "--set algorithm.q3=1": "did you mean 'q2'",
    "--set model.n_components=0": "at least 1",
    "--sweep algorithm.q3=1,2": "did you mean 'q2'",
    "--sweep algorithm.q2=1,0": "at least 1",
    "--sweep algorithm.q2": "expected section.key=value",
    "--sweep algorithm.q2=1,,2": "expected section.key=value",
    "--sweep run.seed=1 --sweep run.seed=2": "twice",
    "--array 1-": "expected whole numbers",
    "--array 0-3 --sweep run.seed=1,2": "one of them",
    "--at-once 2": "without --array",
    "--nodes 1 --ntasks 3": "3 tasks on 1 nodes of 2 cores",
    "--nodes 3 --ntasks 2": "at least one each",
    "--nodes 0": "at least 1",
    "--time soon": "expected a time",
    "--time 1": "expected more than the 90 s",
    "--time 0": "more than no time",
    "--machine generic-mpich --nodes 17": "at most 16",
    "--machine generic-mpich --time 1-00:00:01": "at most 24:00:00",
}


@pytest.mark.parametrize("given", REFUSED)
def test_refused_in_one_line(given, capsys):
    arguments = ["jobs", "render", "--machine", "laptop-slurm", "--job", "jobs/demo.toml", *given.split()]
    try:
        status = cli.main(arguments)
    except SystemExit as left:
        status = left.code
    found = capsys.readouterr()
    assert status == 2 and found.out == ""
    assert found.err.startswith("fedmavg: error: ") and found.err.count("\n") == 1 and REFUSED[given] in found.err


BAD_MACHINES = {
    "[queue]\npartitoin = 'x'": "did you mean 'partition'",
    "[que]\n": "did you mean 'queue'",
    "[launch]\nprogram = 'mpiexec'": "known: srun, mpirun",
    "[nodes]\ncores = 0": "at least 1",
    "[software]\nmodules = 'gcc'": "expected a list of strings",
    "[software]\nmodules = ['gcc', 1]": "expected a list of strings",
    '[software]\nmodules = ["a\\nb"]': "control characters",
    "[software]\nvariables = ['A B=1']": "expected NAME=value",
    "[software]\nvariables = ['A']": "expected NAME=value",
    "[queue]\noptions = ['-n 3']": "expected --option",
    "[queue]\nmax_time = 'x'": "queue.max_time is 'x'",
    "[queue": "not valid TOML",
}


@pytest.mark.parametrize("text", BAD_MACHINES)
def test_machines_that_can_not_be(text, tmp_path, capsys):
    path = tmp_path / "machine.toml"
    path.write_text(text)
    assert cli.main(["jobs", "render", "--machine", str(path), "--job", "jobs/demo.toml"]) == 2
    found = capsys.readouterr().err
    assert BAD_MACHINES[text] in found and found.count("\n") == 1


def test_times_as_slurm_reads_them():
    found = {"90": 5400, "10:30": 630, "01:30:00": 5400, "2-12": 216000, "2-12:30": 217800, "1-00:00:01": 86401}
    assert {time: machines.seconds("--time", time) for time in found} == found


def test_nodes_and_tasks_follow_from_each_other(capsys):
    for given, expected in {"--ntasks 33": (2, 33), "--nodes 3": (3, 96), "": (1, 32)}.items():
        assert cli.main(["jobs", "render", "--machine", "generic-mpich", "--job", "jobs/demo.toml", *given.split()]) == 0
        assert "--nodes={}\n#SBATCH --ntasks={}\n".format(*expected) in capsys.readouterr().out


def test_without_slurm(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for arguments in (["submit", "--machine", "laptop-slurm", "--job", "jobs/demo.toml"], ["status"], ["status", "12"]):
        assert cli.main(["jobs", *arguments]) == 2
        found = capsys.readouterr().err
        assert "on PATH" in found and found.count("\n") == 1


# ---- how a script supervises its run, with stand-ins for SLURM's commands

STOPS_AT_A_SIGNAL = f"""#!{sys.executable}
import signal, sys, time
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
open("ready", "w").close()
for _ in range(200):
    time.sleep(0.1)
    if stop:
        sys.exit(75)
"""
RUNNING, CANCELLED = "#!/bin/bash\necho RUNNING\n", "#!/bin/bash\necho COMPLETING\n"


def started(folder, text, **programs):
    """A script under way in an empty folder, with these programs on its path."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    for name, words in ({"squeue": RUNNING, "scontrol": f'#!/bin/bash\necho "$@" > {folder}/scontrol-said\n'} | programs).items():
        (folder / "bin" / name).write_text(words)
        (folder / "bin" / name).chmod(0o755)
    found = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURM_NTASKS": "2", "HOME": str(folder)}
    env = environment(PATH=f"{folder}/bin{os.pathsep}{os.environ['PATH']}", **found)
    command = ["bash", "-c", text]
    return subprocess.Popen(
        command, cwd=folder / "work", env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_script(folder, text, **programs):
    process = started(folder, text, **programs)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("program", ["srun", "mpirun"])
def test_a_signal_is_passed_on_and_the_job_requeued(tmp_path, number, program):
    machine = dataclasses.replace(TWO_CORES, launch=machines.LaunchFacts(program=program))
    process = started(tmp_path, slurm.script(machine, PLAIN, []), **{program: STOPS_AT_A_SIGNAL})
    until_exists(tmp_path / "work" / "ready")
    process.send_signal(number)
    out, _ = process.communicate(timeout=15)
    assert process.returncode == 75
    assert (tmp_path / "scontrol-said").read_text() == "requeue 8\n" and "goes back into the queue" in out


def until_exists(path):
    end = time.monotonic() + 10
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)


@pytest.mark.parametrize("status", [0, 1, 2, 137])
def test_any_other_status_is_passed_on(tmp_path, status):
    done = run_script(tmp_path, laptop_script(), srun=f"#!/bin/bash\nexit {status}\n")
    assert done.returncode == status and not (tmp_path / "scontrol-said").exists()


def test_a_cancelled_job_stays_cancelled(tmp_path):
    done = run_script(tmp_path, laptop_script(), srun="#!/bin/bash\nexit 75\n", squeue=CANCELLED)
    assert done.returncode == 75 and not (tmp_path / "scontrol-said").exists()


def test_requeues_end(tmp_path):
    text = laptop_script(queue=machines.QueueFacts(max_requeues=0))
    done = run_script(tmp_path, text, srun="#!/bin/bash\nexit 75\n")
    assert done.returncode == 75 and not (tmp_path / "scontrol-said").exists() and "submit it again" in done.stdout


def laptop_script(**facts):
    return slurm.script(dataclasses.replace(TWO_CORES, **facts), PLAIN, [])


def test_a_module_that_is_not_there_ends_the_job(tmp_path):
    text = laptop_script(software=machines.SoftwareFacts(modules=("gcc/99",)))
    assert run_script(tmp_path, text, module="#!/bin/bash\nexit 3\n", srun="#!/bin/bash\nexit 0\n").returncode == 3


def test_queue_that_forgets(tmp_path, monkeypatch):
    """A job that the queue no longer knows is found by its run directory's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo-12").mkdir(parents=True)
    (tmp_path / "squeue").write_text("#!/bin/bash\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    table = jobs.status(["12", "13"]).splitlines()
    assert "not in the queue" in table[1] and table[1].endswith("runs/demo-12")
    assert table[2].endswith("none below runs/")
