"""The command line: ``fedmavg run | summary | report | reproduce | recommend | predict | data | jobs | scaling | doctor``."""

import argparse
import itertools
import os
import re
import sys
import time
import traceback
from pathlib import Path

from fedmavg_mpi import __version__, config, reproduce, signals
from fedmavg_mpi.communicator import launched_rank, launched_size
from fedmavg_mpi.cores import usable_cores
from fedmavg_mpi.errors import ConfigError, FedmavgError, LaunchError
from fedmavg_mpi.text import fits_a_line, one_line

DIVERGED = 1
STOPPED = 75  # EX_TEMPFAIL: by a signal; the same command with --resume goes on


def main(arguments=None):
    """Run a command.

    Returns
    -------
    int
        Exit status: 0 done, 2 bad configuration, data or launch, 75 stopped by a signal and can go on, 1 anything else.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a title that the terminal's encoding lacks is no reason to stop half-way
            stream.reconfigure(errors="backslashreplace")
    options = parser().parse_args(arguments)
    if not options.on_all_ranks and launched_rank(os.environ) > 0:
        return 0  # one process answers
    try:
        with signals.leaving():
            return options.command(options) or 0
    except FedmavgError as error:
        _complain(str(error))
        return 2
    except (KeyboardInterrupt, SystemExit) as error:
        return _say_interrupted(error)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        _complain(f"{error.filename!r}: {error.strerror}; choose another place")
        return 2


def _say_interrupted(error):
    """Say that a signal ended the command; returns the exit status."""
    if launched_rank(os.environ) == 0:
        print(str(error) or "fedmavg: interrupted", file=sys.stderr, flush=True)
    return STOPPED if isinstance(error, SystemExit) else 1


def _complain(words):
    """An error as one line."""
    print("fedmavg: error:", one_line(words), file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line, on one rank."""

    def error(self, message):
        """Leave with status 2."""
        if launched_rank(os.environ) == 0:
            _complain(f"{message}; see {self.prog} --help")
        sys.exit(2)


def path(text):
    """A path given as an argument."""
    if not text or not fits_a_line(text):
        raise argparse.ArgumentTypeError(f"{ascii(text)}, expected a path without control characters, in UTF-8")
    return text


