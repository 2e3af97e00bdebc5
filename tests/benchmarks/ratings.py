"""A round on MovieLens: ``python tests/benchmarks/ratings.py DIR`` (also ``make bench``, where FEDMAVG_DATA holds ml-latest-small).

All users, K = 40, Q1 = 10, one worker and one thread, evaluation left out; prints microseconds a training rating a round.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from fedmavg_mpi import communicator, config, runner, store

ROUNDS = 15


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(os.environ.get("FEDMAVG_DATA", "data")) / "ml-latest-small")
    if not folder.exists():
        print(f"no {folder}: give the folder of ml-latest-small, or set FEDMAVG_DATA")
        return
    comm = communicator.connect()
    common = [
        "model.kind=ratings",
        "partition.scheme=by_user",
        "model.n_components=40",
        "data.source=movielens",
        f"data.path={folder}",
    ]
    common += ["run.evaluate_every=0", "run.progress=off", f"stop.max_rounds={ROUNDS}"]
    with tempfile.TemporaryDirectory() as scratch, threadpool_limits(1):
        path = Path(scratch) / "store.h5"
        runner.prepare(config.read(None, common), path)
        opened = store.ClientStore(path)
        for dtype in ("float64", "float32"):
            for step in ("global", "local"):
                settings = config.read(None, [*common, f"run.dtype={dtype}", f"algorithm.step_size_w={step}"])
                parts = runner.Federation(comm, settings, opened)
                seconds = float(np.median(runner.rounds(parts).seconds[1:]))
                n_ratings = parts.application.model.totals.n_ratings
                print(
                    f"{dtype}, {step} d: {1e3 * seconds:.1f} ms a round of {n_ratings:,} training ratings, "
                    f"{1e6 * seconds / n_ratings:.3f} us a rating (at most 2.5)"
                )


main()
