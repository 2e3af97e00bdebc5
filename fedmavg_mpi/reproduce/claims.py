"""What the figures say of the paper's claims, and the report that is put together from them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedmavg_mpi import __version__, results
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.store import written_aside

SHOWN, NOT_SHOWN = "shown", "not shown"


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


def leave(out, name, title, setting, quick, findings, n_runs, seconds, elapsed):
    """Leave what a figure found beside it, as ``NAME.json``.

    Parameters
    ----------
    out : path-like
    name, title, setting : str
        Of the figure, and on what it was made.
    quick : bool
    findings : list of Finding
    n_runs : int
    seconds : float
        That the runs' rounds took in all.
    elapsed : float
        From the first run's start to the last one's end; 0 where nothing had to be run, and then the time of last time stands.
    """
    path = Path(out) / f"{name}.json"
    previous = _read(path)
    if not elapsed and previous is not None and previous["quick"] == quick:
        elapsed = previous["elapsed"]
    found = {
        "name": name,
        "title": title,
        "setting": setting,
        "quick": quick,
        "runs": n_runs,
        "seconds": seconds,
        "elapsed": elapsed,
        "findings": [asdict(finding) for finding in findings],
    }
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
        lines[-1] += " Made with `--quick`: smaller or shorter than the paper's."
    if claims:
        lines += ["", "| claim | here | numbers |", "|---|---|---|"]
        for row in claims:
            claim, numbers = (row[part].replace("|", "\\|") for part in ("claim", "numbers"))
            lines.append(f"| {claim} | {SHOWN if row['shown'] else f'**{NOT_SHOWN}**'} | {numbers} |")
    for remark in remarks:
        lines += ["", f"{remark['claim']}: {remark['numbers']}"]
    elapsed = f"; they were done in {_duration(made['elapsed'])}" if made["elapsed"] else ""
    lines += [
        "",
        f"{made['runs']} runs, {_duration(made['seconds'])} of rounds{elapsed}. Numbers: [{made['name']}.csv]({made['name']}.csv).",
    ]
    return lines


def _duration(seconds):
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _read(path):
    """What a figure has left; None where it hasn't, or where it can't be read and is made again by the next call."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: can't be read ({results.reason(error)}); choose another --out") from None
    except ValueError:
        return None