def parser():
    """The argument parser."""
    top = Parser(prog="fedmavg", description="Federated matrix factorization by model averaging over MPI.")
    top.add_argument("--version", action="version", version=f"fedmavg_mpi {__version__}")
    top.set_defaults(on_all_ranks=False)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="carry out a run, alone or under mpirun")
    run.add_argument("config", metavar="CONFIG.toml", type=path)
    _add_settings(run)
    run.add_argument("--out", metavar="DIR", type=path, help="the run directory (default: runs/NAME-TIME)")
    run.add_argument("--force", action="store_true", help="replace a finished or stopped run in DIR")
    run.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in DIR; start where there is none")
    run.set_defaults(command=_run, on_all_ranks=True)

    summary = commands.add_parser("summary", help="what a run came to")
    summary.add_argument("directory", metavar="DIR", type=path)
    summary.add_argument("--json", action="store_true", help="as one JSON object")
    summary.set_defaults(command=_summary)

    report = commands.add_parser("report", help="draw runs against rounds and against communication")
    report.add_argument("directories", metavar="DIR", type=path, nargs="+")
    report.add_argument(
        "--out", metavar="FILE", type=path, default="report.png", help="a .png, .pdf or .svg file (default: report.png)"
    )
    report.set_defaults(command=_report)

    recommend = commands.add_parser("recommend", help="the items that a user would rate highest")
    recommend.add_argument("directory", metavar="DIR", type=path)
    recommend.add_argument("--user", required=True, metavar="U", help="the user's own id")
    recommend.add_argument("-n", type=_count, default=10, help="how many (default: 10)")
    recommend.set_defaults(command=_recommend)

    predict = commands.add_parser("predict", help="the rating that a user would give to an item")
    predict.add_argument("directory", metavar="DIR", type=path)
    predict.add_argument("--user", required=True, metavar="U", help="the user's own id")
    predict.add_argument("--item", required=True, metavar="I", help="the item's own id")
    predict.set_defaults(command=_predict)

    data = commands.add_parser("data", help="client stores").add_subparsers(required=True, metavar="COMMAND")
    prepare = data.add_parser("prepare", help="load data, cut them into clients and write a store")
    prepare.add_argument("source", metavar="NAME", help="synthetic, movielens, expression or matrix")
    prepare.add_argument("--path", type=path, help="file or folder of the data (movielens: downloaded without it)")
    prepare.add_argument("--labels", type=path, help="label table or vector")
    prepare.add_argument(
        "--config", metavar="CONFIG.toml", type=path, help="start from this configuration's [data] and [partition]"
    )
    _add_settings(prepare)
    prepare.add_argument("--out", metavar="STORE", type=path, required=True, help="the store to write")
    prepare.add_argument("--force", action="store_true", help="replace an existing file")
    prepare.set_defaults(command=_data_prepare)
    inspect = data.add_parser("inspect", help="what is in a store")
    inspect.add_argument("store", metavar="STORE", type=path)
    inspect.set_defaults(command=_data_inspect)

    _add_jobs(commands.add_parser("jobs", help="batch jobs for SLURM"))
    figures = commands.add_parser("reproduce", help="carry out the paper's experiments and draw its figures")
    figures.add_argument("figure", choices=(*reproduce.NAMES, "all"), help="which figure, or all of them")
    figures.add_argument("--quick", action="store_true", help="one start a curve, and a smaller map: minutes in all")
    figures.add_argument("--out", metavar="DIR", type=path, default="figures", help="where everything goes (default: figures)")
    figures.add_argument("--jobs", metavar="N", type=_count, help="runs at a time (default: a run a core)")
    figures.add_argument("--data", metavar="DIR", type=path, help="folder of the real data (default: $FEDMAVG_DATA)")
    figures.set_defaults(command=_reproduce)

    _add_scaling(commands.add_parser("scaling", help="scaling studies and the cost model"))

    doctor = commands.add_parser("doctor", help="check the installation; under mpirun, the launch too")
    doctor.set_defaults(command=_doctor, on_all_ranks=True)
    return top


def _add_jobs(jobs):
    actions = jobs.add_subparsers(required=True, metavar="COMMAND")
    for name, words in {"render": "print a batch script", "submit": "send it to sbatch"}.items():
        action = actions.add_parser(name, help=words)
        action.add_argument(
            "--machine", metavar="M", type=path, required=True, help="jobs/machines/M.toml, or the path of such a file"
        )
        action.add_argument("--job", metavar="CONFIG.toml", type=path, required=True, help="the run's configuration")
        action.add_argument("--name", help="the job's name (default: the configuration's)")
        action.add_argument("--nodes", type=_count, help="default: as many as the tasks need")
        action.add_argument("--ntasks", type=_count, help="ranks (default: a node's cores on each node)")
        action.add_argument("--time", help="limit, as in 90, 01:30:00 or 2-12:00:00 (default: the machine's)")
        action.add_argument("--array", metavar="SEEDS", default="", help="one run a seed, as in 0-9")
        action.add_argument(
            "--sweep",
            metavar="SECTION.KEY=A,B,...",
            action="append",
            default=[],
            help="one run a value; given twice, the product",
        )
        action.add_argument("--at-once", metavar="N", type=_count, default=0, help="most runs of an array at the same time")
        _add_settings(action)
        action.add_argument(
            "--out",
            metavar="DIR",
            type=path,
            help="run directory, or the folder of an array's (default: runs/NAME-JOBID)",
        )
        action.set_defaults(command=_jobs_render if name == "render" else _jobs_submit)
    status = actions.add_parser("status", help="jobs in the queue, and what the finished ones came to")
    status.add_argument("ids", metavar="JOBID", nargs="*", help="default: all of yours that the queue remembers")
    status.set_defaults(command=_jobs_status)


