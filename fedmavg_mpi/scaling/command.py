"""``fedmavg scaling strong | weak | fit | report``."""

import json
import os
import platform
import sys
from contextlib import contextmanager
from pathlib import Path

from fedmavg_mpi import config, machines, runner
from fedmavg_mpi.communicator import launched_size
from fedmavg_mpi.cores import usable_cores
from fedmavg_mpi.errors import DataError, LaunchError
from fedmavg_mpi.results import reason
from fedmavg_mpi.scaling import array, cost, pieces, projection
from fedmavg_mpi.scaling import problem as problems
from fedmavg_mpi.scaling import study as studies
from fedmavg_mpi.scaling import table as tables
from fedmavg_mpi.store import written_aside

MODEL_FILE, FITS_FILE, PIECES_FOLDER = "machine.toml", "fits.csv", "pieces"
PASSES = 3  # over the pieces, where there is no study to take them in turn with
BOUND = 0.25  # error of the model that is called out


def run_study(options):
    """Carry out a study and report it, or write its batch array.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``fedmavg scaling strong`` or ``weak``.

    Returns
    -------
    str
        What was found.

    Raises
    ------
    FedmavgError
        Bad arguments, or a run that fails.
    """
    refuse_launcher()
    if not options.slurm:
        studies.split_launcher(options.launcher)
    given = cost.read(options.machine_model) if options.machine_model else None
    machine = machines.read(options.slurm) if options.slurm else None
    cores = 0 if machine else len(usable_cores())
    ranks = studies.parse_ranks(options.ranks)
    study = studies.Study(options.kind, ranks, options.rounds, options.warm_up, options.repeats, cores)
    out = Path(options.out)
    script = array.script(study, out, machine, options.time, command_of(options)) if machine else None
    with writing(out):
        studies.prepare(study, out, options.config, options.set)
        if script:
            path = out / array.SCRIPT
            path.write_text(script)
            return (
                f"{path}\nsend it with sbatch {path}; when all of its elements are done: fedmavg scaling report {out} "
                "--machine-model FILE (made there by fedmavg scaling fit)"
            )
    settings, store = studies.settings_of(out, study.size(ranks[0]))
    if given is not None or (out / MODEL_FILE).exists() or not tables.is_modelled(settings):
        studies.carry_out(study, out, options.launcher, say)
        return report(out, given)

    like, folder = problems.of_settings(settings, store), out / PIECES_FOLDER

    def before(repeat):  # pieces and runs in turn, so that a drift of the machine meets both
        path = folder / f"{repeat}.json"
        if not path.exists():
            say(f"measuring this machine for the cost model, pass {repeat + 1} of {study.repeats}")
            found = measure(like, options.launcher, cores)
            with writing(out):
                folder.mkdir(exist_ok=True)
                with written_aside(path) as aside:
                    aside.write_text(json.dumps(found))

    studies.carry_out(study, out, options.launcher, say, before)
    passes = [read_pass(folder / f"{repeat}.json") for repeat in range(study.repeats)]
    with writing(out):
        keep(fitted(passes, like, cores), out)
    return report(out, given)


def fit(options):
    """Measure a machine, write its model.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``fedmavg scaling fit``.

    Returns
    -------
    str
    """
    refuse_launcher()
    studies.split_launcher(options.launcher)
    settings = runner.check(config.read(options.config, options.set))
    data, algorithm = settings.data, settings.algorithm
    like = problems.Problem(
        data.n_features,
        data.n_samples,
        settings.model.n_components,
        settings.partition.n_clients,
        q1=algorithm.q1,
        itemsize=int(settings.run.dtype[-2:]) // 8,
        method=settings.aggregation.method,
        n_labels=data.n_clusters,
    )
    path = Path(options.out)
    with writing(path):
        path.touch()
        cores = len(usable_cores())
        model = fitted([measure(like, options.launcher, cores) for _ in range(PASSES)], like, cores)
        path.write_text(model.to_toml())
    return f"{path}\n{errors_of_fit(model)}"


def report_again(options):
    """Report a study whose runs are there.

    Parameters
    ----------
    options : argparse.Namespace
        Of ``fedmavg scaling report``.
    """
    return report(Path(options.directory), cost.read(options.machine_model) if options.machine_model else None)


def measure(problem, launcher, cores):
    """One pass over the pieces of the cost model, for problems like this one."""
    return pieces.measure(lambda n_ranks, module: studies.launch(launcher, n_ranks, module), problem, cores)


def read_pass(path):
    """A pass over the pieces that is kept in a study's folder."""
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise DataError(f"{path}: not what fedmavg scaling has written; remove it, and the same command measures again") from None


def fitted(passes, problem, cores):
    """The cost model of this machine, for problems like this one, from passes over its pieces."""
    like = f"for problems like M = {problem.n_features}, K = {problem.n_components}, {8 * problem.itemsize} bits"
    return cost.from_pieces(
        pieces.together(passes), cores, f"measured on a {platform.machine()} machine with {cores} cores, {like}"
    )


def keep(model, directory):
    """Write the model that a study is compared with, and the pieces that it was fitted to, if it was."""
    (directory / MODEL_FILE).write_text(model.to_toml())
    if model.fits:
        fits = [{"piece": name, "seconds": seen, "fitted": said, "error": said / seen - 1} for name, seen, said in model.fits]
        tables.write_csv(directory / FITS_FILE, fits)
    else:
        (directory / FITS_FILE).unlink(missing_ok=True)  # of another


