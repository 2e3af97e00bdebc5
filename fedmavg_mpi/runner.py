"""One run from configuration to run file: the store, the round loop, the end."""

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from fedmavg_mpi import __version__, config, datasets, outcome, results
from fedmavg_mpi import partition as partitions
from fedmavg_mpi import store as stores
from fedmavg_mpi.algorithms import ALGORITHMS
from fedmavg_mpi.checkpoint import Checkpoints, first_difference
from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.federation import Federation
from fedmavg_mpi.signals import StopSignals


def run(comm, read_config, out, force=False, resume=False):
    """Carry out a run; all ranks call this together.

    Parameters
    ----------
    comm : Communicator
    read_config : callable() -> Config
        Called at the server only; the others get its result.
    out : path-like
        The run directory.
    force : bool
        Replace a finished run, or one that has stopped at a checkpoint.
    resume : bool
        Go on from the newest checkpoint in ``out``; start where there is none; do nothing where the run is finished.

    Returns
    -------
    bool
        Whether the run is finished, and not stopped at a checkpoint.

    Raises
    ------
    FedmavgError
        Anything that the user can mend; nothing is left behind, unless a checkpoint was there before or has been reached.
    """
    directory = None
    with comm.together():
        text = config.to_toml(check(read_config())) if comm.is_server else None
    settings = config.parse(comm.broadcast_text(text))
    with threadpool_limits(settings.run.threads):
        try:
            with comm.together():
                directory = results.OutputDirectory(out, force, resume) if comm.is_server else None
            with comm.together():
                finished = comm.is_server and resume and is_finished(directory, settings)
            if comm.broadcast_text("finished" if finished else ""):
                return True
            with client_store(comm, settings, out) as store:
                with comm.together():
                    settings = as_found(settings, store)
                federation = Federation(comm, settings, store)
            with comm.uncounted():
                here = comm.broadcast_text(str(Path(out).resolve()))  # a relative path is the server's
                mark = comm.broadcast_text(identity(settings, federation.application.fingerprint) if comm.is_server else None)
            checkpoints = Checkpoints(comm, here, federation.placement, mark)
            if resume:
                go_on(federation, checkpoints)
            diverging = np.errstate(over="ignore", invalid="ignore")  # the stop reason says it once
            with diverging, StopSignals(comm.is_server) as stop:
                rounds(federation, checkpoints, stop)
                if federation.history.interrupted:
                    return False
                written = outcome.collect(federation)
                with comm.together():
                    if comm.is_server:
                        directory.write(config.to_toml(settings), *written)
                        checkpoints.remove()
            return True
        finally:
            if directory is not None:
                directory.close()


# What may differ where a run goes on: it changes neither the rounds nor what is logged of them.
FREE = {"data": ("path",), "stop": ("max_rounds",), "run": ("checkpoint_every", "progress", "save_local_factors")}


def identity(settings, fingerprint):
    """What a run must have in common with a checkpoint to go on from it, a line a fact.

    Parameters
    ----------
    settings : Config
    fingerprint : str
        Of the data, which count rather than their path.
    """
    lines = [f"fedmavg_mpi {__version__}"]
    for section, keys in config.as_dict(settings).items():
        lines += [f"{section}.{key} = {value!r}" for key, value in keys.items() if key not in FREE.get(section, ())]
    lines.append(f"data {fingerprint}")  # last: other settings may be why the data differ
    return "\n".join(lines)


def is_finished(directory, settings):
    """Whether a run directory holds this very run, finished.

    Raises
    ------
    ConfigError
        It holds another finished run.
    """
    if not directory.finished:
        return False
    theirs = config.read(directory.path / results.CONFIG_FILE)
    ours = filled(settings, config.as_dict(theirs))
    facts = [[*identity(one, "").splitlines(), f"stop.max_rounds = {one.stop.max_rounds}"] for one in (theirs, ours)]
    if differing := first_difference(*facts):
        there, here = differing
        raise ConfigError(
            f"{directory.path}: holds a finished run with {there} where this one has {here}; choose another --out, or --force"
        )
    return True


def go_on(federation, checkpoints):
    """Take the newest checkpoint, if there is one."""
    state = checkpoints.latest()
    if state is None:
        return
    federation.restore(*state)
    done, allowed = federation.history.n_rounds, federation.settings.stop.max_rounds
    with federation.comm.uncounted(), federation.comm.together():
        if federation.comm.is_server:
            if done > allowed:
                raise ConfigError(f"stop.max_rounds = {allowed} for a run that has done {done}, expected at least as many")
            print(f"fedmavg: going on after round {done}", file=sys.stderr, flush=True)


