"""One run from configuration to run file: set-up, the round loop, and what is left at the end."""

import hashlib
import platform
import resource
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from fedmavg_mpi import aggregation, config, datasets, metrics, results
from fedmavg_mpi import partition as partitions
from fedmavg_mpi import store as stores
from fedmavg_mpi.algorithms import ALGORITHMS
from fedmavg_mpi.clock import PHASES, Clock
from fedmavg_mpi.communicator import mpi_library
from fedmavg_mpi.errors import ConfigError, DataError
from fedmavg_mpi.ledger import ProtocolLedger
from fedmavg_mpi.models.clustering import ClusteringModel, ClusteringShard, DataTotals, client_totals
from fedmavg_mpi.participation import Sampler
from fedmavg_mpi.placement import Placement
from fedmavg_mpi.schedule import PenaltyContinuation, StopRule

LARGEST_PENALTY = 100  # of penalty continuation, in units of |X|^2 / N
LIBRARIES = ("numpy", "scipy", "numba", "h5py", "mpi4py", "scikit-learn")


def run(comm, read_config, out, force=False):
    """Carry out a run; all ranks call this together.

    Parameters
    ----------
    comm : Communicator
    read_config : callable() -> Config
        Called at the server only; the others get its result.
    out : path-like
        The run directory.
    force : bool
        Replace a finished run.

    Raises
    ------
    FedmavgError
        Anything that the user can mend; nothing is left behind.
    """
    directory = None
    with comm.together():
        text = config.to_toml(check(read_config())) if comm.is_server else None
    settings = config.parse(comm.broadcast_text(text))
    with threadpool_limits(settings.run.threads):
        try:
            with comm.together():
                directory = results.OutputDirectory(out, force) if comm.is_server else None
            with client_store(comm, settings, out) as store:
                federation = Federation(comm, settings, store)
            history = rounds(federation)
            outcome = collect(federation, history)
            with comm.together():
                if comm.is_server:
                    directory.write(config.to_toml(settings), *outcome)
        except BaseException:
            if directory is not None:
                directory.discard()
            raise


def check(settings):
    """The configuration, if its sections fit each other.

    Raises
    ------
    ConfigError
    """
    if settings.algorithm.penalty_continuation:
        if settings.model.rho == 0:
            raise ConfigError("model.rho = 0 with algorithm.penalty_continuation, expected above 0: the penalty grows from there")
        if settings.run.evaluate_every == 0:
            raise ConfigError(
                "run.evaluate_every = 0 with algorithm.penalty_continuation, expected at least 1: stages follow the objective"
            )
    if settings.data.source != "synthetic" and not settings.data.path:
        raise ConfigError(
            f"data.path is empty, expected the path of the {settings.data.source} data; set it with --set data.path=..."
        )
    return settings


def prepare(settings, path):
    """Load the data, cut them into clients and write the client store.

    Parameters
    ----------
    settings : Config
    path : path-like
    """
    dataset = datasets.load(settings, settings.run.seed)
    client_of_sample = partitions.partition(dataset, settings.partition, settings.run.seed)
    cut = settings.partition
    stores.write(
        path,
        dataset,
        client_of_sample,
        f"{cut.scheme}, P = {cut.n_clients}" + (f", alpha = {cut.alpha:g}" if cut.scheme == "label_skew" else ""),
    )


@contextmanager
def client_store(comm, settings, out):
    """The store that the run reads: the user's own, or one that the server makes in the run directory and removes at the end."""
    own = settings.data.source == "store"
    path = config.find_data(settings.data.path) if own else Path(out) / f".clients-{settings.run.seed}.h5"
    try:
        with comm.together():
            if comm.is_server and not own:
                with threadpool_limits(1):  # the same groups whatever the number of threads
                    prepare(settings, path)
        # the server may have found the path through an environment that workers don't have
        path = Path(comm.broadcast_text(str(path.resolve())))
        with comm.together():
            store = stores.ClientStore(path)
            if store.n_samples < settings.model.n_components:
                raise DataError(
                    f"{store.n_samples} samples for {settings.model.n_components} components, expected at least as many; "
                    "lower model.n_components"
                )
        yield store
    finally:
        if comm.is_server and not own:
            path.unlink(missing_ok=True)


