"""Signals that end a run after the round in hand, so that it can go on later."""

import signal
import sys
import time

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
PATIENCE = 1.0  # seconds; a terminal and mpirun both pass on one Ctrl-C


class StopSignals:
    """Notes the signals that arrive inside of the ``with`` block, instead of ending the program.

    A second Ctrl-C ends it after all. Batch systems send SIGTERM more than once, which changes nothing.

    Parameters
    ----------
    speaks : bool
        Whether this rank says what it does.

    Attributes
    ----------
    received : str or None
        The first signal's name.
    """

    def __init__(self, speaks=False):
        self.speaks = speaks
        self.received = None
        self._since = 0.0

    def __enter__(self):
        """Begin to note."""
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_):
        """Leave the signals as they were."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = signal.Signals(number).name, now
            if self.speaks:
                print(f"fedmavg: {self.received}: stopping after this round", file=sys.stderr, flush=True)
        elif number == signal.SIGINT and now - self._since > PATIENCE:
            raise KeyboardInterrupt
