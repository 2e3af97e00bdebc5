"""Run under mpirun in a network namespace of its own: what the ledger counts, and what crossed the loopback interface.

Prints both in bytes, for the rounds of a run with ``gather`` (all of whose traffic goes from point to point) and for each operation alone.
"""

import sys
import time

import numpy as np

from fedmavg_mpi import communicator, config, runner, store


def crossed():
    """Bytes that the loopback interface has received."""
    with open("/proc/self/net/dev") as table:
        return next(int(line.split()[1]) for line in table if line.strip().startswith("lo:"))


def measure(comm, name, work):
    """Print ``name counted crossed``: bytes received by all ranks, and by the interface."""
    at_rest(comm)
    before, counted = crossed(), sum(comm.ledger.received.values())
    at_rest(comm)
    work()
    counted = np.array([sum(comm.ledger.received.values()) - counted], np.int64)
    at_rest(comm)
    after = crossed()
    comm.reduce(counted, "control", comm.everyone)
    if comm.is_server:
        print(name, counted[0], after - before, flush=True)


def at_rest(comm):
    """Wait until nothing is under way."""
    comm.broadcast_text("rest")
    comm.reduce(np.zeros(1), "control", comm.everyone)
    time.sleep(0.3)


def main(path):
    comm = communicator.connect()
    overrides = [
        "aggregation.method=gather",
        "algorithm.clients_per_round=5",
        "model.n_components=8",
        "stop.max_rounds=6",
        "run.progress=off",
    ]
    federation = runner.Federation(comm, config.read(None, overrides), store.ClientStore(path))
    measure(comm, "rounds", lambda: runner.rounds(federation))
    block = np.ones((2, 50_000))
    measure(comm, "gather", lambda: [comm.gather(block, np.full(comm.size, 2), "model_up") for _ in range(5)])
    if comm.size == 2:
        measure(comm, "broadcast", lambda: [comm.broadcast(block, "model_down", comm.everyone) for _ in range(5)])
        measure(comm, "allreduce", lambda: [comm.allreduce(block, "model_up", comm.everyone) for _ in range(5)])


main(sys.argv[1])
