"""What the cost model is fitted to: rounds of one process on made-up samples, by phase, and single messages.

``mpirun -n R python -m fedmavg_mpi.scaling.pieces ...`` measures; :func:`measure` starts it. No piece is a run of a study: rounds are of
one process, on fewer samples, and messages carry nothing of a round.
"""

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from fedmavg_mpi import config, runner, store
from fedmavg_mpi.clock import PHASES
from fedmavg_mpi.communicator import alone, connect
from fedmavg_mpi.datasets import Dataset
from fedmavg_mpi.scaling.cost import SERVER, WORKER
from fedmavg_mpi.scaling.problem import Problem, Share

BY_CLOCK = [phase for phase in (*WORKER, *SERVER) if phase in PHASES]
TIMED = (*BY_CLOCK, "bookkeeping")  # the last is the rest of a round
LARGEST_BYTES = 1 << 27  # of samples
WARM_UP, ROUNDS = 2, 6
MESSAGES_AT_ONCE, MESSAGE_PASSES = 40, 5
LEAST_SHARE = 0.01  # a difference of two times is taken to be at least this much of them


def measure(launch, problem, cores):
    """Measure the pieces for a problem like this one, here and now.

    Parameters
    ----------
    launch : callable(int, list of str)
        Starts a Python module with arguments on so many ranks, and waits for it.
    problem : Problem
        The study's smallest.
    cores : int

    Returns
    -------
    dict
        As JSON holds it, for :func:`together`.
    """
    module, out = "fedmavg_mpi.scaling.pieces", {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        text = json.dumps(dataclasses.asdict(problem))
        for condition, n_ranks in {"alone": 1, "busy": cores}.items():
            if n_ranks == 1 and condition == "busy":
                out["busy"] = out["alone"]
                continue
            launch(n_ranks, [module, "work", text, str(path)])
            out[condition] = json.loads(path.read_text())
        out["messages"] = []
        for n_ranks in sorted({2, 3, cores + 1, 2 * cores + 1, 4 * cores + 1}):
            launch(n_ranks, [module, "messages", text, str(path)])
            out["messages"] += json.loads(path.read_text())
    return out


def together(passes):
    """Several passes of :func:`measure` as one, by the median of each piece.

    Parameters
    ----------
    passes : list of dict

    Returns
    -------
    dict
        As :func:`fedmavg_mpi.scaling.cost.from_pieces` takes it.
    """
    out = {}
    for condition in ("alone", "busy"):
        out[condition] = []
        for same in zip(*(found[condition] for found in passes), strict=True):
            p, s, seconds = same[0]
            middle = {name: float(np.median([one[2][name] for one in same])) for name in seconds}
            out[condition].append((Problem(**p), Share(**s), middle))
    by_message = zip(*(found["messages"] for found in passes), strict=True)
    out["messages"] = [(*same[0][:3], float(np.median([one[3] for one in same]))) for same in by_message]
    return out


def made_up(problem):
    """Problems around this one for a single process: fewer samples, other K, M, clients and draws."""
    m, k = problem.n_features, problem.n_components
    largest = max(4 * k, LARGEST_BYTES // (m * problem.itemsize))
    n = int(min(max(4 * k, problem.n_samples // 2), largest))
    clients = max(2, min(problem.n_clients // 2, n // 4))
    base = dataclasses.replace(
        problem, n_samples=n, n_clients=clients, drawn=0, method="reduce", participation="pcc", global_step=True
    )
    some = max(1, clients // 5)

    def like(part=1, **changes):
        changed = dataclasses.replace(base, **changes)
        samples = max(2 * changed.n_components, n // part)
        return dataclasses.replace(changed, n_samples=samples, n_clients=min(changed.n_clients, samples))

    half_k, half_m = max(1, k // 2), max(2, m // 2)
    return [
        like(),
        like(2),
        like(2, n_clients=4 * clients),
        like(4, n_components=2 * k),
        like(2, n_components=half_k),
        like(8),
        like(8, n_clients=max(2, clients // 8)),
        like(1, n_features=half_m, n_clients=max(2, clients // 2)),
        like(4, n_features=half_m, n_components=2 * k, n_clients=max(2, clients // 4)),
        like(2, drawn=some),
        like(1, drawn=max(1, some // 4)),
        like(2, q1=2 * problem.q1, q2=8),
        like(4, q1=1, q2=2),
        Problem(8, 64, 2, 2, q1=problem.q1, itemsize=problem.itemsize),
        Problem(8, 4000, 2, 2000, q1=problem.q1, itemsize=problem.itemsize),
        Problem(8, 40000, 2, 20000, drawn=10, q1=problem.q1, itemsize=problem.itemsize, participation="pcp", evaluates=0.0),
    ]


def settings_of(problem, rounds):
    """The configuration of rounds on such a problem."""
    return config.read(
        None,
        [
            f"model.n_components={problem.n_components}",
            f"algorithm.q1={problem.q1}",
            f"algorithm.q2={problem.q2}",
            "algorithm.q2_schedule=constant",
            f"algorithm.clients_per_round={problem.drawn}",
            f"algorithm.participation={problem.participation}",
            f"aggregation.method={problem.method}",
            f"run.dtype=float{8 * problem.itemsize}",
            f"run.evaluate_every={int(problem.evaluates > 0)}",
            "run.progress=off",
            f"stop.max_rounds={rounds}",
            "stop.rel_tol=0",
        ],
    )


def rounds_of_one(comm, problem, folder):
    """The seconds by phase of rounds of one process, while all ranks of ``comm`` do the same.

    Returns
    -------
    Share
    ndarray (rounds x names)
        By :data:`TIMED`.
    """
    random = np.random.default_rng(0)
    path = Path(folder) / "samples.h5"
    samples = random.random((problem.n_samples, problem.n_features))
    sizes = np.diff(np.linspace(0, problem.n_samples, problem.n_clients + 1).astype(int))
    names = [f"class {i}" for i in range(problem.n_labels)]
    labels = random.integers(0, problem.n_labels, problem.n_samples) if names else None
    store.write(
        path, Dataset(samples, labels=labels, label_names=names or None), np.repeat(np.arange(problem.n_clients), sizes), "even"
    )
    federation = runner.Federation(alone(), settings_of(problem, WARM_UP + ROUNDS), store.ClientStore(path))
    with comm.together():
        pass  # all begin at the same time
    seconds = np.array(runner.rounds(federation).seconds[WARM_UP:])
    by_phase = np.array(federation.clock.rounds[1 + WARM_UP :])[:, [PHASES.index(phase) for phase in BY_CLOCK]]
    beside = np.maximum(seconds - by_phase.sum(axis=1), LEAST_SHARE * seconds)
    share = share_of(problem, federation.algorithm.sampler, federation.placement.sizes)
    return share, np.column_stack([by_phase, beside])


def share_of(problem, sampler, sizes):
    """What the one process has had to do in the rounds that counted, on the average."""
    draws = [sampler.draw(s) for s in range(1 + WARM_UP, 1 + WARM_UP + ROUNDS)]
    updating, drawn = ([getattr(draw, name) for draw in draws] for name in ("updating", "clients"))
    return Share(
        float(np.mean([sizes[clients].sum() for clients in updating])),
        float(np.mean([clients.size for clients in updating])),
        float(np.mean([sizes[clients].sum() for clients in drawn])),
        float(np.mean([clients.size for clients in drawn])),
    )


def work(comm, problem):
    """The pieces of work: list of (Problem, Share, seconds by phase)."""
    out = []
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        rounds_of_one(comm, Problem(8, 64, 2, 2), folder)  # compiles
        for piece in made_up(problem):
            share, found = slowest(comm, piece, folder)
            if piece.evaluates == 0:
                del found["evaluation"]
            out.append((piece, share, found))
        for piece, _, summed in out[1:3]:  # few samples and many clients
            piece = dataclasses.replace(piece, method="gather")
            share, found = slowest(comm, piece, folder)
            more = {
                "client by client": found["local factor"] - summed["local factor"],
                "copies": found["average"] + found["shared factor"] - summed["average"] - summed["shared factor"],
            }
            out.append((piece, share, {name: max(value, LEAST_SHARE * sum(found.values())) for name, value in more.items()}))
    return [(dataclasses.asdict(p), dataclasses.asdict(s), seconds) for p, s, seconds in out]


def slowest(comm, piece, folder):
    """A Share, and the seconds by name of the slowest rank in a round, as each phase of a round ends with a wait for the slowest."""
    share, seconds = rounds_of_one(comm, piece, folder)
    by_rank = comm.gather(seconds[None], np.ones(comm.size, np.int64), "control")
    longest = by_rank.max(axis=0) if comm.is_server else seconds
    return share, dict(zip(TIMED, np.median(longest, axis=0).tolist(), strict=True))


def messages(comm, problem):
    """The pieces of communication, a reduce and a broadcast in turn: list of (ranks, bytes up, bytes down, seconds)."""
    large, small = problem.model_bytes, 64
    out = []
    for up, down in ((small, small), (large, small), (small, large), (large // 4 or small, large // 4 or small)):
        seconds = []
        buffers = [np.zeros(max(1, nbytes // 8)) for nbytes in (up, down)]
        for _ in range(MESSAGE_PASSES):
            with comm.together():
                pass
            start = time.perf_counter()
            for _ in range(MESSAGES_AT_ONCE):
                comm.reduce(buffers[0], "control", comm.everyone)
                comm.broadcast(buffers[1], "control", comm.everyone)
            seconds.append((time.perf_counter() - start) / MESSAGES_AT_ONCE)
        out.append((comm.size, buffers[0].nbytes, buffers[1].nbytes, float(np.median(seconds))))
    return out


def main(arguments):
    """Measure what the arguments say: work or messages, the problem, where to write."""
    what, text, path = arguments
    comm = connect()
    found = {"work": work, "messages": messages}[what](comm, Problem(**json.loads(text)))
    if comm.is_server:
        Path(path).write_text(json.dumps(found))
    return comm.leave(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