def _add_scaling(scaling):
    actions = scaling.add_subparsers(required=True, metavar="COMMAND")
    launcher, data = "mpirun -n {ranks}", "the run's configuration (default: the paper's synthetic data set)"
    for name, words in {"strong": "the same problem on more ranks", "weak": "samples and clients grow with the workers"}.items():
        action = actions.add_parser(name, help=words)
        action.add_argument("--config", metavar="CONFIG.toml", type=path, help=data)
        _add_settings(action)
        action.add_argument(
            "--ranks", default="1,2,3,5,9", help="as in 1,2,3,5,9: 1 is one process, R the server and R - 1 workers"
        )
        action.add_argument("--rounds", type=_count, default=30, help="rounds that are timed in a run (default: 30)")
        action.add_argument("--warm-up", type=_count, default=5, help="rounds before them that aren't (default: 5)")
        action.add_argument("--repeats", type=_count, default=3, help="runs of each number of ranks, in turn (default: 3)")
        action.add_argument("--out", metavar="DIR", type=path, required=True, help="the study's directory")
        action.add_argument("--launcher", default=launcher, help=f"what starts the ranks (default: {launcher})")
        action.add_argument(
            "--machine-model", metavar="FILE", type=path, help="the cost model's machine (default: this one, measured first)"
        )
        action.add_argument("--slurm", metavar="M", type=path, help="write the batch array for machine M instead of running")
        action.add_argument("--time", help="limit of a run in the array (default: the machine's)")
        action.set_defaults(command=_scaling_study, kind=name)
    fit = actions.add_parser("fit", help="measure this machine for the cost model")
    fit.add_argument("--config", metavar="CONFIG.toml", type=path, help=data)
    _add_settings(fit)
    fit.add_argument("--launcher", default=launcher, help=f"what starts the ranks (default: {launcher})")
    fit.add_argument("--out", metavar="FILE", type=path, required=True, help="the model to write, a .toml file")
    fit.set_defaults(command=_scaling_fit)
    report = actions.add_parser("report", help="table and figures of a study whose runs are done")
    report.add_argument("directory", metavar="DIR", type=path)
    report.add_argument("--machine-model", metavar="FILE", type=path, help="another machine for the cost model")
    report.set_defaults(command=_scaling_report)


def _count(text):
    if not re.fullmatch("0{0,99}[1-9][0-9]{0,17}", text):
        raise argparse.ArgumentTypeError(f"{text[:30]!r}, expected a whole number, at least 1")
    return int(text)


def _add_settings(command):
    command.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="override a configuration key")


def _run(options):
    stem = Path(options.config).stem
    if options.resume and (options.force or not options.out):
        raise ConfigError("--resume needs --out DIR, the directory of the run to go on with, and no --force")

    def work(comm):
        from fedmavg_mpi import results, runner

        out = options.out or comm.broadcast_text(_new_directory(stem) if comm.is_server else None)
        finished = runner.run(comm, lambda: config.read(options.config, options.set), out, options.force, options.resume)
        if not finished:
            if comm.is_server:
                print(f"fedmavg: stopped; go on with --out {out} --resume", file=sys.stderr, flush=True)
            return STOPPED
        diverged = ""
        if comm.is_server:
            summary = results.summarize(out)
            print(results.table(summary))
            print(f"run directory     {out}", flush=True)
            if summary["objective"] is None:
                diverged = f"{summary['stop_reason']} after {summary['rounds']} rounds"
                advice = "try a larger algorithm.curvature_factor_w or a lower algorithm.q2"
                print(f"fedmavg: warning: {diverged}: the factors are of no use; {advice}", file=sys.stderr, flush=True)
        return DIVERGED if comm.broadcast_text(diverged) else 0

    return _on_all_ranks(work)


def _doctor(options):
    def work(comm):
        from fedmavg_mpi import doctor

        return 0 if doctor.examine(comm) else 2

    return _on_all_ranks(work)


def _on_all_ranks(work):
    """Call ``work(comm)`` on every rank, so that no failure leaves another rank waiting."""
    from fedmavg_mpi import communicator

    try:
        comm = communicator.connect()
    except FedmavgError:
        if launched_rank(os.environ) == 0:
            raise
        return 2
    try:
        status = work(comm)
        if comm.size > 1:
            signals.ignore()  # the ranks end together, and what they have done is done
        return comm.leave(status)
    except (FedmavgError, communicator.FailedElsewhereError) as error:
        # errors are shared before they are raised: every rank leaves
        if isinstance(error, FedmavgError):
            _complain(str(error))
        return comm.leave(2)
    except BrokenPipeError:
        raise  # the results are printed last, by the server
    except BaseException as error:
        by_signal = signals.behind(error)
        if not by_signal:
            traceback.print_exc()
        elif not comm.is_server:
            time.sleep(signals.WORKERS_PATIENCE)
        if by_signal:
            _say_interrupted(by_signal)
        status = STOPPED if by_signal else 1  # before the rounds nothing is lost: the same command starts again
        sys.stderr.flush()
        if comm.size > 1:
            comm.abort(status)
        return status


