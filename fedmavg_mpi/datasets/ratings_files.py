"""Ratings as text, a line a rating: the columns are found, the cells read, and the first line at fault is named.

A block of plain numbers is read by numpy at once; any other (ids that are words, quotes, other spellings of numbers) line by line, with
the same result.
"""

import csv
import io
import math
import re
from dataclasses import dataclass

import numpy as np

from fedmavg_mpi.datasets.files import quote
from fedmavg_mpi.datasets.tables import number_of
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.text import fits_a_line

COLUMNS = {
    "user": ("userid", "user"),
    "item": ("movieid", "itemid", "movie", "item"),
    "rating": ("rating", "score"),
    "timestamp": ("timestamp",),
}
INTEGER = re.compile(r"[+-]?[0-9]+")
LONGEST_ID = 1000  # characters: beyond it, something else has slipped into the column
_BLOCK = 1 << 24
_WORDS = {",": "commas", "\t": "tabs", "::": "'::'"}


@dataclass(frozen=True)
class Layout:
    """How a line is cut: positions of user, item, rating and timestamp (or None) among ``width`` cells."""

    delimiter: str
    columns: tuple
    width: int
    has_header: bool


@dataclass
class Ratings:
    """Ratings in the file's order, ids as codes: indices into ``users`` and ``items``, which are in order of appearance."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    time: np.ndarray | None
    users: list
    items: list
    layout: Layout


class _Fault(Exception):
    """What is wrong with a line."""


class _Ids(dict):
    """Codes of ids by their text; an unknown one is checked and gets the next code."""

    def __init__(self, kind):
        self.kind = kind

    def __missing__(self, text):
        what = "is empty" if not text else None if fits_a_line(text) else f"holds a control character: {quote(text)}"
        if what:
            raise _Fault(f"the {self.kind} id {what}; expected a number or text, so mend or drop the line")
        short = len(text) <= LONGEST_ID  # Python refuses to read a number of thousands of digits
        if INTEGER.fullmatch(text) and (len(text.lstrip("+-0")) > 19 or short and not -(2**63) <= int(text) < 2**63):
            raise _Fault(f"the {self.kind} id {quote(text)} overflows 64 bits; renumber the ids, or put a letter before each")
        if not short:
            raise _Fault(
                f"the {self.kind} id {quote(text)} has {len(text)} characters, expected at most {LONGEST_ID}; shorten the ids"
            )
        self[text] = len(self)
        return self[text]

    def of_numbers(self, numbers):
        """Codes of an array of whole numbers."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return np.array([self[text] for text in map(str, distinct.tolist())], np.int32)[inverse]


def read_ratings(stream, where, limits):
    """Read a table of ratings.

    Parameters
    ----------
    stream : binary file
        Cells apart by commas or tabs with a header that names the columns, or by tabs or ``::`` without one. Empty lines are skipped.
    where : str
        The file's name in messages.
    limits : tuple of float or None
        Lowest and highest rating allowed.

    Returns
    -------
    Ratings

    Raises
    ------
    DataError
        No ratings, a missing column, or a line that can't be used.
    """
    first = stream.readline().removeprefix(b"\xef\xbb\xbf")
    if not first.strip():
        raise DataError(f"{where}: {'line 1 is' if first else 'the file is'} empty, expected ratings; fetch or write it again")
    try:
        layout = _find_layout(first)
    except _Fault as fault:
        raise DataError(f"{where}: line 1: {fault}") from None
    ids = _Ids("user"), _Ids("item")
    number, rest = (2, b"") if layout.has_header else (1, first)
    plain, parts = _plain(layout), []
    while block := rest + stream.read(_BLOCK) + stream.readline():
        rest = b""
        block += b"" if block.endswith(b"\n") else b"\n"
        columns = _read_numbers(block, layout, plain, ids, limits)
        parts.append(columns or _read_lines(block, layout, ids, limits, where, number))
        number += block.count(b"\n")
    if not ids[0]:
        raise DataError(f"{where}: a header only, expected a line for each rating; fetch or write it again")
    parts = [part for part in parts if part]
    columns = [np.concatenate([part.pop(0) for part in parts]) for _ in range(4 if layout.columns[3] is not None else 3)]
    return Ratings(*columns[:3], columns[3] if len(columns) > 3 else None, *map(list, ids), layout)