def report(directory, given):
    """Write a study's table and figures.

    Parameters
    ----------
    directory : Path
    given : CostModel or None
        The cost model; None: the one in the directory, if there is one.

    Returns
    -------
    str
        The report's text.
    """
    from fedmavg_mpi.scaling import figures

    study = studies.read(directory)
    model = given
    if given is None and (directory / MODEL_FILE).exists():
        model = cost.read(directory / MODEL_FILE)
    found = tables.points(study, directory, model)
    settings, store = studies.settings_of(directory, study.size(study.ranks[0]))
    with writing(directory):
        tables.write_csv(directory / "scaling.csv", tables.rows(study, found))
        tables.write_csv(directory / "ranks.csv", [rank for point in found for rank in point.ranks])
        figures.draw_study(study, found, [directory / f"scaling{kind}" for kind in (".png", ".pdf")])
        lines = [f"# {study.kind.capitalize()} scaling", "", tables.markdown(study, found), "", *in_words(study, found)]
        if found[0].terms is not None:
            if given is not None:
                keep(given, directory)
            of_round = problems.of_settings(settings, store, (study.warm_up + 1, study.warm_up + study.rounds))
            families = projection.families(model, of_round)
            figures.draw_projection(families, [directory / f"projection{kind}" for kind in (".png", ".pdf")])
            lines += ["", *projection_in_words(families, of_round)]
        text = "\n".join(lines) + "\n"
        (directory / "scaling.md").write_text(text)
    return (
        text
        + f"\nwritten to {directory}: scaling.md, scaling.csv, ranks.csv, scaling.png and .pdf"
        + (", projection.png and .pdf" if found[0].terms is not None else "")
    )


def in_words(study, found):
    """What the table says, and what its columns mean: list of lines."""
    base = found[0]
    cores = f"{study.cores} cores" if study.cores else "a core for each rank"
    lines = [
        f"Median rounds of {study.repeats} runs of {study.rounds} rounds after {study.warm_up} of warm-up, in brackets the runs' own medians. "
        f"Speed-up and efficiency are against {base.n_ranks} rank{'s' if base.n_ranks > 1 else ''}; ideal is the work spread without loss "
        f"over the cores that workers can use ({cores}; the server waits without one)."
    ]
    two = {point.n_ranks: point for point in found}
    if study.kind == "strong" and 2 in two and 3 in two:
        lines += ["", f"Two workers over one: {two[2].median / two[3].median:.2f} times as fast a round."]
    if study.cores and found[-1].n_workers > study.cores:
        over = found[-1].median / tables.ideal(study, base, found[-1].n_ranks)
        lines += ["", f"{found[-1].n_ranks} ranks on {study.cores} cores take {over:.2f} times the ideal."]
    balance = [f"{_balance(point):.2f} ({point.n_ranks} ranks)" for point in found if point.n_workers > 1]
    if balance:
        lines += ["", f"Slowest worker's own seconds (local and shared factor) over the mean worker's: {', '.join(balance)}."]
    errors = [point.model_error for point in found if point.terms is not None]
    if errors:
        worst = max(errors, key=abs)
        verdict = "within" if abs(worst) <= BOUND else "not within"
        lines += ["", f"The cost model's largest error is {worst:+.0%}, {verdict} {BOUND:.0%} of every point."]
    return lines


def _balance(point):
    phases = [point.phases[name] for name in ("local factor", "shared factor")]
    n, most = point.n_ranks, sum(over["max"] for over in phases)
    mean = sum(n * over["mean"] - over["server"] for over in phases) / (n - 1)
    return most / mean if mean > 0 else 1.0


def projection_in_words(families, problem):
    """Where what limits: list of lines."""
    samples = problem.n_samples / problem.n_clients
    lines = [
        f"## Projected to {projection.RANKS[-1]:,} ranks and {projection.CLIENTS[-1]:,} clients",
        "",
        f"By the cost model: M = {problem.n_features}, K = {problem.n_components}, {samples:g} samples a client, a core for each rank, and the "
        "messages as fast as they were measured (on one machine: through its memory; give a cluster's own with --machine-model).",
        "",
    ]
    return lines + [f"- {curve.describe()}" for curves in families.values() for curve in curves]


def errors_of_fit(model):
    """How well the model fits its own pieces, in a line."""
    errors = sorted(abs(said / seen - 1) for _, seen, said in model.fits)
    return f"{len(errors)} pieces, fitted within {errors[len(errors) // 2]:.0%} (median) and {errors[-1]:.0%} (worst)"


def command_of(options):
    """The command line that makes the same study."""
    words = ["fedmavg", "scaling", options.kind]
    for name in ("config", "ranks", "rounds", "repeats", "warm_up", "set", "slurm", "time", "out"):
        given = getattr(options, name)
        for value in given if isinstance(given, list) else [given] if given is not None else []:
            words += ["--" + name.replace("_", "-"), str(value)]
    return words


def refuse_launcher():
    """The command starts ranks itself.

    Raises
    ------
    LaunchError
    """
    size, name = launched_size({name: value for name, value in os.environ.items() if name != "SLURM_STEP_NUM_TASKS"})
    if size is not None:
        raise LaunchError(f"fedmavg scaling under a launcher of {size} ranks ({name}), expected none: it starts the ranks itself")


@contextmanager
def writing(path):
    """What the operating system refuses inside of the block is a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: can't be written ({reason(error)}); choose another --out") from None


def say(words):
    """Progress, on standard error."""
    print(f"fedmavg: {words}", file=sys.stderr, flush=True)
