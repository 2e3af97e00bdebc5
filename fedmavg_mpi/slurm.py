"""Batch scripts for SLURM: pure text from what a machine is and what a job asks for.

A script is read twice. ``sbatch`` parses its ``#SBATCH`` lines, which no shell sees and no quoting protects: only plain words get in there.
The shell reads the rest: every value is quoted, and only ``$NAME`` in a machine's paths is expanded.
"""

import itertools
import re
import shlex
from dataclasses import dataclass

from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.machines import seconds
from fedmavg_mpi.text import fits_a_line

CHECKPOINTED = 75  # exit status of a run that a signal has stopped after a checkpoint
MOST_ELEMENTS, LONGEST_NAME, LONGEST_PATH = 10**6, 200, 1000  # beyond what a scheduler or a file system takes
COMMENT = "fedmavg:"  # marks our jobs in the queue, before their run directory

# The launcher gets USR1 for TERM too: Open MPI's mpirun answers TERM by killing its ranks. A trap ends the wait, which then starts again.
SUPERVISION = """\
# Ahead of the limit a signal reaches this shell alone: it tells the ranks to write a checkpoint and stop.
trap 'interrupted=1; kill -USR1 "$launcher"' USR1 TERM
"${{launch[@]}}" &
launcher=$!
interrupted=1
while ((interrupted)); do
  interrupted=0
  wait "$launcher"
  status=$?
done

# Stopped after a checkpoint: back into the queue to go on from there, unless the job has been cancelled.
if ((status == {checkpointed})) && [[ $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) == RUNNING ]]; then
  if ((${{SLURM_RESTART_COUNT:-0}} < {max_requeues})); then
    echo "job $SLURM_JOB_ID goes back into the queue, to go on from its checkpoint in $out"
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "job $SLURM_JOB_ID has been requeued {max_requeues} times; to go on, submit it again with --out $out"
  fi
fi
exit "$status"
"""


@dataclass(frozen=True)
class Job:
    """What a job asks for.

    Attributes
    ----------
    name : str
    config : str
        Path of the run's configuration.
    nodes, ntasks : int
    time : str
        Its limit.
    settings : tuple of str
        ``section.key=value``, as for ``fedmavg run --set``.
    seeds : str
        An array over seeds, as in ``0-9``; empty for none.
    sweep : tuple of (str, tuple of str)
        An array over the product of these keys' values.
    at_once : int
        Most elements of an array that run at the same time; 0: no limit.
    out : str
        The run directory, or the folder of those of an array; empty: named after the job.
    """

    name: str
    config: str
    nodes: int
    ntasks: int
    time: str
    settings: tuple = ()
    seeds: str = ""
    sweep: tuple = ()
    at_once: int = 0
    out: str = ""

    @property
    def is_array(self):
        """Whether the job has elements."""
        return bool(self.seeds or self.sweep)

    @property
    def points(self):
        """The settings of each element of a sweep, by index: list of dict of key to value."""
        keys, values = zip(*self.sweep, strict=True)
        return [dict(zip(keys, point, strict=True)) for point in itertools.product(*values)]

    @property
    def directory(self):
        """The run directory, with sbatch's words for what is known later: %j the job, %A the array, %a its element."""
        if self.is_array:
            return (self.out or f"runs/{self.name}-%A") + "/%a"
        return self.out or f"runs/{self.name}-%j"


