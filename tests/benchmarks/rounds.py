"""A round against the machine's rate of matrix products, in one process: ``python tests/benchmarks/rounds.py`` (also ``make bench``).

The paper's synthetic size (M = 2000, N = 10000, K = 20, P = 100 clients of uneven size, Q1 = Q2 = 10, objective included), the smallest one
(scikit-learn's digits, P = 10), and sparse samples. What is compared is timed in turn, so that a drift of the machine meets both; medians are
printed, and their ratios.

The rate is that of a product of 1000 x 1000 matrices, and the share of it what the two products with X alone would take at that rate, over
the round. ``arithmetic`` are a round's own operations on its numbers, called one after the other without what stands around them.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from fedmavg_mpi import communicator, config, runner, store
from fedmavg_mpi.datasets import Dataset
from fedmavg_mpi.federation import Federation
from fedmavg_mpi.kernels import dense
from fedmavg_mpi.models.clustering import step_powers
from fedmavg_mpi.models.eigenvalues import largest_eigenvalues

M, N, K, P = 2000, 10_000, 20, 100
SQUARE = 1000
MODES = {
    "full round": ["algorithm.clients_per_round=0"],
    "m = 10, PCC": ["algorithm.clients_per_round=10"],
    "m = 10, PCP": ["algorithm.clients_per_round=10", "algorithm.participation=pcp", "run.evaluate_every=0"],
    "full round, gather": ["algorithm.clients_per_round=0", "aggregation.method=gather"],
}


def bare_products(samples, dtype):
    """Functions that form W'X and XZ by BLAS, each in the orientations that a layout allows."""
    random = np.random.default_rng(1)
    w, z = random.random((K, M)).astype(dtype), random.random((K, N)).astype(dtype)
    w_columns, z_columns = np.ascontiguousarray(w.T), np.ascontiguousarray(z.T)
    return {
        "W'X by BLAS": [
            lambda: w @ samples.T,
            lambda: w_columns.T @ samples.T,
            lambda: samples @ w.T,
            lambda: samples @ w_columns,
        ],
        "XZ by BLAS": [
            lambda: z @ samples,
            lambda: z_columns.T @ samples,
            lambda: samples.T @ z_columns,
            lambda: samples.T @ z.T,
        ],
    }


def arithmetic(federation):
    """The operations of a full round with its objective, on the federation's own numbers."""
    shard, model = federation.shard, federation.application.model
    offsets, clients = shard.offsets, shard.all_clients
    n, h = shard.h.shape[1], shard.h.copy()
    step_matrix, scale = model.identity.astype(shard.dtype) * shard.dtype.type(0.5), shard.dtype.type(1e-9)
    out, z = np.zeros_like(shard.w), np.empty((n, h.shape[0]), shard.dtype)
    terms, labels, changed = np.empty((clients.size, 3)), np.empty(n, np.int32), np.empty(clients.size, np.int64)
    steps = federation.settings.algorithm.q1

    def work():
        shard.products.multiply(shard.w, 0, n, shard.b)
        dense.local_factor_steps(h, shard.b, step_matrix, scale, steps)
        dense.grams(h, offsets[:-1], offsets[1:], shard.h_grams)
        largest_eigenvalues(shard.w @ shard.w.T)
        largest_eigenvalues(shard.h_grams.sum(axis=0))
        _, sums = step_powers(shard.h_grams, np.full(clients.size, 1e-9), 10)
        dense.combine_components(h, sums.astype(shard.dtype), offsets[:-1], offsets[1:], z)
        shard.products.add(z, 0, n, out)
        dense.objective_terms(h, shard.b, offsets, shard.norms2, shard.w_gram, shard.h_grams, terms)
        dense.assignments(h, labels)
        dense.count_changes(labels, labels, offsets, changed)

    return work


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_of(work, times=5):
    return np.median([seconds(work) for _ in range(times)])


def federation(comm, opened, *overrides):
    """A run's parts, without a stop before its last round."""
    return Federation(comm, config.read(None, ["run.progress=off", "stop.rel_tol=0", *overrides]), opened)


def uneven(random, n_samples, n_clients):
    """The client of each sample."""
    sizes = random.multinomial(n_samples - n_clients, random.dirichlet(np.full(n_clients, 2.0))) + 1
    return np.repeat(np.arange(n_clients), sizes)