def _find_layout(line):
    text = _decoded(line.rstrip(b"\r\n"), fallback=b"\t" in line or b"::" in line)
    delimiter = next((mark for mark in ("\t", "::") if mark in text), ",")
    cells = _cells(text, delimiter)
    names = [re.sub("[ _]", "", cell.strip().lower()) for cell in cells]
    found = {kind: next((name for name in known if name in names), None) for kind, known in COLUMNS.items()}
    numbers = [number_of(cell) is not None for cell in cells[:3]]
    if delimiter != "," and len(cells) > 2 and (numbers[2] or numbers[0] and numbers[1]):
        return Layout(delimiter, (0, 1, 2, 3 if len(cells) > 3 else None), len(cells), False)
    listed = ", ".join(map(quote, cells[:20])) + (", ..." if len(cells) > 20 else "")
    missing = [f"{kind} ({', '.join(COLUMNS[kind])})" for kind, name in found.items() if not name and kind != "timestamp"]
    if missing:
        raise _Fault(
            f"no column {' and no column '.join(missing)} among {listed}; expected the names of the columns, separated by commas or tabs"
        )
    twice = [name for name in found.values() if name and names.count(name) > 1]
    if twice:
        raise _Fault(f"several columns called {twice[0]} among {listed}, expected one; rename or drop the others")
    return Layout(delimiter, tuple(names.index(name) if name else None for name in found.values()), len(cells), True)


def _decoded(line, fallback=False):
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        if fallback:
            return line.decode("latin-1")
        raise _Fault(f"byte {line[error.start]:#04x} isn't text; expected UTF-8, so convert the file") from None


def _cells(text, delimiter):
    if '"' not in text or delimiter == "::":
        return text.split(delimiter)
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise _Fault(f"broken quotes, {quote(str(error))}; close each quote on its own line") from None


def _read_lines(block, layout, ids, limits, where, number):
    """User codes, item codes, ratings and timestamps of a block, line by line from line ``number`` on."""
    rows = []
    for n, line in enumerate(block.split(b"\n"), number):
        try:
            if line.strip():
                rows.append(_read_line(line, layout, ids, limits))
        except _Fault as fault:
            raise DataError(f"{where}: line {n}: {fault}") from None
    kinds = np.int32, np.int32, float, None  # None: integers where all are
    return [np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=False)]


def _read_line(line, layout, ids, limits):
    text = _decoded(line.rstrip(b"\r"), fallback=not layout.has_header)
    cells = _cells(text, layout.delimiter) if layout.has_header else text.split(layout.delimiter)
    if len(cells) != layout.width:
        found = f"{len(cells)} cell{'s' if len(cells) > 1 else ''} (separated by {_WORDS[layout.delimiter]})"
        raise _Fault(f"{found}, expected {layout.width} as in line 1; mend the line, or line 1")
    user, item, rating, time = layout.columns
    value = _number("rating", cells[rating])
    if limits and not limits[0] <= value <= limits[1]:
        stated = f"{limits[0]:g} to {limits[1]:g}"
        raise _Fault(
            f"the rating {value:g} is outside the stated range {stated}; mend it, or data.rating_minimum and rating_maximum"
        )
    seconds = None if time is None else _number("timestamp", cells[time])
    if seconds is not None and abs(seconds) < 2**62 and re.fullmatch(r"[+-]?[0-9]{1,30}", cells[time].strip()):
        seconds = int(cells[time])  # without the rounding of a float
    return ids[0][cells[user].strip()], ids[1][cells[item].strip()], value, seconds


def _number(kind, cell):
    value = number_of(cell)
    if value is None or not math.isfinite(value):
        what = "isn't a number" if value is None else "is infinite" if math.isinf(value) else "is missing"
        raise _Fault(f"the {kind} {quote(cell.strip())} {what}; expected a finite number, so mend or drop the line")
    return value


def _plain(layout):
    """Matches a block of lines in which nothing needs a second look: whole numbers as Python writes them, ratings without exponent."""
    mark = r"," if layout.delimiter == "," else r"\t"
    cells = [f'[^{mark}\\n"\\x80-\\xff]*+'] * layout.width
    for kind, j in enumerate(layout.columns):
        if j is not None:
            cells[j] = r"-?[0-9]{1,30}(?:\.[0-9]{0,30})?+" if kind == 2 else r"(?:0|[1-9][0-9]{0,17})"
    return re.compile(f"(?:{mark.join(cells)}\\r?\\n)++".encode())


def _read_numbers(block, layout, plain, ids, limits):
    """What :func:`_read_lines` gives, or None where a line or a cell isn't plain."""
    if layout.delimiter == "::":
        block = b"" if b"\t" in block else block.replace(b"::", b"\t")
    if not plain.fullmatch(block):
        return None
    used = [j for j in layout.columns if j is not None]
    mark = "," if layout.delimiter == "," else "\t"
    text = io.StringIO(block.decode("latin-1"))
    kinds = "i8,i8,f8,i8" if len(used) == 4 else "i8,i8,f8"
    rows = np.loadtxt(text, kinds, comments=None, delimiter=mark, usecols=used, ndmin=1)
    user, item, rating, *time = (rows[name] for name in rows.dtype.names)
    if limits and (rating.min() < limits[0] or rating.max() > limits[1]):
        return None
    return [ids[0].of_numbers(user), ids[1].of_numbers(item), rating.copy(), *(column.copy() for column in time)]
