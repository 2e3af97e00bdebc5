"""Batch jobs: rendered from a machine and a run's configuration, sent to SLURM, and found again in its queue."""

import re
import shutil
import subprocess
from pathlib import Path

from fedmavg_mpi import config, machines, results, runner, slurm
from fedmavg_mpi.errors import ConfigError, DataError, LaunchError

QUEUE = {  # what squeue is asked for
    "id": "%i",
    "job": "%A",
    "array": "%F",
    "element": "%K",
    "name": "%j",
    "state": "%T",
    "elapsed": "%M",
    "limit": "%l",
    "reason": "%r",
    "comment": "%k",
    "folder": "%Z",
}
BETWEEN = "\x1f"


def render(options):
    """The batch script.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``fedmavg jobs render``.

    Returns
    -------
    str

    Raises
    ------
    ConfigError
        The machine, the job or one of its runs is not as it should be.
    """
    machine = machines.read(options.machine)
    sweep = tuple(map(parse_sweep, options.sweep))
    if len(dict(sweep)) < len(sweep):
        raise ConfigError("--sweep names a key twice; give all its values in one --sweep")
    cores = machine.nodes.cores
    nodes = options.nodes or -(-(options.ntasks or cores) // cores)
    job = slurm.Job(
        name=Path(options.job).stem if options.name is None else options.name,
        config=options.job,
        nodes=nodes,
        ntasks=options.ntasks or nodes * cores,
        time=options.time or machine.queue.time,
        settings=tuple(options.set),
        seeds=options.array,
        sweep=sweep,
        at_once=options.at_once,
        out=options.out or "",
    )
    for point in job.points if sweep else [{}]:  # better now than after a night in the queue
        runner.check(config.read(job.config, [*job.settings, *(f"{key}={value}" for key, value in point.items())]))
    return slurm.script(machine, job, command(options))


def command(options):
    """The command line that renders the same script."""
    words = ["fedmavg", "jobs", "render", "--machine", options.machine, "--job", options.job]
    for name in ("name", "nodes", "ntasks", "time", "array", "sweep", "at_once", "set", "out"):
        given = getattr(options, name)
        for value in given if isinstance(given, list) else [given] if given else []:
            words += ["--" + name.replace("_", "-"), str(value)]
    return words


def parse_sweep(text):
    """``section.key=a,b,c`` as (key, values)."""
    key, equals, values = text.partition("=")
    values = tuple(values.split(","))
    if not equals or not all(values) or not re.fullmatch(r"\w+\.\w+", key, re.ASCII):
        raise ConfigError(
            f"--sweep {text!r}, expected section.key=value,value,... as in --sweep algorithm.clients_per_round=5,10"
        )
    return key, values


def submit(options):
    """Send the job to SLURM.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``fedmavg jobs submit``.

    Returns
    -------
    str
        The job's id.

    Raises
    ------
    ConfigError
        See :func:`render`.
    LaunchError
        No sbatch, or it refuses the job.
    """
    answer = ask("sbatch", "--parsable", text=render(options))
    return answer.strip().split(";")[0]  # a federated cluster adds its name


def status(ids):
    """Jobs as a table.

    Parameters
    ----------
    ids : sequence of str
        Job ids; none for all of the user's own that the queue remembers and that :func:`submit` has sent.

    Returns
    -------
    str

    Raises
    ------
    LaunchError
        No squeue, or it fails.
    """
    for wrong in (found for found in ids if not re.fullmatch(r"\d+(_\d+)?", found, re.ASCII)):
        raise ConfigError(f"{wrong!r}, expected the id of a job, as in 123 or 123_4")
    rows = [("JOB", "NAME", "STATE", "TIME", "LIMIT", "RUN")]
    for one in ids or [None]:
        found = queue(one)
        rows += [describe(job) for job in found]
        if one and not found:
            rows.append((one, "-", "not in the queue", "-", "-", ", ".join(map(outcome, left_by(one))) or "none below runs/"))
    if len(rows) == 1:
        return "no jobs in the queue"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def queue(one):
    """The elements of a job in SLURM's memory, or all of the user's: list of dict."""
    whose = ["--jobs", one] if one else ["--me"]
    try:
        answer = ask("squeue", "--noheader", "--array", "--states=all", *whose, "--format=" + BETWEEN.join(QUEUE.values()))
    except LaunchError as error:
        if one and "Invalid job id" in str(error):  # forgotten
            return []
        raise
    lines = [line.split(BETWEEN) for line in answer.split("\n")]
    found = [dict(zip(QUEUE, line, strict=True)) for line in lines if len(line) == len(QUEUE)]
    return [job for job in found if one or job["comment"].startswith(slurm.COMMENT)]


def describe(job):
    """A row of the table."""
    waits = job["state"] == "PENDING" and job["reason"] != "None"
    state = job["state"] + (f" ({job['reason']})" if waits else "")
    run = "-"
    if job["comment"].startswith(slurm.COMMENT):
        run = job["comment"].removeprefix(slurm.COMMENT)
        for pattern, value in {"%j": job["job"], "%A": job["array"], "%a": job["element"]}.items():
            run = run.replace(pattern, value)
        run = outcome(run, job["folder"])
    return job["id"], job["name"], state, job["elapsed"], job["limit"], run


def left_by(one):
    """The run directories of a job that the queue has forgotten, where they have their usual names."""
    number, _, element = one.partition("_")
    found = sorted(Path("runs").glob(f"*-{number}"))
    return [str(path / element) for path in found]


def outcome(directory, folder="."):
    """A run directory and, if its run has ended, what it came to."""
    try:
        summary = results.summarize(Path(folder) / directory)
    except DataError:
        return directory
    measures = [f"{words} {summary[name]:.4f}" for name, words in results.MEASURES.items() if summary[name] is not None]
    return f"{directory}: " + ", ".join([f"{summary['rounds']} rounds ({summary['stop_reason']})", *measures[:1]])


def ask(program, *arguments, text=None):
    """What one of SLURM's commands answers.

    Raises
    ------
    LaunchError
        It isn't there, or it fails.
    """
    if not shutil.which(program):
        raise LaunchError(f"no {program} on PATH; run this where SLURM's commands are, as on a cluster's login node")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True)
    if done.returncode:
        words = " ".join(done.stderr.split()) or "it says no more"
        raise LaunchError(f"{program} ended with status {done.returncode} ({words}); mend what it names")
    return done.stdout
