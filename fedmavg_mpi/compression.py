"""Uploads in fewer bits: each client sends how its W_p differs from W, rounded, and makes up for it the next time."""

import numpy as np

from fedmavg_mpi.aggregation import Gather
from fedmavg_mpi.kernels import rounding

FORMATS = {"float32": (np.float32, rounding.round_to_float32), "bfloat16": (np.uint16, rounding.round_to_bfloat16)}


class GatherRounded(Gather):
    """As :class:`Gather`, of the changes W_p - W in another precision, with error feedback (Karimireddy et al. 2019, Algorithm 1).

    What the rounding of a client's change leaves over is added to its next one, so that no part of a change is lost for good.

    Parameters
    ----------
    comm, placement
        As in :class:`Gather`.
    upload_dtype : str
        One of :data:`FORMATS`.

    Attributes
    ----------
    upload_itemsize : int
        Bytes of a value that a client sends.
    leftover : ndarray (clients here x K x M) or None
        What roundings have left over; none before the first.
    """

    def __init__(self, comm, placement, upload_dtype):
        super().__init__(comm, placement)
        self.wire_dtype, self.round = FORMATS[upload_dtype]
        self.upload_itemsize = np.dtype(self.wire_dtype).itemsize
        self.leftover = None

    def contribution(self, shard, draw, curvature, steps):
        """A function of client indices here that gives their rounded changes. Parameters as in :class:`Reduce`."""
        if self.leftover is None:
            self.leftover = np.zeros((self.n_clients, *shard.w.shape), shard.w.dtype)

        def changes(here):
            copies = shard.client_models(here, curvature, steps)
            out = np.empty(copies.shape, self.wire_dtype)
            for i, client in enumerate(here):
                self.round(copies[i].ravel(), shard.w.ravel(), self.leftover[client].ravel(), out[i].ravel())
            return out

        return changes

    def average(self, part, draw, shard):
        """As in :class:`Gather`."""
        total = super().average(part, draw, shard)
        if total is not None:
            total += shard.w
        return total

    def add(self, shard, total, weights, changes):
        """Add weighted changes to a total, one after the other."""
        for weight, change in zip(weights, changes, strict=True):
            total += total.dtype.type(weight) * widened(change)

    def state_by_client(self):
        """What a checkpoint keeps of each client here: dict of str to ndarray (clients here x ...)."""
        return {} if self.leftover is None else {"leftover": self.leftover}

    def restore_by_client(self, state):
        """Take what :meth:`state_by_client` gave."""
        self.leftover = state.get("leftover")


def widened(values):
    """Rounded values as numbers to count with: float32 as they are, the bits of bfloat16 as float32."""
    return (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values
