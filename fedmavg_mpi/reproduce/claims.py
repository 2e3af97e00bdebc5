"""What the figures say of the paper's claims, and the report that is put together from them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedmavg_mpi import __version__, results
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.store import written_aside

SHOWN, NOT_SHOWN = "shown", "not shown"
MARGIN = 1e-3  # of a value: by how much one must be below another to count as better
KEYS = {"name", "title", "setting", "quick", "times", "findings"}  # of what a figure leaves


def better(value, other):
    """Whether a value is below another by more than chance may do."""
    return value < other * (1 - MARGIN)


@dataclass(frozen=True)
class Finding:
    """One claim, and whether the numbers bear it out.

    Attributes
    ----------
    claim : str
    shown : bool or None
        None where the text only describes.
    numbers : str
    """

    claim: str
    shown: bool | None
    numbers: str


@dataclass(frozen=True)
class Times:
    """How long a figure's runs took.

    Attributes
    ----------
    runs : int
    seconds : float
        Of all their rounds.
    last_runs : int
        How many of them the last call that had any to do made.
    last_seconds : float
        From its first run's start to its last one's end.
    """

    runs: int
    seconds: float
    last_runs: int
    last_seconds: float


def leave(out, name, title, setting, quick, findings, times):
    """Leave what a figure found beside it, as ``NAME.json``.

    Parameters
    ----------
    out : path-like
    name, title, setting : str
        Of the figure, and on what it was made.
    quick : bool
    findings : list of Finding
    times : Times
    """
    path = Path(out) / f"{name}.json"
    took = asdict(times)
    previous = _read(path)
    if not times.last_runs and previous is not None and previous["quick"] == quick:
        took |= {key: previous["times"][key] for key in ("last_runs", "last_seconds")}
    found = {"name": name, "title": title, "setting": setting, "quick": quick, "times": took}
    found["findings"] = [asdict(finding) for finding in findings]
    with written_aside(path) as aside:
        aside.write_text(json.dumps(found, indent=2) + "\n")


def write_report(out, names):
    """Write ``report.md`` from what the figures in a folder have left.

    Parameters
    ----------
    out : path-like
    names : iterable of str
        Figures in the report's order; those that have left nothing are passed over.

    Returns
    -------
    Path
    """
    found = [made for name in names if (made := _read(Path(out) / f"{name}.json")) is not None]
    lines = [
        "# The paper's figures, made here",
        "",
        "Wang, Suwandi and Chang, *Demystifying Model Averaging for Communication-Efficient Federated Matrix Factorization*, ICASSP "
        f"2021; fedmavg_mpi {__version__}. Each claim is judged by the numbers of these runs alone.",
    ]
    for made in found:
        lines += ["", *_section(made)]
    path = Path(out) / "report.md"
    with written_aside(path) as aside:
        aside.write_text("\n".join(lines) + "\n")
    return path


def _section(made):
    claims = [finding for finding in made["findings"] if finding["shown"] is not None]
    remarks = [finding for finding in made["findings"] if finding["shown"] is None]
    lines = [f"## {made['name']}: {made['title']}", "", f"![{made['title']}]({made['name']}.png)", "", made["setting"]]
    if made["quick"]:
        lines[-1] += " Made with `--quick`."
    if claims:
        lines += ["", "| claim | here | numbers |", "|---|---|---|"]
        for row in claims:
            claim, numbers = (row[part].replace("|", "\\|") for part in ("claim", "numbers"))
            lines.append(f"| {claim} | {SHOWN if row['shown'] else f'**{NOT_SHOWN}**'} | {numbers} |")
    for remark in remarks:
        lines += ["", f"{remark['claim']}: {remark['numbers']}"]
    times = Times(**made["times"])
    last = f" (the last {times.last_runs} were made in {_duration(times.last_seconds)})" if times.last_runs else ""
    lines += [
        "",
        f"{times.runs} runs, {_duration(times.seconds)} of rounds{last}. Numbers: [{made['name']}.csv]({made['name']}.csv).",
    ]
    return lines


def _duration(seconds):
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _read(path):
    """What a figure has left; None where it hasn't, or where it can't be read and is made again by the next call."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: can't be read ({results.reason(error)}); choose another --out") from None
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.keys() == KEYS else None
