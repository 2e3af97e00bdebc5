"""Rounding of what clients send, with what is left over kept for the next time; compiled."""

import numpy as np

from fedmavg_mpi.kernels.jit import jit


@jit
def round_to_float32(copy, w, leftover, out):
    """``out <- round(copy - w + leftover)`` and ``leftover <- `` what the rounding took away, in place.

    Parameters
    ----------
    copy, w, leftover : ndarray (n,)
    out : ndarray of float32 (n,)
    """
    for i in range(out.size):
        change = copy[i] - w[i] + leftover[i]
        out[i] = change
        leftover[i] = change - out[i]


@jit
def round_to_bfloat16(copy, w, leftover, out):
    """As :func:`round_to_float32`, to bfloat16: the upper half of a float32, rounded to the nearest, of two equally near to the even one.

    Parameters
    ----------
    copy, w, leftover : ndarray (n,)
    out : ndarray of uint16 (n,)
        The bits.
    """
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    for i in range(out.size):
        change = copy[i] - w[i] + leftover[i]
        value[0] = change
        upper = (np.int64(bits[0]) + 0x7FFF + ((np.int64(bits[0]) >> 16) & 1)) >> 16
        out[i] = upper
        bits[0] = upper << 16
        leftover[i] = change - value[0]
