"""A round against one iteration of other programs, on one matrix and one thread: ``python tests/benchmarks/peers.py`` (``make bench-peers``).

Dense, the paper's synthetic data (M = 2000, N = 10000, K = 20, float64): scikit-learn's non-negative factorization by multiplicative updates
(``mu``) and by coordinate descent (``cd``). All minimize |X - WH|^2 here: FedMAvg has its penalties at zero. Beside the seconds of an iteration
(a round: 10 steps on H and 10 on W) stand those in which each comes to the relative error that ``cd`` has after some iterations.

Ratings, MovieLens ml-latest-small where FEDMAVG_DATA holds it (K = 20): implicit's ALS and LIBMF, where they can be imported. They minimize other
things (implicit weights what was not rated, LIBMF takes stochastic steps), so only the seconds of an iteration are set side by side.

An iteration's seconds are the difference between a long and a short run from one start, over the difference of their iterations.
"""

import argparse
import importlib.util
import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from fedmavg_mpi import communicator, config, runner, store
from fedmavg_mpi.federation import Federation

K = 20
DENSE = ["partition.scheme=iid", f"model.n_components={K}", "model.rho=0", "model.nu=0", "run.progress=off", "stop.rel_tol=0"]
SHORT, LONG = 5, 25
GOAL = 40  # iterations of cd whose relative error all are to reach, within a thousandth
COUNTS = [5, 10, 20, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960]


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def an_iteration(run, repeats):
    """Median seconds of one iteration of ``run(iterations)``."""
    return float(np.median([(seconds(lambda: run(LONG)) - seconds(lambda: run(SHORT))) / (LONG - SHORT) for _ in range(repeats)]))


def dense(comm, folder, repeats):
    path = folder / "dense.h5"
    runner.prepare(config.read(None, DENSE), path)
    opened = store.ClientStore(path)
    samples = opened.slab(range(opened.sizes.size), np.dtype("float64"))
    norm2 = float(np.vdot(samples, samples))

    def peer(solver):
        def run(iterations):
            return NMF(K, init="random", solver=solver, max_iter=iterations, tol=0, random_state=0).fit(samples)

        return run

    def fedmavg(rounds, every=0):
        parts = Federation(comm, config.read(None, [*DENSE, f"stop.max_rounds={rounds}", f"run.evaluate_every={every}"]), opened)
        return runner.rounds(parts)

    def error_of(run, iterations):
        return run(iterations).reconstruction_err_ ** 2 / norm2

    peers = {f"scikit-learn {solver}": peer(solver) for solver in ("cd", "mu")}
    goal = 1.001 * error_of(peers["scikit-learn cd"], GOAL)
    rows = []
    for name, run in peers.items():
        needed = next((n for n in COUNTS if error_of(run, n) <= goal), None)
        rows.append((name, an_iteration(run, repeats), needed))
    history = fedmavg(COUNTS[-1], every=1)
    reached = np.flatnonzero(np.array(history.per_evaluation["objective"]) <= goal)
    round_seconds = float(np.median([np.median(fedmavg(LONG, every=1).seconds[1:]) for _ in range(repeats)]))
    rows.insert(0, ("fedmavg, Q1 = Q2 = 10", round_seconds, int(reached[0]) if reached.size else None))
    print(f"\nM = {samples.shape[1]}, N = {samples.shape[0]}, K = {K}; to the relative error {goal:.5f}")
    for name, each, needed in rows:
        reached = f"{needed} in {needed * each:.2f} s" if needed else f"not within {COUNTS[-1]}"
        print(f"  {name:<24} {1e3 * each:7.1f} ms an iteration, to the error: {reached}")
    slower = {name: each / round_seconds for name, each, _ in rows[1:]}
    print(
        "  an iteration over a round of fedmavg: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in slower.items())
        + "   (above 1)"
    )


def ratings(comm, folder, repeats):
    source = Path(os.environ.get("FEDMAVG_DATA", "data")) / "ml-latest-small"
    if not source.exists():
        print(f"\nno {source}: set FEDMAVG_DATA to set ratings side by side")
        return
    common = [
        "model.kind=ratings",
        "partition.scheme=by_user",
        "data.source=movielens",
        f"data.path={source}",
        "run.evaluate_every=0",
    ]
    common += [f"model.n_components={K}", "run.progress=off", f"stop.max_rounds={LONG}"]
    path = folder / "ratings.h5"
    runner.prepare(config.read(None, common), path)
    opened = store.ClientStore(path)
    table = opened.slab(range(opened.sizes.size), np.dtype("float32"))
    table = sparse.csr_matrix((table.data, table.indices.astype(np.int32), table.indptr.astype(np.int32)), shape=table.shape)
    rows = []
    for step in ("global", "local"):
        settings = config.read(None, [*common, f"algorithm.step_size_w={step}"])
        taken = [np.median(runner.rounds(Federation(comm, settings, opened)).seconds[1:]) for _ in range(repeats)]
        rows.append((f"fedmavg, {step} d", float(np.median(taken))))
    if importlib.util.find_spec("implicit"):
        from implicit.cpu.als import AlternatingLeastSquares

        def als(iterations):
            model = AlternatingLeastSquares(factors=K, iterations=iterations, num_threads=1, random_state=0)
            model.fit(table, show_progress=False)

        rows.append(("implicit ALS", an_iteration(als, repeats)))
    if importlib.util.find_spec("libmf"):
        from libmf import mf

        triples = np.column_stack([*table.nonzero(), table.data])

        def stochastic(iterations):
            mf.MF(k=K, nr_iters=iterations, nr_threads=1, quiet=True).fit(triples)

        rows.append(("LIBMF", an_iteration(stochastic, repeats)))
    print(f"\n{table.nnz:,} ratings of {table.shape[0]} users on {table.shape[1]} items, K = {K}")
    for name, each in rows:
        print(f"  {name:<24} {1e3 * each:7.1f} ms an iteration, {1e9 * each / table.nnz:.0f} ns a rating")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=5)
    options = options.parse_args()
    comm = communicator.connect()
    warnings.simplefilter("ignore", ConvergenceWarning)
    with tempfile.TemporaryDirectory() as name, threadpool_limits(1):
        dense(comm, Path(name), options.repeats)
        ratings(comm, Path(name), options.repeats)


main()
