"""A round against its bare products, in one process: ``python tests/benchmarks/rounds.py`` (also ``make bench``).

The paper's synthetic size: M = 2000, N = 10000, K = 20, P = 100 clients of uneven size, Q1 = Q2 = 10, objective included. Products and rounds
are timed in turn, so that a drift of the machine meets both; medians are printed, and their ratios.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from fedmavg_mpi import communicator, config, runner, store
from fedmavg_mpi.datasets import Dataset

M, N, K, P = 2000, 10_000, 20, 100


def bare_products(samples, dtype):
    """Functions that form W'X and XZ, each in the orientations that a layout allows."""
    random = np.random.default_rng(1)
    w, z = random.random((K, M)).astype(dtype), random.random((K, N)).astype(dtype)
    w_columns, z_columns = np.ascontiguousarray(w.T), np.ascontiguousarray(z.T)
    return {
        "W'X": [
            lambda: w @ samples.T,
            lambda: w_columns.T @ samples.T,
            lambda: samples @ w.T,
            lambda: samples @ w_columns,
        ],
        "XZ": [lambda: z @ samples, lambda: z_columns.T @ samples, lambda: samples.T @ z_columns, lambda: samples.T @ z.T],
    }


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--rounds", type=int, default=12, help="rounds a repeat")
    options = options.parse_args()
    comm = communicator.connect()
    random = np.random.default_rng(0)
    sizes = np.maximum(1, random.multinomial(N, random.dirichlet(np.full(P, 2.0))))
    clients = np.repeat(np.arange(P), sizes)[:N]
    clients = np.concatenate([clients, np.full(N - clients.size, P - 1)])
    modes = {
        "full round": ["algorithm.clients_per_round=0"],
        "m = 10, PCC": ["algorithm.clients_per_round=10"],
        "m = 10, PCP": ["algorithm.clients_per_round=10", "algorithm.participation=pcp", "run.evaluate_every=0"],
        "full round, gather": ["algorithm.clients_per_round=0", "aggregation.method=gather"],
    }
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        path = Path(folder) / "store.h5"
        store.write(path, Dataset(random.random((N, M))), clients, "uneven")
        for dtype in ("float64", "float32"):
            opened = store.ClientStore(path)
            products = bare_products(opened.slab(range(P), np.dtype(dtype)), dtype)
            settings = [
                f"run.dtype={dtype}",
                "run.progress=off",
                f"model.n_components={K}",
                "stop.rel_tol=0",
                f"stop.max_rounds={options.rounds}",
            ]
            times = {name: [] for name in (*products, *modes)}
            for _ in range(options.repeats):
                for name, orientations in products.items():
                    times[name].append(min(np.median([seconds(work) for _ in range(5)]) for work in orientations))
                for name, overrides in modes.items():
                    parts = runner.Federation(comm, config.read(None, [*settings, *overrides]), opened)
                    times[name] += runner.rounds(parts).seconds[1:]
            medians = {name: float(np.median(values)) for name, values in times.items()}
            bare = medians["W'X"] + medians["XZ"]
            print(f"\n{dtype}: M = {M}, N = {N}, K = {K}, P = {P}, one worker")
            for name, value in medians.items():
                print(f"  {name:<20} {1e3 * value:7.1f} ms")
            print(f"  full round / (W'X + XZ)      {medians['full round'] / bare:.2f}   (at most 1.5)")
            print(f"  m = 10 / full round          {medians['m = 10, PCC'] / medians['full round']:.2f}   (at most 0.7)")
            print(f"  m = 10 PCP / full round      {medians['m = 10, PCP'] / medians['full round']:.2f}")


main()
