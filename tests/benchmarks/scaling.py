"""Two workers against one: ``python tests/benchmarks/scaling.py`` (also ``make bench``); mpirun must be on the path.

Runs ``mpirun -n 2`` and ``-n 3`` in turn on the paper's synthetic size, and prints the median round of each and their ratio.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

FEDMAVG = [sys.executable, "-m", "fedmavg_mpi.cli"]


def median_round(ranks, store, out, rounds, m):
    """Median seconds of a round of one run."""
    settings = [
        "data.source=store",
        f"data.path={store}",
        f"stop.max_rounds={rounds}",
        "stop.rel_tol=0",
        f"algorithm.clients_per_round={m}",
        "run.progress=off",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    job = Path(out).with_suffix(".toml")
    job.touch()
    subprocess.run(
        ["mpirun", "-n", str(ranks), *FEDMAVG, "run", job, "--out", out, "--force", *words], check=True, stdout=subprocess.DEVNULL
    )
    done = subprocess.run([*FEDMAVG, "summary", out, "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["round_seconds_median"]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--rounds", type=int, default=60)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.h5"
        subprocess.run(
            [*FEDMAVG, "data", "prepare", "synthetic", "--set", "partition.scheme=iid", "--out", store],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for m in (0, 10):
            pairs = []
            for i in range(options.repeats):
                pairs.append([median_round(ranks, store, Path(folder) / f"run{i}", options.rounds, m) for ranks in (2, 3)])
            one, two = np.median(pairs, axis=0)
            ratios = [a / b for a, b in pairs]
            print(
                f"m = {m or 'all'}: one worker {1e3 * one:.1f} ms, two workers {1e3 * two:.1f} ms, "
                f"ratio {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; at least 1.7)"
            )


main()
