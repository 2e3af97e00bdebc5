"""Merging two copies of W row by row, compiled."""

from fedmavg_mpi.kernels.jit import jit


@jit
def merge_rows(ages, w, received_ages, received, rows=None):
    """(t, w_i) <- (max(t, t'), (t w_i + t' w_i') / (t + t')) for each received row of age t' > 0, in place.

    Parameters
    ----------
    ages : ndarray of int32 (items,)
        t.
    w : ndarray (items x L)
    received_ages : ndarray of int32 (n,)
        t'.
    received : ndarray (n x L)
    rows : ndarray of int (n,), optional
        Which rows were received; by default all in their order.
    """
    for j in range(received_ages.size):
        i = j if rows is None else rows[j]
        if received_ages[j] > 0:
            share = received_ages[j] / (ages[i] + received_ages[j])
            theirs, ours = w.dtype.type(share), w.dtype.type(1 - share)
            for a in range(w.shape[1]):
                w[i, a] = ours * w[i, a] + theirs * received[j, a]
            ages[i] = max(ages[i], received_ages[j])
