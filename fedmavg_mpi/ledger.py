"""The two ledgers: what the federated protocol moves, and what the ranks hand to MPI.

The protocol ledger counts messages between clients and server, whatever the number of ranks: it is the communication
cost of the paper's figures. The MPI ledger counts the buffers that this program passes to MPI, on every rank.
"""

import numpy as np

KINDS = ("model_down", "model_up", "step_size", "evaluation", "control")


class MpiLedger:
    """Bytes of the buffers that one rank has sent and received, by kind.

    Attributes
    ----------
    sent, received : dict of str to int
        Bytes so far, a Python integer a kind of :data:`KINDS`.
    """

    def __init__(self):
        self.sent = dict.fromkeys(KINDS, 0)
        self.received = dict.fromkeys(KINDS, 0)

    def add(self, kind, sent=0, received=0):
        """Count bytes."""
        self.sent[kind] += sent
        self.received[kind] += received

    def restore(self, array):
        """Take the bytes that :meth:`as_array` gave."""
        for side, row in zip((self.sent, self.received), array.tolist(), strict=True):
            side.update(zip(KINDS, row, strict=True))

    def as_array(self):
        """ndarray of int64 (2 x kinds): sent, received."""
        return np.array([[side[kind] for kind in KINDS] for side in (self.sent, self.received)], np.int64)


class ProtocolLedger:
    """Values and bytes between clients and server in one round, uplink and downlink apart."""

    def __init__(self):
        self.uplink_values = self.uplink_bytes = self.downlink_values = self.downlink_bytes = 0

    def include(self, other):
        """Count what another ledger counts."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def uplink(self, count, itemsize):
        """Count values that clients send."""
        self.uplink_values += int(count)
        self.uplink_bytes += int(count) * itemsize

    def downlink(self, count, itemsize):
        """Count values that the server sends."""
        self.downlink_values += int(count)
        self.downlink_bytes += int(count) * itemsize
