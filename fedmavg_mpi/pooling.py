"""Bringing all clients' data to the server, for algorithms that work on pooled data."""

import numpy as np
from scipy import sparse

from fedmavg_mpi import memory


def pool(comm, origin, rows, kind):
    """One part under the other, at the server; all ranks call this together.

    Parameters
    ----------
    comm : Communicator
    origin : Placement
        Where the data are.
    rows : ndarray (n x ...) or scipy.sparse.csr_array (n x M)
        What belongs to this rank's clients, a row a sample.
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
    counts = origin.rows
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


def _require(comm, nbytes):
    purpose, advice = "pooling all clients' data", "choose a federated algorithm, or run.dtype = 'float32'"
    memory.require(comm, nbytes if comm.is_server else 0, purpose, advice)


def count_pooled(ledger, rows):
    """Enter in the protocol ledger what clients send when these rows are pooled: sparse values with a column index of 4 bytes each."""
    if sparse.issparse(rows):
        ledger.uplink(rows.data.size, 4)
    values = rows.data if sparse.issparse(rows) else rows
    ledger.uplink(values.size, values.itemsize)
