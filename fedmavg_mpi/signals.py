"""Signals: they end a command once what is half done is removed, and a run after the round in hand, so that it can go on later."""

import signal
import sys
import time
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
PATIENCE = 1.0  # seconds; a terminal and mpirun both pass on one Ctrl-C
WORKERS_PATIENCE = 5.0  # seconds for the server, which got the signal too, to remove what is half done and then end all


@contextmanager
def leaving():
    """A signal that arrives inside of the ``with`` block ends the program, once what is half done is removed.

    Further ones are ignored from then on: nothing interrupts that.
    """
    before = {number: signal.signal(number, _leave) for number in SIGNALS}
    sys.unraisablehook = _raise_again
    try:
        yield
    finally:
        sys.unraisablehook = sys.__unraisablehook__
        for number, handler in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # what is to end undisturbed does so
                signal.signal(number, handler)


def ignore():
    """No signal changes from here on how the program ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def behind(error):
    """The exception of a signal that this one is, or that a library has put it in place of; None where there is no such one."""
    while error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        error = error.__context__
    return error


def _raise_again(unraisable):
    """Python drops what is raised inside of a finalizer: an exception that is to end the program is raised anew, a moment later."""
    error = unraisable.exc_value
    if not isinstance(error, KeyboardInterrupt | SystemExit):
        sys.__unraisablehook__(unraisable)
        return

    def leave(number, frame):
        raise error

    signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def _leave(number, frame):
    ignore()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(f"fedmavg: stopped by {signal.Signals(number).name}")


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
