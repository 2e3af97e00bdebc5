"""Rows of data between clients and server, dense or sparse, and what they count in the protocol ledger."""

import numpy as np
from scipy import sparse

from fedmavg_mpi import memory


def pool(comm, counts, rows, kind):
    """One part under the other, at the server; all ranks call this together.

    Parameters
    ----------
    comm : Communicator
    counts : ndarray of int64 (ranks,)
        Rows of every rank.
    rows : ndarray (n x ...) or scipy.sparse.csr_array (n x M)
        What belongs to this rank's clients.
    kind : str
        One of :data:`fedmavg_mpi.ledger.KINDS`.

    Returns
    -------
    ndarray or csr_array
        All rows at the server, in client order; none of them elsewhere.

    Raises
    ------
    DataError
        They don't fit in the server's memory.
    """
    if not sparse.issparse(rows):
        nbytes = int(counts.sum()) * int(np.prod(rows.shape[1:], dtype=np.int64)) * rows.itemsize
        _require(comm, nbytes)
        whole = comm.gather(rows, counts, kind)
        return whole if comm.is_server else np.empty((0, *rows.shape[1:]), rows.dtype)
    lengths = comm.gather(np.diff(rows.indptr).astype(np.int64), counts, "control")
    values_of = np.zeros(comm.size, np.int64)
    if comm.is_server:
        values_of[:] = np.diff(np.r_[0, np.cumsum(lengths)][np.r_[0, np.cumsum(counts)]])
    comm.broadcast(values_of, "control", comm.everyone)
    _require(comm, int(values_of.sum()) * (4 + rows.data.itemsize))
    indices = comm.gather(rows.indices.astype(np.int32), values_of, kind)
    values = comm.gather(rows.data, values_of, kind)
    if not comm.is_server:
        return sparse.csr_array((0, rows.shape[1]), dtype=rows.dtype)
    return sparse.csr_array((values, indices, np.r_[0, np.cumsum(lengths)]), shape=(lengths.size, rows.shape[1]))


def pool_by_client(comm, placement, kind, *fields):
    """As :func:`pool`, where only a client itself knows how many rows it has.

    Parameters
    ----------
    comm : Communicator
    placement : Placement
    kind : str
    *fields : list of ndarray (n x ...) or of scipy.sparse.csr_array (n x M)
        A part of each client here, of as many rows in one field as in another; on a rank without clients one part without rows.

    Returns
    -------
    list of ndarray or csr_array
        Of each field, as :func:`pool`.
    """
    n_clients = np.diff(placement.cut)
    sizes = np.array([part.shape[0] for part in fields[0][: n_clients[comm.rank]]], np.int64)
    sizes = comm.gather(sizes, n_clients, "control")
    counts = np.zeros(comm.size, np.int64)
    if comm.is_server:
        counts[:] = np.diff(np.r_[0, np.cumsum(sizes)][placement.cut])
    comm.broadcast(counts, "control", comm.everyone)
    return [pool(comm, counts, stack(parts), kind) for parts in fields]


def spread(comm, rows, kind, ranks):
    """The server's rows on these ranks; all ranks call this together.

    Parameters
    ----------
    comm : Communicator
    rows : ndarray (n x M) or scipy.sparse.csr_array (n x M)
        What is to be sent; elsewhere anything as wide and of the same dtype.
    kind : str
    ranks : tuple of int

    Returns
    -------
    ndarray or csr_array
        The server's rows, also on a rank that is not among these, which makes nothing of them.
    """
    is_sparse = sparse.issparse(rows)
    sizes = np.array([rows.shape[0], rows.nnz if is_sparse else 0], np.int64)
    comm.broadcast(sizes, "control", ranks)
    if comm.rank not in ranks and not comm.is_server:
        return rows
    n_rows, n_values = sizes.tolist()
    if not is_sparse:
        buffer = np.ascontiguousarray(rows) if comm.is_server else np.empty((n_rows, rows.shape[1]), rows.dtype)
        comm.broadcast(buffer, kind, ranks)
        return buffer
    ends = rows.indptr[1:].astype(np.int64) if comm.is_server else np.empty(n_rows, np.int64)
    indices = rows.indices.astype(np.int32) if comm.is_server else np.empty(n_values, np.int32)
    values = rows.data if comm.is_server else np.empty(n_values, rows.dtype)
    comm.broadcast(ends, "control", ranks)
    comm.broadcast(indices, kind, ranks)
    comm.broadcast(values, kind, ranks)
    return sparse.csr_array((values, indices, np.r_[0, ends]), shape=(n_rows, rows.shape[1]))


def stack(parts):
    """Parts one under the other, dense or sparse as they are."""
    if len(parts) == 1:
        return parts[0]
    if sparse.issparse(parts[0]):
        return sparse.csr_array(sparse.vstack(parts, format="csr"))
    return np.concatenate(parts)


def count_rows(count, rows, times=1):
    """Enter rows in the protocol ledger: sparse values with a column index of 4 bytes each.

    Parameters
    ----------
    count : callable(count, itemsize)
        A ledger's ``uplink`` or ``downlink``.
    rows : ndarray (n x ...) or scipy.sparse.csr_array (n x M)
    times : int
        How many clients they go to.
    """
    if sparse.issparse(rows):
        count(times * rows.data.size, 4)
    values = rows.data if sparse.issparse(rows) else rows
    count(times * values.size, values.itemsize)


def _require(comm, nbytes):
    purpose, advice = "what clients send to the server", "choose another algorithm, or run.dtype = 'float32'"
    memory.require(comm, nbytes if comm.is_server else 0, purpose, advice)
