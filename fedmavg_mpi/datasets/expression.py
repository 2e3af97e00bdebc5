"""Expression tables as the UCSC Xena hubs serve them, and the label tables beside them.

A line a feature (gene), a column a sample, separated by tabs, plain or gzip; the first line names the samples, and its first
cell may be anything. A label table has a line a sample: its name, its label.
"""

import re
from pathlib import Path

import numpy as np

from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.tables import (
    check_separator,
    check_unique,
    check_width,
    locate,
    number_of,
    quote,
    read_cells,
    read_numbers,
)
from fedmavg_mpi.errors import DataError

LABEL_COLUMNS = ("cancer_type", "label", "class", "type")
LABEL_FILE = re.compile(r"\.labels\.(tsv|txt|csv|npy)(\.gz)?$", re.I)
TABLE_SUFFIXES = (".tsv", ".tsv.gz", ".txt", ".txt.gz")


def load(config, seed):
    """Read an expression table and its labels.

    Parameters
    ----------
    config : DataConfig
        ``path``: the table, or a folder with one table; ``labels``: the label table, empty for the one beside it or none.
    seed : int
        Not used: nothing is drawn.

    Returns
    -------
    Dataset
        N x M samples: the file's columns.

    Raises
    ------
    ConfigError, DataError
        No path; no table, or several; a table or a label table that can't be used.
    """
    path = locate(config.path, "data.path")
    if path.is_dir():
        path = _table_in(path)
    values, feature_names, sample_names = read_numbers(path)
    check_unique(path, sample_names)
    dataset = Dataset(np.ascontiguousarray(values.T), sample_names, feature_names)
    table = find_labels(path, config.labels)
    if table:
        dataset.labels, dataset.label_names = encode_labels(labels_by_name(table, read_label_rows(table), sample_names))
    return dataset


def find_labels(path, configured):
    """The label file of a table of numbers, or None.

    Parameters
    ----------
    path : Path
        The table.
    configured : str
        The label file's path, looked for as any data and then in the table's folder. Empty: ``<stem>.labels.*`` beside the
        table, or else the folder's only ``*.labels.*`` that isn't named after another file, or none.

    Raises
    ------
    DataError
        The configured file doesn't exist, or several fit.
    """
    if configured:
        return locate(configured, "data.labels", beside=path.parent)
    files = _files(path.parent)
    owners = {file: LABEL_FILE.sub("", file.name) for file in files if LABEL_FILE.search(file.name)}
    stems = {_stem(file) for file in files if file not in owners}
    found = [file for file, owner in owners.items() if owner == _stem(path)]
    found = found or [file for file, owner in owners.items() if owner not in stems]
    if len(found) > 1:
        raise DataError(f"{path.parent}: {len(found)} label files ({_listed(found)}), expected one; set data.labels to it")
    return found[0] if found else None


def read_label_rows(path):
    """The (line number, stripped cells) of a label table, all of the same width."""
    rows = [(number, [cell.strip() for cell in cells]) for number, cells in read_cells(path)]
    for number, cells in rows:
        check_width(path, number, cells, len(rows[0][1]))
    return rows


def labels_by_name(path, rows, sample_names):
    """Pick each sample's label from the rows of a label table.

    Parameters
    ----------
    path : path-like
        Named in messages.
    rows : list of (int, list of str)
        As from :func:`read_label_rows`: a sample name and its label, in any order; other samples are ignored. The first row is
        a header unless it names a sample. Of several columns the one called cancer_type, label, class or type is read,
        else the second.
    sample_names : list of str
        The N names.

    Returns
    -------
    list of str
        N labels.

    Raises
    ------
    DataError
        A single column, a sample without a label, or with two.
    """
    header, wanted = rows[0][1], set(sample_names)
    check_separator(path, header, single=False)
    if header[0] in wanted:
        header = []
    titles = [title.lower() for title in header[1:]]
    column = 1 + next((titles.index(name) for name in LABEL_COLUMNS if name in titles), 0)
    label_of = {}
    for number, cells in rows[1:] if header else rows:
        if cells[0] in wanted:
            label = check_label(path, f"line {number}", cells[column])
            if label_of.setdefault(cells[0], label) != label:
                raise DataError(
                    f"{path}: line {number}: sample {quote(cells[0])} is {quote(label)}, but {quote(label_of[cells[0]])} above;"
                    f" expected one label a sample, so drop a line"
                )
    missing = [name for name in sample_names if name not in label_of]
    if missing:
        raise DataError(
            f"{path}: no label for {len(missing)} of {len(sample_names)} samples ({', '.join(map(quote, missing[:3]))}"
            f"{', ...' if len(missing) > 3 else ''}), expected a line for each; add them, or drop the samples"
        )
    return [label_of[name] for name in sample_names]


def check_label(path, place, label):
    """The label, or DataError where it is missing."""
    value = number_of(label)
    if value is not None and np.isnan(value):
        raise DataError(f"{path}: {place}: missing label {quote(label)}, expected a class; fill it in, or drop the sample")
    return label


def encode_labels(labels):
    """Class indices (N,) int32 and the sorted class names (numbers by value) of N labels."""
    names = sorted(set(labels))
    if all(name.isdecimal() for name in names):
        names.sort(key=int)
    index = {name: k for k, name in enumerate(names)}
    return np.array([index[label] for label in labels], dtype=np.int32), names


def _table_in(folder):
    tables = _tables(folder)
    if len(tables) != 1:
        found = f"{len(tables)} tables" if tables else "no table among the files"
        listed = _listed(tables or _files(folder)) or "none"
        raise DataError(
            f"{folder}: {found} ({listed}), expected one file in {', '.join(TABLE_SUFFIXES)} or without a suffix;"
            f" set data.path to the table itself"
        )
    return tables[0]


def _tables(folder):
    """The folder's tables by suffix; where there are none, the files without a suffix, as the hubs name them."""
    files = [file for file in _files(folder) if not re.match("readme|license", file.name, re.I) and ".labels." not in file.name]
    named = [file for file in files if file.name.lower().endswith(TABLE_SUFFIXES)]
    return named or [file for file in files if "." not in file.name.removesuffix(".gz")]


def _files(folder):
    try:
        return sorted(file for file in Path(folder).iterdir() if file.is_file() and not file.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; expected a folder that can be listed") from None


def _listed(files):
    return ", ".join(file.name for file in files[:10]) + (", ..." if len(files) > 10 else "")


def _stem(path):
    return Path(path.name.removesuffix(".gz")).stem
