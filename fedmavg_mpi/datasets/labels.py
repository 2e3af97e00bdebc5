"""Labels of samples: the file beside a table or matrix is found, read, checked and turned into class indices."""

import re
from pathlib import Path

import numpy as np

from fedmavg_mpi.datasets.files import files_in, listed, locate, quote, read_npy
from fedmavg_mpi.datasets.tables import check_separator, check_width, number_of, read_cells
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.text import fits_a_line

LABEL_COLUMNS = ("cancer_type", "label", "class", "type")
LABEL_FILE = re.compile(r"\.labels\.(tsv|txt|csv|npy)(\.gz)?$", re.I)


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
    files = files_in(path.parent)
    owners = {file: LABEL_FILE.sub("", file.name) for file in files if LABEL_FILE.search(file.name)}
    stems = {_stem(file) for file in files if file not in owners}
    found = [file for file, owner in owners.items() if owner == _stem(path)]
    found = found or [file for file, owner in owners.items() if owner not in stems]
    if len(found) > 1:
        raise DataError(f"{path.parent}: {len(found)} label files ({listed(found)}), expected one; set data.labels to it")
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


def read_labels(path, dataset):
    """The labels of a matrix: a vector in an npy file, a column of labels, or a table of sample names and labels.

    Parameters
    ----------
    path : Path
        The label file.
    dataset : Dataset
        Its N samples and their names, where it has them, are read.

    Returns
    -------
    list of str
        N labels.

    Raises
    ------
    DataError
        Labels that are missing, of another number than the samples, or neither numbers nor text.
    """
    n_samples, sample_names = dataset.samples.shape[0], dataset.sample_names
    if path.suffix.lower() == ".npy":
        labels = read_npy(path)
        if labels.ndim != 1 or labels.dtype.kind not in "biufU":
            found = f"shape {labels.shape} and type {labels.dtype}"
            raise DataError(f"{path}: {found}, expected a vector of numbers or text; convert it")
        ending = ".0" if labels.dtype.kind == "f" else ""  # the class 1.0 is the class 1
        labels = [check_label(path, f"entry {i + 1}", str(x).removesuffix(ending)) for i, x in enumerate(labels.tolist())]
    else:
        rows = read_label_rows(path)
        first = rows[0][1]
        if len(first) > 1 and sample_names:
            return labels_by_name(path, rows, sample_names)
        if len(first) > 1:
            raise DataError(f"{path}: {len(first)} columns, expected labels only, as the samples have no names; drop the others")
        check_separator(path, first, single=True)
        # A header is known by its word, or is one line too many and unlike all labels.
        if first[0].lower() in LABEL_COLUMNS or (len(rows) == n_samples + 1 and first not in [cells for _, cells in rows[1:]]):
            rows = rows[1:]
        labels = [check_label(path, f"line {number}", cells[0]) for number, cells in rows]
    if len(labels) != n_samples:
        raise DataError(f"{path}: {len(labels)} labels for {n_samples} samples, expected one each; mend it, or data.samples_in")
    return labels


def check_label(path, place, label):
    """The label, or DataError where it is missing or no text."""
    if not fits_a_line(label):
        raise DataError(
            f"{path}: {place}: the label {quote(label)} holds a control character; expected text or a number, so mend it"
        )
    value = number_of(label)
    if value is not None and np.isnan(value):
        raise DataError(f"{path}: {place}: missing label {quote(label)}, expected a class; fill it in, or drop the sample")
    return label


def encode_labels(labels):
    """Class indices (N,) int32 and the sorted class names (numbers by value) of N labels."""
    names = sorted(set(labels))
    if all(name.isdecimal() and len(name) < 1000 for name in names):
        names.sort(key=int)
    index = {name: k for k, name in enumerate(names)}
    return np.array([index[label] for label in labels], dtype=np.int32), names


def _stem(path):
    return Path(path.name.removesuffix(".gz")).stem