class Federation:
    """The parts of one run on one rank, put together.

    Parameters
    ----------
    comm : Communicator
    settings : Config
    store : ClientStore

    Attributes
    ----------
    algorithm, model, shard, aggregation, placement, clock
    labels : ndarray of int32 (n,) or None
        Classes of this rank's samples.
    """

    def __init__(self, comm, settings, store):
        self.comm, self.settings = comm, settings
        self.placement = Placement(store.sizes, comm.size)
        self.label_names = store.label_names
        self.n_samples, self.n_features = store.n_samples, store.n_features
        clients = self.placement.clients_of(comm.rank)
        dtype = np.dtype(settings.run.dtype)
        offsets = store.offsets[clients.start : clients.stop + 1] - store.offsets[clients.start]
        with comm.together():
            samples = store.slab(clients, dtype)
            self.labels = store.labels(clients)
            self.of_row = store.of_row() if comm.is_server else None
        self.totals = self._exchange_totals(client_totals(samples, offsets))
        self.aggregation = aggregation.METHODS[settings.aggregation.method](comm, self.placement)
        self.model = ClusteringModel(settings.model, self.totals)
        self.shard = ClusteringShard(
            samples, offsets, clients.start, self.model, settings.run.seed, self.aggregation.client_by_client
        )
        self.clock = Clock()
        sampler = Sampler(store.sizes, settings.algorithm.clients_per_round, settings.algorithm.participation, settings.run.seed)
        w = self.model.start(settings.run.seed, dtype)
        self.algorithm = ALGORITHMS[settings.algorithm.name](
            settings.algorithm, comm, self.placement, sampler, self.aggregation, self.model, self.shard, self.clock, w
        )
        self.algorithm.setup_ledger.uplink(3 * store.sizes.size, 8)
        self.stage_clusters = self.shard.assignments()

    def _exchange_totals(self, by_client):
        """What all need to know of the pooled data: three scalars a client up, their sums down."""
        rows = self.comm.gather(by_client, np.diff(self.placement.cut), "control")
        totals = np.empty(3)
        if self.comm.is_server:
            totals[:] = *aggregation.in_order_sum(rows[:, :2]), rows[:, 2].max()
        self.comm.broadcast(totals, "control", self.comm.everyone)
        return DataTotals(self.n_samples, self.n_features, *totals.tolist())

    def evaluate(self):
        """Objective terms, changed clusters and metrics of the present factors.

        Returns
        -------
        sums : ndarray (4,)
            As :meth:`ClusteringModel.objective` takes them, and the number of samples whose cluster has changed in this penalty stage.
        contingency : ndarray of int64 (K x classes) or None
            Both meaningful at the server only.
        """
        everyone = self.algorithm.sampler.all_clients
        self.algorithm.share_model(everyone, "evaluation")
        clusters = self.shard.assignments()
        changed = (clusters != self.stage_clusters).astype(np.float64)
        changed = np.array([changed[a:b].sum() for a, b in zip(self.shard.offsets[:-1], self.shard.offsets[1:], strict=True)])
        terms = np.column_stack([self.shard.objective_terms(), changed])
        sums = self.aggregation.sum_over_clients(terms, everyone, "evaluation")
        table = None
        if self.label_names is not None:
            table = metrics.contingency(clusters, self.labels, self.model.n_components, len(self.label_names))
            self.comm.reduce(table, "evaluation", self.comm.everyone)
        return sums, table

    def settle(self, decision):
        """Bring the server's decision to all ranks; False where the run ends."""
        message = np.zeros(3)
        if self.comm.is_server:
            message[:] = decision.stop_reason is None, decision.rho, self.model.local_curvature(self.algorithm.w, decision.rho)
        self.comm.broadcast(message, "control", self.comm.everyone)
        goes_on, rho, local_curvature = message.tolist()
        if rho != self.algorithm.rho:
            self.stage_clusters = self.shard.assignments()
        self.algorithm.settle(rho, local_curvature)
        return bool(goes_on)


