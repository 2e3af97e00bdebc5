"""A plain matrix in a file, dense or sparse, with or without names: npy, npz, Matrix Market, csv, tsv."""

import re
import zipfile

import numpy as np
from scipy import sparse

from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.files import locate, open_bytes, parsing, quote, read_npy
from fedmavg_mpi.datasets.labels import encode_labels, find_labels, read_labels
from fedmavg_mpi.datasets.matrix_market import read_matrix_market
from fedmavg_mpi.datasets.tables import check_unique, number_of, read_numbers
from fedmavg_mpi.errors import DataError

# A first header cell that marks a column of names even where the names are numbers; pandas leaves it empty.
_CORNER = re.compile(r"|unnamed: 0|(sample|feature|gene|cell|patient|index|id|name|barcode)s?([ _.-]?(id|name|barcode)s?)?", re.I)


def load(config, seed):
    """Read a matrix and its labels.

    Parameters
    ----------
    config : DataConfig
        ``path``: the file, its format told by its suffix; ``samples_in``: rows or columns; ``labels``: a vector (npy) or a
        table (csv, tsv, txt, plain or gzip), empty for the one beside the file or none.
    seed : int
        Not used: nothing is drawn.

    Returns
    -------
    Dataset
        N x M samples: float32 stays, any other number becomes float64. Sparse files give a csr_array with sorted
        indices, duplicates summed and no stored zeros.

    Raises
    ------
    ConfigError, DataError
        No path, an unknown suffix, a broken file, entries that aren't numbers, or labels that don't fit.
    """
    path = locate(config.path, "data.path")
    suffix = _suffix(path)
    if path.is_dir() or suffix not in READERS:
        what = "a folder, expected a file" if path.is_dir() else f"unknown suffix {suffix!r}, expected one"
        raise DataError(f"{path}: {what} of {', '.join(READERS)}; name such a file, or convert this one")
    values, row_names, column_names = READERS[suffix](path)
    if config.samples_in == "columns":
        values, row_names, column_names = values.T, column_names, row_names
    dataset = Dataset(_canonical(path, values), row_names, column_names)
    check_unique(path, dataset.sample_names)
    labels = find_labels(path, config.labels)
    if labels:
        dataset.labels, dataset.label_names = encode_labels(read_labels(labels, dataset))
    return dataset


def _suffix(path):
    """The lower-case suffix, with the one before a ``.gz``."""
    return "".join(path.suffixes[-2 if path.suffix.lower() == ".gz" else -1 :]).lower()


def _canonical(path, values):
    """Samples x features in the package's own form: see :func:`load`."""
    if values.ndim != 2:
        raise DataError(f"{path}: shape {values.shape}, expected two dimensions, samples and features; reshape the array")
    dtype = _float_type(path, values.dtype)
    if not sparse.issparse(values):
        return np.ascontiguousarray(values, dtype=dtype)
    with parsing(path, "sparse matrix"):
        # An index out of range would be read out of bounds by whatever runs next.
        if hasattr(values, "check_format"):
            values.check_format(full_check=True)
        samples = sparse.csr_array(values.astype(dtype))
    samples.sum_duplicates()
    samples.eliminate_zeros()
    index = np.int32 if max(samples.nnz, *samples.shape) < 2**31 else np.int64
    return sparse.csr_array((samples.data, samples.indices.astype(index), samples.indptr.astype(index)), shape=samples.shape)


def _float_type(path, dtype):
    if dtype.kind not in "biuf":
        raise DataError(f"{path}: entries of type {quote(str(dtype))}, expected real numbers; convert them to float64")
    return np.dtype(np.float32) if dtype.kind == "f" and dtype.itemsize == 4 else np.dtype(np.float64)


def _read_npy(path):
    return read_npy(path), None, None


def _read_npz(path):
    with open_bytes(path) as stream, parsing(path, "npz file"):
        if not zipfile.is_zipfile(stream):
            raise ValueError("not a zip archive")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            names = arrays.files
            values = np.asarray(arrays[names[0]]) if len(names) == 1 else None
        if values is None and {"format", "shape"} <= set(names):
            stream.seek(0)
            values = sparse.load_npz(stream)
    if values is None:
        listed = ", ".join(map(quote, names[:10]))
        raise DataError(f"{path}: {len(names)} arrays ({listed}), expected one, or scipy's sparse format; save one alone")
    return values, None, None


def _read_text(path):
    return read_numbers(path, _layout)


def _layout(path, head):
    """Whether the first line is a header and the first column names, by the cells of the first two lines.

    The first line is a header if its first cell is empty or a word such as "sample", "gene" or "id", or if a later cell (of one
    column: the cell) isn't a number. The first column is names if its header is such a word, or else its first cell below
    the header isn't a number.
    """
    first, second = head[0], head[-1]
    corner = len(first) > 1 and bool(_CORNER.fullmatch(first[0].strip()))
    has_header = corner or any(number_of(cell) is None for cell in first[1:] or first)
    has_names = corner or number_of((second if has_header else first)[0]) is None
    if has_names and not has_header and number_of(second[0]) is not None:
        # Text in the first cell only, above a number: a header over numbers, or names of which one is a number?
        raise DataError(
            f"{path}: line 1 begins with {quote(first[0])} and line 2 with {quote(second[0])}: unclear whether the first column"
            f" is names; head it 'sample' if it is, else give every column a name"
        )
    return has_header, has_names


READERS = {".npy": _read_npy, ".npz": _read_npz, ".mtx": read_matrix_market, ".mtx.gz": read_matrix_market}
READERS |= dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _read_text)
