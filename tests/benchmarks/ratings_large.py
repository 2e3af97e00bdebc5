"""A round on as many ratings as ml-25m holds: ``python tests/benchmarks/ratings_large.py`` (also ``make bench-large``).

25 million ratings of 162,000 users and 59,000 items, generated with popularities and activities as uneven as real ones; m = 1000, K = 40,
Q1 = Q2 = 10 on 3 ranks. Prints the median round, the microseconds a rating that was worked on, and every rank's peak memory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import sparse

from fedmavg_mpi import store
from fedmavg_mpi.datasets import Dataset

FEDMAVG = [sys.executable, "-m", "fedmavg_mpi.cli"]


def generate(n_users, n_items, n_ratings, random):
    """Ratings as a csr_array (users x items): activity and popularity fall off as powers of the rank."""
    activity = random.permutation((1 + np.arange(n_users)) ** -0.7)
    counts = np.maximum(1, (activity / activity.sum() * n_ratings).astype(np.int64)).clip(max=n_items // 4)
    popularity = np.cumsum((1 + np.arange(n_items)) ** -0.8)
    indptr, parts = [0], []
    for count in counts:
        drawn = np.unique(np.searchsorted(popularity, random.random(int(1.3 * count) + 4) * popularity[-1]))[:count]
        parts.append(drawn.astype(np.int32))
        indptr.append(indptr[-1] + drawn.size)
    indices = np.concatenate(parts)
    values = (random.integers(1, 11, indices.size) / 2).astype(np.float32)
    return sparse.csr_array((values, indices, np.array(indptr)), shape=(n_users, n_items))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--users", type=int, default=162_000)
    options.add_argument("--items", type=int, default=59_000)
    options.add_argument("--ratings", type=int, default=25_000_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("-m", type=int, default=1000)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, out, job = Path(folder) / "ratings.h5", Path(folder) / "run", Path(folder) / "job.toml"
        ratings = generate(options.users, options.items, options.ratings, np.random.default_rng(0))
        store.write(path, Dataset(ratings, rating_range=(0.5, 5.0)), np.arange(options.users), "by_user")
        print(f"{ratings.nnz:,} ratings of {options.users:,} users and {options.items:,} items")
        del ratings
        job.touch()
        for participation in ("pcc", "pcp"):
            settings = [
                "data.source=store",
                f"data.path={path}",
                "partition.scheme=by_user",
                "model.kind=ratings",
                "model.n_components=40",
                "algorithm.step_size_w=local",
                f"algorithm.clients_per_round={options.m}",
                f"algorithm.participation={participation}",
                f"stop.max_rounds={options.rounds}",
                f"run.evaluate_every={options.rounds}",
                "run.progress=off",
            ]
            words = [word for setting in settings for word in ("--set", setting)]
            command = ["mpirun", "-n", "3", *FEDMAVG, "run", job, "--out", out, "--force", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            done = subprocess.run([*FEDMAVG, "summary", out, "--json"], check=True, capture_output=True, text=True)
            found = json.loads(done.stdout)
            peaks = ", ".join(f"{peak / 1e9:.2f}" for peak in found["peak_memory_bytes"])
            print(
                f"m = {options.m}, {participation}: median round {found['round_seconds_median']:.2f} s, "
                f"peak memory by rank {peaks} GB, RMSE held out {found['rmse_test']:.3f}"
            )


main()