class History:
    """What happened, round by round and evaluation by evaluation; kept at the server."""

    def __init__(self):
        self.stop_reason = None
        self.draws, self.seconds = [], []
        self.per_round = {name: [] for name in ("q2", "rho", *vars(ProtocolLedger()))}
        self.per_evaluation = {name: [] for name in ("round", "objective", "accuracy", "changed")}
        self.mpi = []
        self.table = None

    def add_round(self, draw, steps, rho, ledger, seconds):
        """Enter one round."""
        self.draws.append(draw.draws)
        self.seconds.append(seconds)
        for name, value in {"q2": steps, "rho": rho, **vars(ledger)}.items():
            self.per_round[name].append(value)

    def add_evaluation(self, s, objective, n_changed, table):
        """Enter the state after round ``s``."""
        self.table = table
        accuracy = np.nan if table is None else metrics.accuracy(table)
        for name, value in {"round": s, "objective": objective, "accuracy": accuracy, "changed": n_changed}.items():
            self.per_evaluation[name].append(value)


def rounds(federation):
    """The round loop: every rank goes through it in step.

    A round's objective needs W'X at the new W, which is what the next round starts from; so between two rounds W is shared, looked at, and
    the server decides how to go on.

    Returns
    -------
    History
        Complete at the server.
    """
    comm, settings, algorithm = federation.comm, federation.settings, federation.algorithm
    history = History()
    if settings.algorithm.penalty_continuation:
        rule = PenaltyContinuation(settings.stop, LARGEST_PENALTY)
    else:
        rule = StopRule(settings.stop)
    rho, s = settings.model.rho, 0
    progress = tqdm(
        total=settings.stop.max_rounds,
        unit="round",
        disable=not comm.is_server or settings.run.progress == "off",
        mininterval=0.2 if sys.stderr.isatty() else 5,
        file=sys.stderr,
    )
    start = time.perf_counter()
    while True:
        last = s == settings.stop.max_rounds
        evaluated = last or (settings.run.evaluate_every > 0 and s % settings.run.evaluate_every == 0)
        if not last:
            updating = algorithm.sampler.draw(s + 1).updating
            with federation.clock("broadcast"):
                algorithm.share_model(updating, "model_down")
            with federation.clock("local factor"):
                federation.shard.form_products(algorithm.clients_here(updating))
        sums = objective = None
        if evaluated:
            with federation.clock("evaluation"):
                sums, table = federation.evaluate()
        with federation.clock("control"):
            decision = None
            if comm.is_server:
                if evaluated:
                    objective = lambda rho, sums=sums: federation.model.objective(sums, rho)  # noqa: E731
                    history.add_evaluation(s, objective(rho), int(sums[3]), table)
                    progress.set_postfix(_latest(history), refresh=False)
                decision = rule.decide(s, rho, objective, sums[3] if evaluated else None)
                rho, history.stop_reason = decision.rho, decision.stop_reason
            goes_on = federation.settle(decision)
        federation.clock.end_round()
        history.mpi.append(comm.ledger.as_array())
        if not goes_on:
            break
        s += 1
        draw, steps, ledger = algorithm.run_round(s)
        now = time.perf_counter()
        history.add_round(draw, steps, rho, ledger, now - start)
        start = now
        progress.update()
    progress.close()
    return history


def _latest(history):
    last = {name: values[-1] for name, values in history.per_evaluation.items()}
    shown = {"objective": f"{last['objective']:.6f}"}
    if not np.isnan(last["accuracy"]):
        shown["accuracy"] = f"{last['accuracy']:.4f}"
    return shown


