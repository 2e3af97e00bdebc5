"""A run of one round, and peak memory: ``python tests/benchmarks/startup.py`` (also ``make bench``); mpirun must be on the path.

Four ranks on the paper's synthetic size, with the compiled kernels in the cache. The seconds are those of the whole command, from ``mpirun`` to
its end: start-up, the one round, and the run file. The peak memory of each worker is set against its own samples.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from fedmavg_mpi import results, store
from fedmavg_mpi.datasets import Dataset
from fedmavg_mpi.placement import Placement

M, N, P = 2000, 10_000, 100
FIXED, SHARE = 250e6, 1.15  # what is aimed at: bytes whatever the samples, and a share of the samples


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--ranks", type=int, default=4)
    options = options.parse_args()
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job, out, path = folder / "job.toml", folder / "out", folder / "store.h5"
        store.write(path, Dataset(random.random((N, M))), np.sort(random.integers(0, P, N)), "uneven")
        rest = '[stop]\nmax_rounds = 1\n[run]\nprogress = "off"\ncheckpoint_every = 0\n'
        job.write_text(f'[data]\nsource = "store"\npath = "{path}"\n{rest}')
        run = [sys.executable, "-m", "fedmavg_mpi.cli", "run", job, "--out", out, "--force"]
        taken = []
        for _ in range(options.repeats + 1):
            start = time.perf_counter()
            subprocess.run(["mpirun", "-n", str(options.ranks), *run], check=True, stdout=subprocess.DEVNULL)
            taken.append(time.perf_counter() - start)
        with h5py.File(out / results.RUN_FILE) as file:
            peak = file["ranks/peak_memory_bytes"][:]
        slabs = Placement(store.ClientStore(path).sizes, options.ranks).rows * M * 8
    print(f"\nM = {M}, N = {N}, P = {P}, {options.ranks} ranks, kernels compiled before")
    print(f"  one round, from mpirun to its end {np.median(taken[1:]):.1f} s   (at most 4)")
    for rank in range(1, options.ranks):
        limit = SHARE * slabs[rank] + FIXED
        print(f"  rank {rank}: samples {slabs[rank] / 1e6:.0f} MB, peak {peak[rank] / 1e6:.0f} MB   (at most {limit / 1e6:.0f})")


main()