def script(machine, job, command):
    """The batch script.

    Parameters
    ----------
    machine : Machine
    job : Job
    command : sequence of str
        The command that renders it, for the script's head.

    Returns
    -------
    str

    Raises
    ------
    ConfigError
        A value that can't stand in a directive, or that asks for more than the machine has.
    """
    check(machine, job)
    for word in command:
        if not fits_a_line(word):  # the one place where a line break would end more than a quoted word
            raise ConfigError(f"{ascii(word)}, expected text without control characters, in UTF-8")
    blocks = [
        ["#!/bin/bash", "# " + shlex.join(command), *directives(machine, job)],
        preparation(machine),
        [*sweep_arrays(job), "# the same after each requeue", f"out={run_directory(job)}"],
        ["launch=(", *(f"  {line}" for line in launch_words(machine, job)), ")"],
        [SUPERVISION.format(checkpointed=CHECKPOINTED, max_requeues=machine.queue.max_requeues)],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def check(machine, job):
    """Refuse a job that the machine can't take.

    Raises
    ------
    ConfigError
    """
    queue = machine.queue
    time, most = seconds("the job's time", job.time), queue.max_time and seconds("queue.max_time", queue.max_time)
    refused = {
        f"{job.ntasks} tasks on {job.nodes} nodes of {machine.nodes.cores} cores; ask for fewer --ntasks or more --nodes": (
            job.ntasks > job.nodes * machine.nodes.cores
        ),
        f"{job.ntasks} tasks on {job.nodes} nodes, expected at least one each; ask for fewer --nodes": job.ntasks < job.nodes,
        f"{job.nodes} nodes, expected at most {queue.max_nodes} on this machine; ask for fewer": 0 < queue.max_nodes < job.nodes,
        f"the job's time {job.time}, expected at most {queue.max_time} on this machine; the job goes on after its limit": (
            bool(most) and time > most
        ),
        f"the job's time {job.time}, expected more than the {queue.signal_seconds} s ahead of it at which runs are stopped "
        "(queue.signal_seconds); ask for longer": time <= queue.signal_seconds,
        f"--array {job.seeds[:80]!r}, expected whole numbers and rising ranges below {MOST_ELEMENTS}, as in 0-9 or 1,3,5-7": (
            bool(job.seeds) and not is_array(job.seeds)
        ),
        f"a name of {len(job.name)} characters, expected at most {LONGEST_NAME}; give another --name": len(job.name)
        > LONGEST_NAME,
        f"a run directory of {len(job.out)} characters, expected at most {LONGEST_PATH}; give another --out": len(job.out)
        > LONGEST_PATH,
        f"{job.nodes} nodes, expected at most {MOST_ELEMENTS}; ask for fewer --nodes": job.nodes > MOST_ELEMENTS,
        "--array and --sweep, expected one of them; sweep the seed with --sweep run.seed=0,1,2": bool(job.seeds and job.sweep),
        "--at-once without --array or --sweep; leave it out": bool(job.at_once) and not job.is_array,
    }
    for words, found in refused.items():
        if found:
            raise ConfigError(words)


def is_array(text):
    """Whether a text says which elements an array has, as sbatch reads it."""
    if not re.fullmatch(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*", text, re.ASCII):
        return False
    ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return all(ends[0] <= ends[-1] < MOST_ELEMENTS for ends in ranges)


def directives(machine, job):
    """What sbatch reads."""
    queue = machine.queue
    name = plain("the job's name", job.name, "give another --name")
    if job.out:
        plain("--out", job.out, "choose another directory", more="/")
    elements = job.seeds or (f"0-{len(job.points) - 1}" if job.sweep else "")
    lines = [
        f"--job-name={name}",
        f"--comment={COMMENT}{job.directory}",
        f"--output={name}-{'%A_%a' if job.is_array else '%j'}.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{queue.signal_seconds}",
        f"--nodes={job.nodes}",
        f"--ntasks={job.ntasks}",
        f"--time={job.time}",
    ]
    if elements:
        lines.append(f"--array={elements}" + (f"%{job.at_once}" if job.at_once else ""))
    for option in ("partition", "account", "qos"):
        if value := getattr(queue, option):
            lines.append(f"--{option}=" + plain(f"queue.{option}", value, "mend the machine's file"))
    for option in queue.options:
        if not re.fullmatch(r"--[a-z][a-z-]*(=[\w.,:=@+/&|*()\[\]%-]+)?", option, re.ASCII):
            raise ConfigError(
                f"queue.options holds {ascii(option)}, expected --option or --option=value, without blanks or quotes"
            )
        lines.append(option)
    return [f"#SBATCH {line}" for line in lines]


def plain(what, value, advice, more=""):
    """The value, if it may stand in a directive.

    Raises
    ------
    ConfigError
    """
    if not re.fullmatch(rf"[A-Za-z0-9_.{more}][A-Za-z0-9_.,:=@+{more}-]*", value):
        raise ConfigError(
            f"{what} is {ascii(value)}, expected only letters, digits and any of _ . , : = @ + - {more}".rstrip() + f"; {advice}"
        )
    return value


def preparation(machine):
    """The lines that make the program available."""
    software = machine.software
    lines = [f". {expanded(path)} || exit" for path in software.sources]
    lines += [f"module load {shlex.quote(module)} || exit" for module in software.modules]
    if software.environment:
        lines.append(f". {expanded(software.environment)}/bin/activate || exit")
    for variable in software.variables:
        name, equals, value = variable.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ConfigError(f"software.variables holds {ascii(variable)}, expected NAME=value")
        lines.append(f"export {name}={shlex.quote(value)}")
    lines.append("export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1")
    if machine.nodes.scratch:
        lines.append(f"export NUMBA_CACHE_DIR={expanded(machine.nodes.scratch)}")
    return lines


def expanded(path):
    """A path in the shell's words: ``$NAME`` stands for the variable, everything else for itself."""
    pieces = re.split(r"\$(\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)", path, flags=re.ASCII)
    return "".join(f'"${{{piece.strip("{}")}}}"' if i % 2 else piece and shlex.quote(piece) for i, piece in enumerate(pieces))


def sweep_arrays(job):
    """One shell array a key: its value by the element's index."""
    return [
        f"{shell_name(key)}=({' '.join(shlex.quote(point[key]) for point in job.points)})  # by element" for key, _ in job.sweep
    ]


def run_directory(job):
    """The run directory in the shell's words."""
    variables = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    return "".join(
        f'"${variables[piece]}"' if piece in variables else piece and shlex.quote(piece)
        for piece in re.split("(%[jAa])", job.directory)
    )


def launch_words(machine, job):
    """The launcher and the run, a few words a line."""
    launch = machine.launch
    start = ["srun", f"--mpi={launch.mpi}"] if launch.program == "srun" else ["mpirun", "-n", '"$SLURM_NTASKS"']
    yield " ".join([*start, *map(shlex.quote, launch.options)])
    yield f"fedmavg run {shlex.quote(job.config)}"
    for setting in job.settings:
        yield f"--set {shlex.quote(setting)}"
    if job.seeds:
        yield '--set run.seed="$SLURM_ARRAY_TASK_ID"'
    for key, _ in job.sweep:
        yield f'--set {shlex.quote(key)}="${{{shell_name(key)}[SLURM_ARRAY_TASK_ID]}}"'
    yield '--out "$out" --resume'


def shell_name(key):
    """A configuration key as a shell variable's name."""
    return re.sub(r"\W", "_", key, flags=re.ASCII)