def collect(federation, history):
    """Everything that the run file holds, gathered at the server.

    Returns
    -------
    attributes, datasets : dict
        As :meth:`results.OutputDirectory.write` takes them; both None on other ranks.
    """
    comm, settings, placement, shard = federation.comm, federation.settings, federation.placement, federation.shard
    bytes_by_kind = comm.ledger.as_array()  # what follows only describes the run
    one_each = np.ones(comm.size, np.int64)
    samples_by_rank = np.diff(np.concatenate([[0], np.cumsum(placement.sizes)])[placement.cut])
    blocks = zip(shard.offsets[:-1], shard.offsets[1:], strict=True)
    digests = np.frombuffer(b"".join(results.sha256(shard.h[:, a:b].T).digest() for a, b in blocks), np.uint8).reshape(-1, 32)

    def gathered(part, rows=one_each):
        return comm.gather(np.ascontiguousarray(part), rows, "control")

    clusters = gathered(shard.assignments(), samples_by_rank)
    digests = gathered(digests, np.diff(placement.cut))
    by_rank = gathered(bytes_by_kind[None])
    phase_seconds = np.array(federation.clock.rounds)  # (rounds + 1) x phases
    by_round = gathered(phase_seconds[None])
    peak = gathered(np.array([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
    h = gathered(shard.h.T, samples_by_rank) if settings.run.save_local_factors else None
    if not comm.is_server:
        return None, None

    order = federation.of_row
    labels = np.empty(order.size, np.int32)
    labels[order] = clusters
    of_sample = np.empty(order.size, np.int64)
    of_sample[order] = np.repeat(np.arange(placement.sizes.size), placement.sizes)
    w = np.ascontiguousarray(federation.algorithm.w.T)
    drawn = np.array(history.draws, np.int64).reshape(len(history.draws), -1)
    data = {
        **{f"rounds/{name}": np.array(values) for name, values in history.per_round.items()},
        "rounds/drawn": drawn,
        "rounds/seconds": np.array(history.seconds),
        "rounds/phase_seconds_max": by_round.max(axis=0)[1:],
        **{f"evaluations/{name}": np.array(values) for name, values in history.per_evaluation.items()},
        "mpi/sent": by_rank[:, 0],
        "mpi/received": by_rank[:, 1],
        "mpi/server_by_round": np.diff(np.array(history.mpi), axis=0),
        "ranks/phase_seconds": by_round.sum(axis=1),
        "ranks/peak_memory_bytes": peak,
        "clients/of_sample": of_sample,
        "factors/W": w,
        "labels": labels,
    }
    if h is not None:
        data["factors/H"] = np.empty((h.shape[1], h.shape[0]), h.dtype)
        data["factors/H"][:, order] = h.T
    table = history.table
    attributes = {
        "rounds": len(history.draws),
        "stop_reason": history.stop_reason,
        "objective": history.per_evaluation["objective"][-1],
        "accuracy": history.per_evaluation["accuracy"][-1],
        "nmi": np.nan if table is None else metrics.normalized_mutual_information(table),
        "ari": np.nan if table is None else metrics.adjusted_rand_index(table),
        **{f"setup_{name}": value for name, value in vars(federation.algorithm.setup_ledger).items()},
        "ranks": comm.size,
        "clients": placement.sizes.size,
        "samples": federation.n_samples,
        "features": federation.n_features,
        "seed": settings.run.seed,
        "dtype": settings.run.dtype,
        "w_sha256": results.sha256(w).hexdigest(),
        "h_sha256": hashlib.sha256(digests.tobytes()).hexdigest(),
        "phases": ", ".join(PHASES),
        "kinds": ", ".join(federation.comm.ledger.sent),
        "host": socket.gethostname(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "mpi_library": mpi_library(),
        "git_commit": git_commit(),
        **{f"version_{name}": version(name) for name in LIBRARIES},
    }
    return attributes, data


def git_commit():
    """The commit of a checkout that the package runs from; empty outside one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
