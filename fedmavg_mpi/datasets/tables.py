"""Delimited text, plain or gzip, read line by line; each error says in which file, line and cell."""

import csv
import re
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import numpy as np

from fedmavg_mpi.datasets.files import open_bytes, quote
from fedmavg_mpi.errors import DataError

MISSING = {"", "na", "<na>", "n/a", "#n/a", "nan", "null", "none"}
_SEPARATORS = {",": "commas", "\t": "tabs"}
_OTHER_SEPARATOR = re.compile(r"[;|\t]|,(?=\S)")


def separator(path):
    """A comma for .csv and .csv.gz, else a tab."""
    return "," if Path(path).name.lower().removesuffix(".gz").endswith(".csv") else "\t"


def read_cells(path):
    """Yield (line number, list of cells), quotes resolved; blank lines may only end the file."""
    delimiter, blank, number = separator(path), None, 0
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                what = f"byte {line[error.start]:#04x} isn't text"
                raise DataError(f"{path}: line {number}: {what}; expected text in UTF-8, so convert the file") from None
            if "\0" in text or "\r" in text:
                what = "a zero byte" if "\0" in text else "a carriage return within a line"
                raise DataError(f"{path}: line {number}: {what}; expected text with line ends LF or CRLF, so convert the file")
            if not text.strip(" "):
                blank = blank or number
                continue
            if blank:
                raise DataError(f"{path}: line {blank} is empty, expected a row of cells; remove the line")
            yield number, _quoted_cells(path, number, text, delimiter) if '"' in text else text.split(delimiter)
    if blank == 1 or number == 0:
        raise DataError(f"{path}: only empty lines, expected data; fetch or write it again")


def read_numbers(path, layout=None):
    """Read a table of numbers.

    Parameters
    ----------
    path : path-like
        Cells apart by commas (.csv) or tabs (any other name), plain or gzip.
    layout : callable, optional
        ``layout(path, head)`` says of the cells of the first lines (one or two lists) whether the first line is a header
        and whether the first column is names. None: both are.

    Returns
    -------
    values : ndarray (rows x columns)
        Finite and non-negative.
    row_names, column_names : list of str or None

    Raises
    ------
    DataError
        An unreadable, empty or ragged file, or a cell that is missing, not a number, infinite or negative.
    """
    lines = read_cells(path)
    start = list(islice(lines, 2))
    first = start[0][1]
    check_separator(path, first, single=layout is not None)
    has_header, has_names = layout(path, [cells for _, cells in start]) if layout else (True, True)
    begin = 1 if has_names else 0
    column_names = [cell.strip() for cell in first[begin:]] if has_header else None
    row_names, n_rows = [], 0
    entries = bytearray()  # grows in place, where a list of rows would be copied once more
    for number, cells in chain(start[1:] if has_header else start, lines):
        check_width(path, number, cells, len(first))
        if has_names:
            row_names.append(cells[0].strip())
        entries += _parse_row(path, number, cells[begin:], row_names[-1:], column_names).data
        n_rows += 1
    if not entries:
        raise DataError(f"{path}: {'names' if n_rows else 'a header'} only, expected rows of numbers; fetch or write it again")
    return np.frombuffer(entries).reshape(n_rows, -1), row_names if has_names else None, column_names


def check_separator(path, first, single):
    """Raise DataError where the first line seems to be separated by something else; ``single``: one column will do."""
    if len(first) == 1 and not (single and _OTHER_SEPARATOR.search(first[0]) is None):
        raise DataError(
            f"{path}: line 1 is a single cell, {quote(first[0])}; expected cells separated by {_SEPARATORS[separator(path)]}"
            f" (commas in .csv, tabs in any other text file), so rename or convert the file"
        )


def check_width(path, number, cells, expected):
    """Raise DataError where a line has more or fewer cells than the first."""
    if len(cells) != expected:
        raise DataError(
            f"{path}: line {number} has {len(cells)} cell{'s' if len(cells) != 1 else ''}, expected {expected} as in line 1"
            f" (separated by {_SEPARATORS[separator(path)]}); mend the line, or line 1"
        )


def check_unique(path, names):
    """Raise DataError where two samples have the same name."""
    name, count = Counter(names or [None]).most_common(1)[0]
    if count > 1:
        raise DataError(f"{path}: {count} samples are called {quote(name)}, expected each name once; rename or drop all but one")


def number_of(cell):
    """The value of a cell: NaN where it is missing, None where it is text."""
    if cell.strip().lower() in MISSING:
        return np.nan
    try:
        # Python reads 1_000 as a number; in a data file it is a slip, or a name.
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _quoted_cells(path, number, text, delimiter):
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}: line {number}: broken quotes, {quote(str(error))}; close each quote on its own line") from None


def _parse_row(path, number, cells, row_name, column_names):
    """The numbers of one line; ``row_name`` is a list of one name or none."""
    try:
        row = np.fromiter(map(float, cells), np.float64, len(cells))
        if np.isfinite(row).all() and (row >= 0).all() and "_" not in "".join(cells):
            return row
    except ValueError:
        pass
    column, fault = next((j, fault) for j, fault in enumerate(map(_fault, cells)) if fault)
    row_words = f" (row {quote(row_name[0])})" if row_name else ""
    column_words = f" ({quote(column_names[column])})" if column_names else ""
    raise DataError(
        f"{path}: line {number}{row_words}, column {column + 1 + len(row_name)}{column_words}: {fault} {quote(cells[column])};"
        f" expected a number of at least 0 in each cell (separated by {_SEPARATORS[separator(path)]});"
        f" mend the cell, or drop its row or column"
    )


def _fault(cell):
    """What keeps a cell from being an entry, or None."""
    value = number_of(cell)
    if value is None or np.isnan(value):
        return "not a number:" if value is None else "missing value"
    return "infinite value" if np.isinf(value) else "negative value" if value < 0 else None