def check(settings):
    """The configuration with what the algorithm fixes, if its sections fit each other.

    Raises
    ------
    ConfigError
    """
    data, model, algorithm = settings.data, settings.model, settings.algorithm
    ratings = model.kind == "ratings"
    chosen = ALGORITHMS[algorithm.name]
    misfits = {
        "model.rho = 0 with algorithm.penalty_continuation, expected above 0: the penalty grows from there": (
            algorithm.penalty_continuation and model.rho == 0
        ),
        "run.evaluate_every = 0 with algorithm.penalty_continuation, expected at least 1: stages follow the objective": (
            algorithm.penalty_continuation and settings.run.evaluate_every == 0
        ),
        "algorithm.penalty_continuation is for model.kind = 'clustering'; leave it out": algorithm.penalty_continuation
        and ratings,
        f"data.path is empty, expected the path of the {data.source} data; set it with --set data.path=...": (
            data.source != "synthetic" and not data.path
        ),
        f"data.source = {data.source!r} with model.kind = 'ratings', expected 'movielens' or a store of ratings": (
            ratings and data.source not in ("movielens", "store")
        ),
        "data.source = 'movielens' with model.kind = 'clustering', expected model.kind = 'ratings'": (
            data.source == "movielens" and not ratings
        ),
        f"data.normalize = {data.normalize!r} with model.kind = 'ratings', expected 'none': ratings are fitted as they are": (
            ratings and data.normalize != "none"
        ),
        f"partition.scheme = {settings.partition.scheme!r} with model.kind = 'ratings', expected 'by_user': each user is a client": (
            ratings and settings.partition.scheme != "by_user"
        ),
        "partition.scheme = 'by_user' is for ratings; choose iid, clustered or label_skew": (
            settings.partition.scheme == "by_user" and not ratings
        ),
        "algorithm.upload = 'rows' is for model.kind = 'ratings', expected 'dense': each copy of W changes everywhere": (
            algorithm.upload == "rows" and not ratings
        ),
        "aggregation.weighting = 'rows' is for model.kind = 'ratings', expected 'clients'": (
            settings.aggregation.weighting == "rows" and not ratings
        ),
        "algorithm.upload = 'rows' with aggregation.method = 'allreduce', expected 'reduce' or 'gather'": (
            algorithm.upload == "rows" and settings.aggregation.method == "allreduce"
        ),
        f"algorithm.name = {algorithm.name!r} is not for model.kind = {model.kind!r}, expected one of "
        f"{', '.join(name for name, found in ALGORITHMS.items() if model.kind in found.kinds)}": model.kind not in chosen.kinds,
        f"algorithm.upload_dtype = {algorithm.upload_dtype!r} is for model.kind = 'clustering', expected 'same'": (
            algorithm.upload_dtype != "same" and ratings
        ),
        f"algorithm.upload_dtype = {algorithm.upload_dtype!r} with aggregation.method = {settings.aggregation.method!r}, expected "
        "'gather': what each client sends is rounded": algorithm.upload_dtype != "same"
        and settings.aggregation.method != "gather",
        f"algorithm.upload_dtype = {algorithm.upload_dtype!r} with algorithm.name = {algorithm.name!r}, expected 'same': no copy of W is sent": (
            algorithm.upload_dtype != "same" and not chosen.takes_start
        ),
        f"model.init = {model.init!r} with model.kind = 'ratings', expected 'random'": model.init != "random" and ratings,
        f"model.init = {model.init!r} with algorithm.name = {algorithm.name!r}, expected 'random': only fedmavg, fedavg and "
        "gradient_sharing take another start": (model.init != "random" and not chosen.takes_start),
        f"data.rating_minimum = {data.rating_minimum} and data.rating_maximum = {data.rating_maximum}, expected the first to be lower": (
            data.rating_minimum > data.rating_maximum
        ),
    }
    for words, broken in misfits.items():
        if broken:
            raise ConfigError(words)
    return chosen.resolve(settings)


def as_found(settings, store):
    """The configuration as the store makes it true: how it was made, how many users there are, and how they rate.

    Raises
    ------
    ConfigError
        It states otherwise of the data.
    """
    scheme = store.partition.split(",")[0]
    scheme = scheme if scheme in partitions.SCHEMES else settings.partition.scheme
    found = {"partition": {"scheme": scheme, "n_clients": store.sizes.size}, "data": {"normalize": store.normalize}}
    if store.rating_range is not None and settings.model.kind == "ratings":
        found["data"] |= dict(zip(("rating_minimum", "rating_maximum"), store.rating_range, strict=True))
    settings = filled(settings, found)
    for key, value in found["data"].items():
        stated = getattr(settings.data, key)
        if stated != value:
            raise ConfigError(
                f"data.{key} = {stated!r} where {store.path} was made with {value!r}; leave it out, or make the store again"
            )
    return settings