def large(comm, opened, dtype, repeats, rounds):
    """The paper's size."""
    square = np.random.default_rng(2).random((SQUARE, SQUARE)).astype(dtype)
    products = bare_products(opened.slab(range(P), np.dtype(dtype)), dtype)
    times = {name: [] for name in ("product", "arithmetic", *products, *MODES)}
    for _ in range(repeats):
        times["product"].append(median_of(lambda: square @ square))
        for name, orientations in products.items():
            times[name].append(min(median_of(work) for work in orientations))
        for name, overrides in MODES.items():
            parts = federation(
                comm, opened, f"run.dtype={dtype}", f"model.n_components={K}", f"stop.max_rounds={rounds}", *overrides
            )
            times[name] += runner.rounds(parts).seconds[1:]
            if name == "full round":
                times["arithmetic"].append(median_of(arithmetic(parts)))
    medians = {name: float(np.median(values)) for name, values in times.items()}
    rate = 2 * SQUARE**3 / medians["product"]
    alone, full = 4 * M * N * K / rate, medians["full round"]
    print(f"\n{dtype}: M = {M}, N = {N}, K = {K}, P = {P}, one worker; products with X by {parts.shard.products.name}")
    print(f"  rate of a {SQUARE} x {SQUARE} product {rate / 1e9:.1f} GFlop/s")
    for name, value in list(medians.items())[1:]:
        print(f"  {name:<20} {1e3 * value:7.1f} ms")
    print(f"  the two products at that rate / full round  {alone / full:.2f}   (at least {0.65 if dtype == 'float64' else 0.55})")
    print(f"  the two products at that rate / by BLAS     {alone / sum(medians[name] for name in products):.2f}")
    print(f"  beside arithmetic / full round              {1 - medians['arithmetic'] / full:.3f}   (at most 0.05)")
    print(f"  m = 10 / full round                         {medians['m = 10, PCC'] / full:.2f}   (at most 0.6)")
    print(f"  m = 10 PCP / full round                     {medians['m = 10, PCP'] / full:.2f}   (at most 0.2)")


def small(comm, folder, repeats):
    """The smallest size: what stands around the arithmetic."""
    digits = load_digits().data
    path = folder / "digits.h5"
    store.write(path, Dataset(digits), np.arange(len(digits)) % 10, "in turn")
    opened, rounds, own = store.ClientStore(path), [], []
    for _ in range(repeats):
        parts = federation(comm, opened, "model.n_components=10", "stop.max_rounds=500")
        rounds += runner.rounds(parts).seconds[1:]
        own.append(median_of(arithmetic(parts), 200))
    full, alone = 1e6 * np.median(rounds), 1e6 * np.median(own)
    print(f"\ndigits: M = {digits.shape[1]}, N = {len(digits)}, K = 10, P = 10, one worker")
    print(f"  full round {full:.0f}, arithmetic {alone:.0f}, beside it {full - alone:.0f} microseconds   (at most 200)")


def filled(comm, folder, rounds):
    """Sparse samples: a round against the number of values."""
    print("\nsparse: M = 5000, N = 20000, K = 20, P = 100, one worker")
    random = np.random.default_rng(3)
    for density in (0.0025, 0.005, 0.01, 0.02):
        samples = sparse.random_array((20_000, 5000), density=density, format="csr", rng=random)
        path = folder / f"sparse-{density}.h5"
        store.write(path, Dataset(samples), np.sort(random.integers(0, P, 20_000)), "uneven")
        parts = federation(comm, store.ClientStore(path), f"model.n_components={K}", f"stop.max_rounds={rounds}")
        value = np.median(runner.rounds(parts).seconds[1:])
        print(f"  {density:6.2%} of the entries {1e3 * value:7.1f} ms, {1e9 * value / samples.nnz:.1f} ns a value")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--rounds", type=int, default=12, help="rounds a repeat")
    options = options.parse_args()
    comm, random = communicator.connect(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name, threadpool_limits(1):
        folder = Path(name)
        path = folder / "store.h5"
        store.write(path, Dataset(random.random((N, M))), uneven(random, N, P), "uneven")
        for dtype in ("float64", "float32"):
            large(comm, store.ClientStore(path), dtype, options.repeats, options.rounds)
        small(comm, folder, options.repeats)
        filled(comm, folder, options.rounds)


main()
