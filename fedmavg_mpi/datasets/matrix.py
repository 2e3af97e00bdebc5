"""A plain matrix in a file, dense or sparse, with or without names: npy, npz, Matrix Market, csv, tsv."""

import re
import warnings
import zipfile
from contextlib import contextmanager

import numpy as np
from scipy import sparse

from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.expression import (
    LABEL_COLUMNS,
    check_label,
    encode_labels,
    find_labels,
    labels_by_name,
    read_label_rows,
)
from fedmavg_mpi.datasets.tables import check_separator, check_unique, locate, number_of, open_bytes, quote, read_numbers
from fedmavg_mpi.errors import DataError

# A first header cell that marks a column of names even where the names are numbers; pandas leaves it empty.
_CORNER = re.compile(r"|unnamed: 0|(sample|feature|gene|cell|patient|index|id|name|barcode)s?([ _.-]?(id|name|barcode)s?)?", re.I)
_MTX = ({"coordinate", "array"}, {"real", "double", "integer", "pattern"}, {"general", "symmetric"})


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
        dataset.labels, dataset.label_names = encode_labels(_read_labels(labels, dataset))
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
    with _parsing(path, "sparse matrix"):
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
    with open_bytes(path) as stream, _parsing(path, "npy file"):
        return np.lib.format.read_array(stream, allow_pickle=False), None, None


def _read_npz(path):
    with open_bytes(path) as stream, _parsing(path, "npz file"):
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


def _read_mtx(path):
    """Matrix Market. Not by scipy's mmread: its reader in C++ can end the whole process on a malformed file."""
    with open_bytes(path) as stream, _parsing(path, "Matrix Market file"):
        banner = stream.readline(1000).decode().lower().split()
        if banner[:2] != ["%%matrixmarket", "matrix"] or not all(map(set.__contains__, _MTX, banner[2:])) or len(banner) != 5:
            known = " ".join("|".join(sorted(words)) for words in _MTX)
            raise ValueError(f"line 1 isn't '%%MatrixMarket matrix {known}'")
        layout, field, symmetry = banner[2:]
        sizes = next((line for line in stream if line.strip() and not line.startswith(b"%")), b"").decode().split()
        if len(sizes) != (3 if layout == "coordinate" else 2) or not all(map(str.isdecimal, sizes)):
            raise ValueError(f"sizes {quote(' '.join(sizes))}, where rows, columns and for coordinates entries are expected")
        symmetric = symmetry == "symmetric"
        if symmetric and sizes[0] != sizes[1]:
            raise ValueError(f"symmetric, yet {sizes[0]} x {sizes[1]}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no entries
            body = np.loadtxt(stream, comments="%", ndmin=2)
        read = _mtx_coordinate if layout == "coordinate" else _mtx_array
        return read(body, [*map(int, sizes)], field, symmetric), None, None


def _mtx_coordinate(body, sizes, field, symmetric):
    """Lines of row, column and, unless it's a pattern, value; a symmetric matrix gives its lower triangle."""
    *shape, count = sizes
    width = 2 if field == "pattern" else 3
    if len(body) != count or (count and body.shape[1] != width):
        raise ValueError(f"{len(body)} lines of {body.shape[1]} numbers, where line 1 and the sizes say {count} of {width}")
    places = body[:, :2] if count else np.empty((0, 2))
    outside = np.flatnonzero(~((places >= 1) & (places <= shape) & (places == np.floor(places))).all(axis=1))
    if outside.size:
        raise ValueError(f"entry {outside[0] + 1} is at {places[outside[0]].tolist()}, outside of {shape}")
    rows, columns = places.T.astype(np.int64) - 1
    values = np.ones(count) if field == "pattern" or not count else body[:, 2]
    if symmetric:
        off = rows != columns
        rows, columns = np.append(rows, columns[off]), np.append(columns, rows[off])
        values = np.append(values, values[off])
    return sparse.coo_array((values, (rows, columns)), shape=shape)


def _mtx_array(body, shape, field, symmetric):
    """One value a line, column by column; a symmetric matrix gives its lower triangle."""
    count = shape[0] * (shape[0] + 1) // 2 if symmetric else shape[0] * shape[1]
    if body.size != count or field == "pattern":
        raise ValueError(f"{body.size} values of type {field}, where the sizes say {count}")
    if not symmetric:
        return body.reshape(shape, order="F")
    values = np.empty(shape)
    triangle = np.triu_indices(shape[0])
    values[triangle] = values.T[triangle] = body.ravel()
    return values


@contextmanager
def _parsing(path, what):
    """Make one DataError of what the parsers of numpy and scipy raise for a broken file, which is anything at all."""
    try:
        yield
    except (MemoryError, OSError):  # the machine's or the file system's fault
        raise
    except Exception as error:
        reason = "".join(c if c.isprintable() else " " for c in str(error))[:200]
        if "allow_pickle" in reason:
            reason = "it holds pickled objects, which may run code and aren't read"
        raise DataError(f"{path}: not a valid {what} ({reason}), expected a matrix of numbers; write it again") from None


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


def _read_labels(path, dataset):
    """N labels as text."""
    n_samples, sample_names = dataset.samples.shape[0], dataset.sample_names
    if _suffix(path) == ".npy":
        labels = _read_npy(path)[0]
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


READERS = {".npy": _read_npy, ".npz": _read_npz, ".mtx": _read_mtx, ".mtx.gz": _read_mtx}
READERS |= dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _read_text)
