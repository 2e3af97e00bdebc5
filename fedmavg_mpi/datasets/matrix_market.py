"""The Matrix Market format. Not by scipy's mmread: its reader in C++ can end the whole process on a malformed file."""

import warnings

import numpy as np
from scipy import sparse

from fedmavg_mpi.datasets.files import open_bytes, parsing, quote

_BANNER = ({"coordinate", "array"}, {"real", "double", "integer", "pattern"}, {"general", "symmetric"})


def read_matrix_market(path):
    """A matrix, dense or sparse as the file has it, and None for the names of its rows and columns: the format has none."""
    with open_bytes(path) as stream, parsing(path, "Matrix Market file"):
        banner = stream.readline(1000).decode().lower().split()
        if banner[:2] != ["%%matrixmarket", "matrix"] or not all(map(set.__contains__, _BANNER, banner[2:])) or len(banner) != 5:
            known = " ".join("|".join(sorted(words)) for words in _BANNER)
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
        build = _coordinate if layout == "coordinate" else _array
        return build(body, [*map(int, sizes)], field, symmetric), None, None


def _coordinate(body, sizes, field, symmetric):
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


def _array(body, shape, field, symmetric):
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
