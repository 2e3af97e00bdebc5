"""Which way of forming the products with dense samples is the fastest here: measured once a machine and shape, and kept."""

import json
import os
import time
from pathlib import Path

import numpy as np

from fedmavg_mpi.errors import ConfigError, DataError
from fedmavg_mpi.kernels import tiles
from fedmavg_mpi.models.products import DENSE
from fedmavg_mpi.store import written_aside

CACHE = "products.json"
SAMPLES_BYTES = 1 << 24  # of the trial: more than the caches of one core
LEAST_SAMPLES, MOST_SAMPLES = 40, 1000  # of the trial; where so few have more bytes, it takes some of their features
FASTER = 1.2  # the compiled tiles are left only for what is faster by this factor, so that noise doesn't choose
NAMES = list(DENSE)


def fastest_products(comm, run, n_components, n_features):
    """The name in ``products.DENSE`` that all ranks use.

    Parameters
    ----------
    comm : Communicator
    run : RunConfig
    n_components, n_features : int
        K and M.

    Raises
    ------
    ConfigError
        The compiled ones are asked for where the compiler is off.
    """
    check_compiler(run.products)
    if not tiles.COMPILED:
        return "blas"
    if run.products != "auto":
        return run.products
    chosen = np.zeros(1)
    with comm.together():
        if comm.is_server:
            chosen[0] = NAMES.index(_kept_or_measured(run, n_components, n_features))
    comm.broadcast(chosen, "control", comm.everyone)
    return NAMES[int(chosen[0])]


def check_compiler(products):
    """Raise ConfigError where products in this way need the compiler, and it is off."""
    if products == "tiles" and not tiles.COMPILED:
        raise ConfigError(
            "run.products = 'tiles' needs numba's compiler, which NUMBA_DISABLE_JIT turns off; unset that, or give another value to a "
            "run that begins"
        )


def _kept_or_measured(run, n_components, n_features):
    """The server's choice, from the file of earlier ones where it is there."""
    machine = f"{tiles.PROCESSOR}, {tiles.VECTOR_BYTES} bytes a vector, numpy {np.__version__}, {run.threads} threads"
    shape = f"{machine}, {run.dtype}, K = {n_components}, M = {n_features}"
    path = _cache_folder() / "fedmavg_mpi" / CACHE
    try:
        kept = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        kept = {}
    if kept.get(shape) in NAMES:
        return kept[shape]
    seconds = {name: trial(name, n_components, n_features, np.dtype(run.dtype)) for name in NAMES}
    name = "blas" if FASTER * seconds["blas"] < seconds["tiles"] else "tiles"
    try:  # a convenience: without it the next run measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside:
            aside.write_text(json.dumps(kept | {shape: name}, indent=1))
    except (OSError, DataError):
        pass
    return name


def _cache_folder():
    """The user's; where there is none, a place in which nothing can be."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # an account without a home, as in many containers
        return Path(os.devnull)


def trial(name, n_components, n_features, dtype):
    """Seconds of the two products over some samples: the least of three passes."""
    n_features = min(n_features, SAMPLES_BYTES // (LEAST_SAMPLES * dtype.itemsize))
    n_samples = min(MOST_SAMPLES, SAMPLES_BYTES // (n_features * dtype.itemsize))
    samples = np.ones((n_samples, n_features), dtype)
    w, z = np.ones((n_components, n_features), dtype), np.ones((n_samples, n_components), dtype)
    b, pull = np.empty((n_components, n_samples), dtype), np.zeros((n_components, n_features), dtype)
    products, seconds = DENSE[name](samples), []
    for _ in range(3):
        start = time.perf_counter()
        products.multiply(w, 0, n_samples, b)
        products.add(z, 0, n_samples, pull)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
