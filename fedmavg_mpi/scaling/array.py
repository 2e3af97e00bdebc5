"""A study as a batch array for SLURM: an element a run, all in allocations of the largest one's size."""

import shlex
from pathlib import Path

from fedmavg_mpi import slurm
from fedmavg_mpi.scaling.study import config_of

SCRIPT = "study.sbatch"


def script(study, directory, machine, time, command):
    """The batch script.

    Parameters
    ----------
    study : Study
    directory : path-like
    machine : Machine
    time : str or None
        An element's limit; None: the machine's.
    command : sequence of str
        For the script's head.

    Returns
    -------
    str

    Raises
    ------
    ConfigError
        A value that can't stand in a directive, or that asks for more than the machine has.
    """
    cores, most = machine.nodes.cores, max(study.ranks)
    job = slurm.Job(
        name=f"scaling-{study.kind}",
        config="",
        nodes=-(-most // cores),
        ntasks=most,
        time=time or machine.queue.time,
        seeds=f"0-{len(study.elements) - 1}",
        at_once=1,  # so that the runs don't disturb each other
        out=str(Path(directory) / "runs"),
    )
    slurm.check(machine, job)
    ranks, nodes = study.elements, [-(-n_ranks // cores) for n_ranks in study.elements]
    configs = [config_of(directory, study.size(n_ranks)) for n_ranks in study.elements]
    blocks = [
        ["#!/bin/bash", "# " + shlex.join(command), *slurm.directives(machine, job), "#SBATCH --exclusive"],
        slurm.preparation(machine),
        [
            "# by element",
            f"ranks=({' '.join(map(str, ranks))})",
            f"nodes=({' '.join(map(str, nodes))})",
            f"config=({' '.join(shlex.quote(str(path)) for path in configs)})",
            f"out={slurm.run_directory(job)}",
        ],
        ["launch=(", *(f"  {line}" for line in launch_words(machine)), ")"],
        [slurm.SUPERVISION.format(checkpointed=slurm.CHECKPOINTED, max_requeues=machine.queue.max_requeues)],
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def launch_words(machine):
    """The launcher, on as many ranks as the element has, and the run."""
    launch, element = machine.launch, "[SLURM_ARRAY_TASK_ID]}"
    count = f'"${{ranks{element}"'
    start = ["mpirun", "-n", count]
    if launch.program == "srun":
        start = ["srun", f"--mpi={launch.mpi}", f'--nodes="${{nodes{element}"', f"--ntasks={count}"]
    yield " ".join([*start, *map(shlex.quote, launch.options)])
    yield f'fedmavg run "${{config{element}"'
    yield '--out "$out" --resume'
