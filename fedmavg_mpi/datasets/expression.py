"""Expression tables as the UCSC Xena hubs serve them, and the label tables beside them.

A line a feature (gene), a column a sample, separated by tabs, plain or gzip; the first line names the samples, and its first
cell may be anything. A label table has a line a sample: its name, its label.
"""

import re

import numpy as np

from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.files import files_in, listed, locate
from fedmavg_mpi.datasets.labels import encode_labels, find_labels, labels_by_name, read_label_rows
from fedmavg_mpi.datasets.tables import check_unique, read_numbers
from fedmavg_mpi.errors import DataError

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


def _table_in(folder):
    tables = _tables(folder)
    if len(tables) != 1:
        found = f"{len(tables)} tables" if tables else "no table among the files"
        names = listed(tables or files_in(folder)) or "none"
        raise DataError(
            f"{folder}: {found} ({names}), expected one file in {', '.join(TABLE_SUFFIXES)} or without a suffix;"
            f" set data.path to the table itself"
        )
    return tables[0]


def _tables(folder):
    """The folder's tables by suffix; where there are none, the files without a suffix, as the hubs name them."""
    files = [file for file in files_in(folder) if not re.match("readme|license", file.name, re.I) and ".labels." not in file.name]
    named = [file for file in files if file.name.lower().endswith(TABLE_SUFFIXES)]
    return named or [file for file in files if "." not in file.name.removesuffix(".gz")]