def filled(settings, found):
    """The configuration with what it leaves to the data taken from ``found``, a dict of sections as of ``config.as_dict``."""
    data, keys = settings.data, {"data": [], "partition": []}
    if data.source == "store":
        keys["partition"] += ["scheme", "n_clients"]
        keys["data"] += ["normalize"] * (data.normalize == "none")
    if settings.model.kind == "ratings":
        keys["partition"] += ["n_clients"]
        keys["data"] += ["rating_minimum", "rating_maximum"] * (data.rating_minimum == data.rating_maximum == 0)
    for section, names in keys.items():
        settings = config.replace(settings, section, **{name: found[section][name] for name in names if name in found[section]})
    return settings


def prepare(settings, path):
    """Load the data, cut them into clients and write the client store.

    Parameters
    ----------
    settings : Config
    path : path-like
    """
    cut = settings.partition
    with threadpool_limits(1):  # the same groups whatever the number of threads
        dataset = datasets.load(settings, settings.run.seed)
        client_of_sample = partitions.partition(dataset, cut, settings.run.seed)
    alpha = f", alpha = {cut.alpha:g}" if cut.scheme == "label_skew" else ""
    made = f"{cut.scheme}, P = {client_of_sample.max() + 1}{alpha}"
    stores.write(path, dataset, client_of_sample, made, settings.data.normalize)


@contextmanager
def client_store(comm, settings, out):
    """The store that the run reads: the user's own, or one that the server makes in the run directory and removes at the end."""
    own = settings.data.source == "store"
    path = config.find_data(settings.data.path) if own else Path(out) / f".clients-{os.getpid()}.h5"
    try:
        with comm.together():
            if comm.is_server and not own:
                prepare(settings, path)
        # the server may have found the path through an environment that workers don't have
        with comm.uncounted():  # equal runs in other places have equal ledgers
            path = Path(comm.broadcast_text(str(path.resolve())))
        with comm.together():
            store = stores.ClientStore(path)
        yield store
    finally:
        if comm.is_server and not own:
            path.unlink(missing_ok=True)


# What the server orders between rounds, in the message that settles how to go on.
ON, KEEP, KEEP_AND_LEAVE = range(3)


def rounds(federation, checkpoints=None, stop=None):
    """The round loop: every rank goes through it in step.

    A round's objective needs W'X at the new W, which is what the next round starts from; so between two rounds W is shared, looked at, and
    the server decides how to go on. A checkpoint holds the state right after a round.

    Parameters
    ----------
    federation : Federation
    checkpoints : Checkpoints, optional
        Where to keep the state every ``run.checkpoint_every`` rounds, and where a signal stops the run.
    stop : StopSignals, optional

    Returns
    -------
    History
        Complete at the server.
    """
    comm, settings, algorithm, clock = federation.comm, federation.settings, federation.algorithm, federation.clock
    history, s = federation.history, federation.history.n_rounds
    progress = tqdm(
        initial=s,
        total=settings.stop.max_rounds,
        unit="round",
        disable=not comm.is_server or settings.run.progress == "off",
        mininterval=0.2 if sys.stderr.isatty() else 5,
    )
    start, order, asked = time.perf_counter(), ON, False
    while True:
        if order != ON and algorithm.resumable:
            checkpoints.write(s, *federation.state())
        if order == KEEP_AND_LEAVE:
            history.interrupted = True
            break
        last = s >= settings.stop.max_rounds
        if not last:
            updating = algorithm.sampler.draw(s + 1).updating
            with clock("broadcast"):
                algorithm.share_model(updating, "model_down")
            with clock("local factor"):
                federation.shard.form_products(algorithm.clients_here(updating))
        evaluation = None
        if last or (settings.run.evaluate_every and s % settings.run.evaluate_every == 0):
            with clock("evaluation"):
                evaluation = federation.evaluate()
        with clock("control"):
            decision = federation.decide(s, evaluation)
            if evaluation and not progress.disable:
                progress.set_postfix(history.latest(), refresh=False)
            if stop and stop.received and not asked and not comm.is_server:
                comm.ask_server_to_stop()
                asked = True
            goes_on, order = federation.settle(decision, next_order(federation, s + 1, stop))
        clock.end_round()
        history.add_traffic(comm.ledger.as_array())
        if not goes_on:
            break
        s += 1
        draw, steps, ledger = algorithm.run_round(s)
        now = time.perf_counter()
        history.add_round(draw, steps, federation.rho, ledger, now - start)
        start = now
        progress.update()
    progress.close()
    return history


def next_order(federation, s, stop):
    """What the server orders for the end of round ``s``."""
    if stop is None or not federation.comm.is_server:
        return ON
    if stop.received or federation.comm.is_asked_to_stop():
        return KEEP_AND_LEAVE
    every = federation.settings.run.checkpoint_every
    return KEEP if every and s % every == 0 else ON
