"""A child process that prepares stores and carries out runs, one after the other, and the pool of them.

A task is a line of JSON on the child's standard input, its answer a line on its standard output. One process for many runs, because a
process takes longer to start than a short run takes. A child ends when its input does, so none outlives its parent by more than a task.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from multiprocessing.connection import wait
from pathlib import Path

from fedmavg_mpi import config, runner
from fedmavg_mpi.errors import FedmavgError
from fedmavg_mpi.results import CHECKPOINT_FOLDER

# a child is no rank of the launcher that its parent may have been started by
LAUNCHER_VARIABLES = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "SLURM_STEP_", "SLURM_PROCID")
SECONDS_TO_LEAVE = 10


def carry_out(tasks, jobs, done=lambda task: None):
    """Spread tasks over child processes.

    Parameters
    ----------
    tasks : sequence of dict
        ``what`` ("prepare" or "run"), ``config`` (TOML, every key resolved), ``out`` (store or run directory).
    jobs : int
        Children at a time.
    done : callable(dict)
        Called with each task that is done.

    Raises
    ------
    FedmavgError
        What a child said of a task that it can't do, or that it died; the other children are ended.
    """
    waiting, children, busy = deque(tasks), [], {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                idle = next((child for child in children if child.stdout not in busy), None)
                if idle is None:
                    children.append(idle := _start())
                busy[idle.stdout] = task = waiting.popleft()
                with contextlib.suppress(BrokenPipeError):  # dead: its missing answer tells
                    print(json.dumps(task), file=idle.stdin, flush=True)
            for pipe in wait(list(busy)):
                task, answer = busy.pop(pipe), pipe.readline()
                if not answer:
                    child = next(child for child in children if child.stdout is pipe)
                    raise FedmavgError(
                        f"{task['out']}: its process ended with status {child.wait()}; start again to go on, with fewer --jobs if it "
                        "was memory that ran out"
                    )
                if words := json.loads(answer)["error"]:
                    raise FedmavgError(words)
                done(task)
    finally:
        _end(children)


def _start():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _end(children):
    """End the children, which remove what is half done."""
    for child in children:
        child.terminate()
        with contextlib.suppress(OSError):
            child.stdin.close()
    for child in children:
        try:
            child.wait(SECONDS_TO_LEAVE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def perform(task):
    """Do one task."""
    settings = config.parse(task["config"])
    if task["what"] == "prepare":
        runner.prepare(settings, task["out"])
    else:
        from fedmavg_mpi import communicator

        comm, stopped = communicator.connect(), (Path(task["out"]) / CHECKPOINT_FOLDER).is_dir()
        try:
            finished = runner.run(comm, lambda: settings, task["out"], force=not stopped, resume=stopped)
        except FedmavgError:
            if not stopped:
                raise
            finished = runner.run(comm, lambda: settings, task["out"], force=True)  # not to be gone on with
        if not finished:
            sys.exit(1)  # stopped by the parent's signal


def main():
    """Answer tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle, which then ends its children
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for line in sys.stdin:
        try:
            perform(json.loads(line))
            error = None
        except FedmavgError as found:
            error = str(found)
        try:
            print(json.dumps({"error": error}), flush=True)
        except BrokenPipeError:  # the parent is gone
            os._exit(1)


if __name__ == "__main__":
    main()