def _new_directory(stem):
    """A run directory that no other run has, even if it starts in the same second."""
    base = Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    candidates = (base.with_name(f"{base.name}-{i}") if i else base for i in itertools.count())
    return str(next(candidate for candidate in candidates if not candidate.exists()))


def _summary(options):
    from fedmavg_mpi import results

    summary = results.summarize(options.directory)
    print(results.as_json(summary) if options.json else results.table(summary))


def _report(options):
    from fedmavg_mpi.report import plots

    print(plots.draw_runs(options.directories, options.out))


def _recommend(options):
    from fedmavg_mpi.predictions import Predictor

    for item, title, rating in Predictor(options.directory).recommend(options.user, options.n):
        print(f"{rating:.2f}  {item}  {title}".rstrip())


def _predict(options):
    from fedmavg_mpi.predictions import Predictor

    print(f"{Predictor(options.directory).predict(options.user, options.item):.4f}")


def _reproduce(options):
    ranks, _ = launched_size(os.environ)
    if ranks is not None and ranks > 1:
        raise LaunchError(
            f"{ranks} ranks, expected one process: fedmavg reproduce starts its runs itself; leave the launcher out"
        )
    from fedmavg_mpi.reproduce import figures

    if options.data is not None:
        os.environ["FEDMAVG_DATA"] = options.data
    names = reproduce.NAMES if options.figure == "all" else [options.figure]
    try:
        made = figures.reproduce(names, options.out, options.quick, options.jobs or len(usable_cores()))
    except (KeyboardInterrupt, SystemExit):
        print("fedmavg: stopped; the same command goes on with what is missing", file=sys.stderr)
        return STOPPED
    print("\n".join(map(str, made)))


def _data_prepare(options):
    from fedmavg_mpi import runner, store
    from fedmavg_mpi.errors import DataError

    given = [f"data.source={options.source}"]
    given += [f"data.{name}={value}" for name in ("path", "labels") if (value := getattr(options, name)) is not None]
    if options.source == "movielens":
        given += ["model.kind=ratings", "partition.scheme=by_user"]
    settings = config.read(options.config, [*given, *options.set])
    if settings.data.source == "store":
        raise ConfigError("data.source = 'store' is a store already; give a source to prepare one from")
    out = Path(options.out)
    if not out.parent.is_dir():
        what = "not a" if out.parent.exists() else "no such"
        raise DataError(f"{out.parent}: {what} directory; make it first, or choose another --out")
    if out.is_dir() or (out.exists() and not options.force):
        raise DataError(f"{out}: exists; choose another --out{'' if out.is_dir() else ', or --force to replace it'}")
    if settings.data.source == "movielens" and not settings.data.path:
        from fedmavg_mpi.datasets import movielens

        runner.check(config.replace(settings, "data", path="downloaded"))  # before anything is fetched
        settings = config.replace(settings, "data", path=str(movielens.fetch(out.parent)))
    settings = runner.check(settings)
    runner.prepare(settings, options.out)
    print(store.describe(options.out))


def _jobs_render(options):
    from fedmavg_mpi import jobs

    sys.stdout.write(jobs.render(options))


def _jobs_submit(options):
    from fedmavg_mpi import jobs

    print(jobs.submit(options))


def _jobs_status(options):
    from fedmavg_mpi import jobs

    print(jobs.status(options.ids))


def _scaling_study(options):
    from fedmavg_mpi.scaling import command

    print(command.run_study(options))


def _scaling_fit(options):
    from fedmavg_mpi.scaling import command

    print(command.fit(options))


def _scaling_report(options):
    from fedmavg_mpi.scaling import command

    print(command.report_again(options))


def _data_inspect(options):
    from fedmavg_mpi import store

    print(store.describe(options.store))


if __name__ == "__main__":
    sys.exit(main())
