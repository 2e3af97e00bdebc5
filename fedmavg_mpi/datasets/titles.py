"""Titles of items from the file that MovieLens has them in, beside the ratings."""

import csv

from fedmavg_mpi.datasets.archives import base, files_beside, open_file
from fedmavg_mpi.datasets.files import quote
from fedmavg_mpi.datasets.ratings_files import COLUMNS
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.text import one_line

NAMED_COLUMNS = "movies.csv"
SEPARATORS = {"u.item": "|", "movies.dat": "::"}  # without a header: item and title first
FILE_BESIDE = {"\t": "u.item", "::": "movies.dat"}  # ratings without a header, by their separator
TITLE_COLUMNS = ("title", "name")
LONGEST_TITLE = 500  # characters; the rest is cut


def read_titles(ratings_file, layout):
    """The titles by item id, from the file in the folder of the ratings.

    Parameters
    ----------
    ratings_file : Path or zipfile.Path
    layout : ratings_files.Layout
        Of the ratings: which file goes with them.

    Returns
    -------
    dict of str to str, or None
        None where there is no such file.

    Raises
    ------
    DataError
        A file that can't be read; of a table with named columns, also the first line at fault.
    """
    name = NAMED_COLUMNS if layout.has_header else FILE_BESIDE[layout.delimiter]
    files = sorted((file for file in files_beside(ratings_file) if base(file) == name), key=str)
    if not files:
        return None
    with open_file(files[0]) as stream:
        data = stream.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    rows = _named_columns(files[0], lines) if name == NAMED_COLUMNS else [line.split(SEPARATORS[name])[:2] for line in lines]
    return {row[0].strip(): one_line(row[1].strip(), LONGEST_TITLE).strip() for row in rows if len(row) > 1}


def _named_columns(where, lines):
    """Item and title of each line of a csv with named columns."""
    header = _cells(where, 1, lines[0])
    names = [cell.strip().lower().replace("_", "") for cell in header]
    item = next((names.index(name) for name in (*COLUMNS["item"], "id") if name in names), None)
    title = next((names.index(name) for name in TITLE_COLUMNS if name in names), None)
    if item is None or title is None:
        listed = ", ".join(map(quote, header[:20]))
        raise DataError(f"{where}: columns {listed}, expected movieId and title; name them in line 1, or move the file away")
    rows = (_cells(where, number, line) for number, line in enumerate(lines[1:], 2))
    return [[row[item], row[title]] for row in rows if len(row) > max(item, title)]


def _cells(where, number, line):
    """The cells of one line, so that a quote that isn't closed is told where it stands and swallows nothing."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        advice = "close each quote on its own line, or move the file away"
        raise DataError(f"{where}: line {number}: broken quotes, {quote(str(error))}; {advice}") from None
