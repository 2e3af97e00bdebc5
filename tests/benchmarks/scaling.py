"""Two workers against one: ``python tests/benchmarks/scaling.py`` (also ``make bench``); mpirun must be on the path.

Runs ``mpirun -n 2`` and ``-n 3`` in turn on the paper's synthetic size, and beside them what two cores can do at most: two processes at once that
know nothing of each other, with half the samples each. Prints the median round of each, and the ratios within a turn.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

FEDMAVG = [sys.executable, "-m", "fedmavg_mpi.cli"]
WHOLE, HALF = [], ["data.n_samples=5000", "partition.n_clients=50"]


def start(ranks, store, out, rounds, m):
    """A run that has begun."""
    settings = [
        "data.source=store",
        f"data.path={store}",
        f"stop.max_rounds={rounds}",
        "stop.rel_tol=0",
        f"algorithm.clients_per_round={m}",
        "run.progress=off",
        "run.checkpoint_every=0",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    job = Path(out).with_suffix(".toml")
    job.touch()
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    return subprocess.Popen([*launcher, *FEDMAVG, "run", job, "--out", out, "--force", *words], stdout=subprocess.DEVNULL)


def median_round(out):
    """Median seconds of a round of a finished run."""
    done = subprocess.run([*FEDMAVG, "summary", out, "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["round_seconds_median"]


def together(runs, folder, rounds, m):
    """The longest median round of these runs, as (ranks, store), at the same time."""
    outs = [folder / f"run{i}" for i in range(len(runs))]
    begun = [start(ranks, store, out, rounds, m) for (ranks, store), out in zip(runs, outs, strict=True)]
    if any(run.wait() for run in begun):
        raise SystemExit("a run failed")
    return max(median_round(out) for out in outs)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--rounds", type=int, default=60)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, half = folder / "whole.h5", folder / "half.h5"
        for path, changes in ((whole, WHOLE), (half, HALF)):
            words = [word for setting in ("partition.scheme=iid", *changes) for word in ("--set", setting)]
            subprocess.run(
                [*FEDMAVG, "data", "prepare", "synthetic", *words, "--out", path], check=True, stdout=subprocess.DEVNULL
            )
        print("\nM = 2000, N = 10000, K = 20, P = 100, workers and a server that waits")
        for m, m_half in ((0, 0), (10, 5)):
            turns = []
            for _ in range(options.repeats):
                one, two = (together([(ranks, whole)], folder, options.rounds, m) for ranks in (2, 3))
                turns.append((one, two, together([(1, half), (1, half)], folder, options.rounds, m_half)))
            one, two, apart = 1e3 * np.median(turns, axis=0)
            print(f"  m = {m or 'all'}: one worker {one:.1f} ms, two {two:.1f} ms, two processes with a half each {apart:.1f} ms")
            for what, column, aim in (
                ("one worker / two workers", 1, "at least 1.8"),
                ("one worker / a half each", 2, "what the machine gives"),
            ):
                ratios = [turn[0] / turn[column] for turn in turns]
                print(f"    {what}  {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})   ({aim})")


main()
