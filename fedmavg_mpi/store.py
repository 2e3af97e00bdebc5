"""The client store: one HDF5 file whose samples are sorted by client, so that a client is one contiguous slab.

Layout (format version 1): attributes ``format``, ``version``, ``n_features``, ``partition`` and ``normalize`` (text); ``/clients/offsets`` (P + 1),
``/clients/of_row`` (the data set's sample index of each row); ``/samples`` (N x M), or for sparse data ``/csr/data``, ``/csr/indices``,
``/csr/indptr``; where known ``/labels`` (N, by row), ``/label_names``, ``/sample_names`` (by row), ``/feature_names``. A store of ratings
is sparse (users x items, a client a user, a stored 0 being a rating), has the attributes ``rating_minimum`` and ``rating_maximum``, and
``/titles`` of items.
"""

import hashlib
import os
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import numpy as np
from scipy import sparse

from fedmavg_mpi.errors import DataError

FORMAT = "fedmavg_mpi client store"
VERSION = 1
CHUNK_BYTES = 1 << 24
MAKE_AGAIN = "make it again with fedmavg data prepare"
KINDS = {"f": "floating-point numbers", "iu": "whole numbers", "SO": "texts"}  # of numpy's dtypes


def write(path, dataset, client_of_sample, partition, normalize="none"):
    """Write a store, complete or not at all.

    Parameters
    ----------
    path : path-like
        Replaced if it exists.
    dataset : Dataset
    client_of_sample : ndarray of int (N,)
        Client of each sample.
    partition : str
        How the clients were made, kept for the reader.
    normalize : str
        How the samples were normalized, likewise.

    Raises
    ------
    DataError
        The file can't be written, or the disk is full.
    """
    path = Path(path)
    order = np.argsort(client_of_sample, kind="stable")
    sizes = np.bincount(client_of_sample)
    with written_aside(path) as aside, h5py.File(aside, "w") as file:
        file.attrs.update(format=FORMAT, version=VERSION, n_features=dataset.samples.shape[1])
        file.attrs.update(partition=partition, normalize=normalize)
        file["clients/offsets"] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        file["clients/of_row"] = order.astype(np.int64)
        if sparse.issparse(dataset.samples):
            rows = dataset.samples[order]
            file["csr/data"], file["csr/indices"] = rows.data, rows.indices
            file["csr/indptr"] = rows.indptr.astype(np.int64)
        else:
            samples = file.create_dataset("samples", dataset.samples.shape, dataset.samples.dtype)
            step = max(1, CHUNK_BYTES // (samples.shape[1] * samples.dtype.itemsize))
            for start in range(0, order.size, step):
                samples[start : start + step] = dataset.samples[order[start : start + step]]
        if dataset.labels is not None:
            file["labels"] = dataset.labels[order].astype(np.int32)
            file["label_names"] = texts(dataset.label_names)
        if dataset.rating_range is not None:
            file.attrs["rating_minimum"], file.attrs["rating_maximum"] = dataset.rating_range
        if dataset.titles:
            file["titles"] = texts(dataset.titles)
        if dataset.sample_names:
            file["sample_names"] = texts(dataset.sample_names[i] for i in order)
        if dataset.feature_names:
            file["feature_names"] = texts(dataset.feature_names)


def texts(names):
    """Names as HDF5 keeps them, each as long as it is: ndarray of str objects."""
    return np.array(list(names), h5py.string_dtype())


def in_data_order(values, of_row):
    """Values by row of the store, in the data set's order."""
    out = np.empty_like(values)
    out[of_row] = values
    return out


@contextmanager
def written_aside(path):
    """A temporary path beside ``path`` to write to; renamed to it at the end, removed if that fails.

    Raises
    ------
    DataError
        The operating system refused to write.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield aside
        os.replace(aside, path)
    except (OSError, RuntimeError) as error:  # h5py reports a failed flush as RuntimeError
        raise DataError(f"{path}: can't be written ({reason(error)}); free some space or choose another place") from None
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def reason(error):
    """The operating system's words for an OSError, h5py's included."""
    number = getattr(error, "errno", None)
    if number is None and "errno = " in str(error):
        number = int(str(error).split("errno = ")[1].split(",")[0])
    if number is None:
        return str(error).splitlines()[0]
    return os.strerror(number)


class ClientStore:
    """A store opened for reading.

    Parameters
    ----------
    path : path-like

    Attributes
    ----------
    offsets : ndarray of int64 (P + 1,)
    n_samples, n_features : int
    label_names : list of str or None
    has_titles : bool
        Whether items have titles.
    partition, normalize : str
    rating_range : tuple of float or None
        Lowest and highest rating; None where the samples aren't ratings.

    Raises
    ------
    DataError
        Not a store, of another version, or cut short.
    """

    def __init__(self, path):
        self.path = Path(path)
        with self._open() as file:
            self.offsets = file["clients/offsets"][:]
            self.n_features = int(file.attrs["n_features"])
            self.n_samples = int(self.offsets[-1])
            self.has_titles = "titles" in file
            self.sparse = "csr" in file
            self.partition, self.normalize = file.attrs["partition"], file.attrs["normalize"]
            self.dtype = (file["csr/data"] if self.sparse else file["samples"]).dtype
            self.n_values = file["csr/data"].shape[0] if self.sparse else self.n_samples * self.n_features
            range_known = "rating_minimum" in file.attrs
            self.rating_range = (
                (float(file.attrs["rating_minimum"]), float(file.attrs["rating_maximum"])) if range_known else None
            )
            self.label_names = [name.decode() for name in file["label_names"][:]] if "labels" in file else None
            self._check_shapes(file)

    def _check_shapes(self, file):
        """Raise DataError where the parts of the file don't fit each other."""
        n, m = self.n_samples, self.n_features
        parts = {"clients/offsets": ((len(self.offsets),), "iu"), "clients/of_row": ((n,), "iu")}
        if self.sparse:
            parts |= {
                "csr/data": ((self.n_values,), "f"),
                "csr/indices": ((self.n_values,), "iu"),
                "csr/indptr": ((n + 1,), "iu"),
            }
        else:
            parts["samples"] = ((n, m), "f")
        optional = {"labels": ((n,), "iu"), "sample_names": ((n,), "SO"), "feature_names": ((m,), "SO"), "titles": ((m,), "SO")}
        parts |= {name: part for name, part in optional.items() if name in file}
        for name, (shape, kinds) in parts.items():
            found = file[name]
            if found.shape != shape or found.dtype.kind not in kinds:
                words = f"{name} is of shape {found.shape} and type {found.dtype}, expected {shape} and {KINDS[kinds]}"
                raise DataError(f"{self.path}: {words}; {MAKE_AGAIN}")
        rises = {"clients/offsets": (self.offsets, n)} | (
            {"csr/indptr": (file["csr/indptr"][:], self.n_values)} if self.sparse else {}
        )
        for name, (ends, last) in rises.items():
            if ends[0] != 0 or ends[-1] != last or (ends[1:] < ends[:-1]).any():
                raise DataError(f"{self.path}: {name} don't rise from 0 to {last}; {MAKE_AGAIN}")
        if self.rating_range is not None and not (
            self.sparse and np.isfinite(self.rating_range).all() and (self.sizes == 1).all()
        ):
            raise DataError(f"{self.path}: ratings, but not sparse, in a finite range and of one user a client; {MAKE_AGAIN}")

    @property
    def sizes(self):
        """Samples of each client: ndarray of int64 (P,)."""
        return np.diff(self.offsets)

    @property
    def costs(self):
        """What a round costs at each client: values for sparse samples, else samples. ndarray of int64 (P,)."""
        if not self.sparse:
            return self.sizes
        with self._open() as file:
            return np.diff(file["csr/indptr"][:][self.offsets]) + self.sizes

    def fingerprint(self, totals):
        """A digest of what tells these data from others: sizes, and totals by client (clients x ...)."""
        digest = hashlib.sha256(f"{self.n_features} {self.offsets.tolist()}".encode())
        digest.update(np.ascontiguousarray(totals).tobytes())
        return digest.hexdigest()[:16]

    def names(self, kind):
        """Names by row (``sample_names``) or by column (``feature_names``, ``titles``): list of str, or None."""
        with self._open() as file:
            return [name.decode() for name in file[kind][:]] if kind in file else None

    def slab(self, clients, dtype):
        """The samples of a run of clients, and no others.

        Parameters
        ----------
        clients : range
        dtype : numpy dtype

        Returns
        -------
        ndarray (n x M) or scipy.sparse.csr_array (n x M)
        """
        begin, end = self.offsets[clients.start], self.offsets[clients.stop]
        with self._open() as file:
            if self.sparse:
                indptr = file["csr/indptr"][begin : end + 1]
                values = slice(indptr[0], indptr[-1])
                data, indices, indptr = file["csr/data"][values], file["csr/indices"][values], indptr - indptr[0]
                self._check_entries(data, indices, indptr)
                with np.errstate(over="ignore"):  # as below
                    data = data.astype(dtype, copy=False)
                return sparse.csr_array((data, indices, indptr), shape=(end - begin, self.n_features))
            out = _empty((end - begin, self.n_features), dtype)
            # pieces, so that a conversion of precision holds no second copy of the slab
            step = max(1, CHUNK_BYTES // (self.n_features * self.dtype.itemsize))
            for start in range(0, end - begin, step):
                stop = min(start + step, end - begin)
                with np.errstate(over="ignore"):  # an overflow shows in the samples' sum of squares
                    out[start:stop] = file["samples"][begin + start : begin + stop]
            return out

    def _check_entries(self, data, indices, indptr):
        """Raise DataError where sparse rows aren't in order of their columns, each once, or a rating is outside the range."""
        rises = indices[1:] > indices[:-1]
        starts = indptr[1:-1]
        rises[starts[(starts > 0) & (starts < indices.size)] - 1] = True
        if not rises.all() or indices.size and not 0 <= indices.min() <= indices.max() < self.n_features:
            raise DataError(f"{self.path}: sparse rows out of order or beyond {self.n_features} features; {MAKE_AGAIN}")
        if self.rating_range is not None and data.size:
            low, high = self.rating_range
            if not low <= data.min() <= data.max() <= high:  # nor where one is NaN
                found = f"ratings from {data.min():g} to {data.max():g}"
                raise DataError(f"{self.path}: {found}, expected numbers in the store's range {low:g} to {high:g}; {MAKE_AGAIN}")

    def labels(self, clients):
        """Classes of a run of clients' samples: ndarray of int32 (n,), or None."""
        with self._open() as file:
            if "labels" not in file:
                return None
            labels = file["labels"][self.offsets[clients.start] : self.offsets[clients.stop]]
            if labels.size and not (0 <= labels.min() and labels.max() < len(self.label_names)):
                raise DataError(f"{self.path}: labels beyond the {len(self.label_names)} classes; {MAKE_AGAIN}")
            return labels

    def of_row(self):
        """The data set's sample index of each row: ndarray of int64 (N,)."""
        with self._open() as file:
            of_row = file["clients/of_row"][:]
        if not np.array_equal(np.sort(of_row), np.arange(self.n_samples)):
            raise DataError(f"{self.path}: rows that don't stand for {self.n_samples} samples; {MAKE_AGAIN}")
        return of_row

    @contextmanager
    def _open(self):
        try:
            # Only read, so the lock that parallel file systems often lack isn't needed.
            with h5py.File(self.path, "r", locking=False) as file:
                self._check(file)
                yield file
        except FileNotFoundError:
            raise DataError(
                f"{self.path}: no such file; give the path of a store made by fedmavg data prepare, on a file system that every rank sees"
            ) from None
        except (
            OSError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:  # what h5py and numpy raise for what isn't as expected
            words = "cut short or not a client store" if "errno" not in str(error) else reason(error)
            raise DataError(f"{self.path}: can't be read ({words}); {MAKE_AGAIN}") from None

    def _check(self, file):
        if file.attrs.get("format") != FORMAT:
            raise DataError(f"{self.path}: an HDF5 file but not a client store; make one with fedmavg data prepare")
        if file.attrs["version"] != VERSION:
            raise DataError(f"{self.path}: store version {file.attrs['version']}, expected {VERSION}; {MAKE_AGAIN}")


def _empty(shape, dtype):
    """An array that begins at a cache line, so that vectors of its rows don't lie across two where the rows' length allows."""
    nbytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    try:
        raw = np.empty(nbytes + 64, np.uint8)
        return raw[-raw.ctypes.data % 64 :][:nbytes].view(dtype).reshape(shape)
    except MemoryError:
        raise DataError(
            f"{shape[0]} x {shape[1]} samples don't fit in this rank's memory; start more ranks on more hosts, or set run.dtype = 'float32'"
        ) from None


def describe(path):
    """What is in a store, as lines for people."""
    store = ClientStore(path)
    sizes = store.sizes
    filled = store.n_values / max(1, store.n_samples * store.n_features)
    rows = [("store", f"{path}, version {VERSION}")]
    if store.rating_range is None:
        form = f"sparse, {filled:.3%} filled" if store.sparse else "dense"
        rows += [
            ("samples", f"{store.n_samples} x {store.n_features} features, {store.dtype}, {form}"),
            ("clients", f"{sizes.size}, of {_spread(sizes)} samples"),
            ("partition", store.partition),
            ("classes", f"{len(store.label_names)}: {', '.join(store.label_names[:30])}" if store.label_names else "none"),
        ]
    else:
        low, high = store.rating_range
        rows += [
            ("ratings", f"{store.n_values} from {low:g} to {high:g}, {store.dtype}"),
            ("users", f"{store.n_samples}, each a client, with {_spread(store.costs - sizes)} ratings"),
            ("items", f"{store.n_features}, {'with' if store.has_titles else 'without'} titles, {filled:.3%} of all pairs rated"),
        ]
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _spread(counts):
    """Least, most and median of some counts, in words."""
    return f"{counts.min()} to {counts.max()} (median {np.median(counts):g})"
