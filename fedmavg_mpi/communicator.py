"""The only place that touches MPI: counted operations on buffers, and waiting that leaves the core to others.

Where many ranks share the cores of one host, messages go straight between the server and each rank; else the MPI library relays them.

Every operation runs over a group of ranks that holds the server and is known to all ranks without traffic. All ranks call it, so
that all keep the same list of groups; one outside the group returns at once, whatever its buffer. With one process nothing is sent.
"""

import os
import sys
import time
import warnings
from collections import OrderedDict
from contextlib import contextmanager

import numpy as np

from fedmavg_mpi.cores import usable_cores
from fedmavg_mpi.errors import FedmavgError, LaunchError
from fedmavg_mpi.ledger import MpiLedger

SERVER = 0
TAG, STOP_TAG = 0, 1  # of all messages but those of ask_server_to_stop
MOST_CORES = 8192  # of a host, as in Linux
GROUPS_KEPT = 32  # communicators are a scarce resource of the MPI library
SPIN_SECONDS = 1e-4  # where every rank has a core of its own
CROWDED = 1.5  # ranks a core: from here on one that relays a message is likely to be waiting for its turn on the core
NAP_SHARE, LONGEST_NAP = 1 / 16, 5e-5  # of the time waited so far, so that little is lost by sleeping on; seconds


class FailedElsewhereError(Exception):
    """Another rank has an error to report; this one only has to leave."""


class Communicator:
    """Counted communication among the server and the workers.

    Parameters
    ----------
    world : mpi4py.MPI.Comm

    Attributes
    ----------
    rank, size : int
    everyone : tuple of int
        All ranks.
    ledger : MpiLedger
    ranks_per_core : float
        On this host.
    straight : bool
        Whether sums and broadcasts are messages between the server and each rank, and not the MPI library's; the same on all ranks.
    seconds_waited : float
        In which this rank had nothing to do but to wait for others.
    """

    def __init__(self, world):
        self._world = world
        self._groups = OrderedDict()
        self.rank = world.Get_rank()
        self.size = world.Get_size()
        self.everyone = tuple(range(self.size))
        self.ledger = MpiLedger()
        self.seconds_waited = 0.0
        self._requests_to_stop = 0  # sent from here; at the server, less those received
        self.ranks_per_core, alone_here = self._look_at_host()
        self.straight = alone_here and self.ranks_per_core >= CROWDED

    @property
    def is_server(self):
        """Whether this rank is the server."""
        return self.rank == SERVER

    def broadcast(self, buffer, kind, ranks):
        """The server's buffer to these ranks, in place.

        Parameters
        ----------
        buffer : ndarray
            C-contiguous, of the same shape and dtype on all ranks.
        kind : str
            One of :data:`fedmavg_mpi.ledger.KINDS`.
        ranks : tuple of int
            Receivers; the server is added.
        """
        group = self._group(ranks)
        if group is None:
            return
        self._spread(group, buffer)
        self._count(kind, sends=self.is_server, receives=not self.is_server, nbytes=buffer.nbytes)

    def reduce(self, buffer, kind, ranks):
        """The sum of these ranks' buffers, in place at the server, whose own buffer takes part."""
        group = self._group(ranks)
        if group is None:
            return
        self._add_up(group, buffer)
        self._count(kind, sends=not self.is_server, receives=self.is_server, nbytes=buffer.nbytes)

    def allreduce(self, buffer, kind, ranks):
        """The sum of the buffers of the server and these ranks, in place on each of them."""
        group = self._group(ranks)
        if group is None:
            return
        if self.straight:
            self._add_up(group, buffer)
            self._spread(group, buffer)
        else:
            self._wait(group.Iallreduce(self._in_place, buffer))
        self._count(kind, sends=True, receives=True, nbytes=buffer.nbytes)

    def gather(self, part, rows, kind, ranks=None):
        """The ranks' parts, one under the other in rank order, at the server.

        Parameters
        ----------
        part : ndarray (rows[rank] x ...)
            The trailing shape and the dtype are the same on all ranks.
        rows : sequence of int (ranks,)
            Rows of every rank, known to those who take part.
        kind : str
        ranks : tuple of int, optional
            Who takes part beside the server; by default the ranks with rows, which then are known to all.

        Returns
        -------
        ndarray (sum(rows) x ...) at the server, None elsewhere
        """
        rows, part = np.asarray(rows), np.ascontiguousarray(part)  # MPI would send another layout as it lies in memory
        ranks = np.flatnonzero(rows) if ranks is None else np.array(ranks, np.int64)
        whole = np.empty((int(rows.sum()), *part.shape[1:]), part.dtype) if self.is_server else None
        group = self._group(ranks)
        if group is None:
            return part.copy() if self.is_server else None
        per_row = int(np.prod(part.shape[1:], dtype=np.int64))
        counts = rows[sorted({SERVER, *ranks.tolist()})] * per_row
        target = None
        if self.is_server:
            displacements = np.concatenate([[0], np.cumsum(counts[:-1])])
            target = [whole, (counts, displacements)]
        self._wait(group.Igatherv([part, int(counts[group.Get_rank()])], target, root=0))
        if self.is_server:
            self.ledger.add(kind, received=whole.nbytes - part.nbytes)
        else:
            self.ledger.add(kind, sent=part.nbytes)
        return whole

    def exchange(self, outgoing, incoming, kind):
        """Messages from rank to rank; returns when all have arrived and all buffers are free again.

        Between two ranks messages arrive in the order in which they are listed. One to the rank itself is copied and costs nothing.

        Parameters
        ----------
        outgoing, incoming : list of (int, ndarray)
            The other rank and a C-contiguous buffer of each message; shape and dtype are the same at both ends.
        kind : str
        """
        requests = [self._world.Irecv(buffer, source=rank, tag=TAG) for rank, buffer in incoming if rank != self.rank]
        requests += [self._world.Isend(buffer, dest=rank, tag=TAG) for rank, buffer in outgoing if rank != self.rank]
        own = [[buffer for rank, buffer in side if rank == self.rank] for side in (incoming, outgoing)]
        for target, source in zip(*own, strict=True):
            np.copyto(target, source)
        for request in requests:
            self._wait(request)
        sent, received = (sum(buffer.nbytes for rank, buffer in side if rank != self.rank) for side in (outgoing, incoming))
        self.ledger.add(kind, sent=sent, received=received)

    def broadcast_text(self, text):
        """A text of the server's, on every rank (kind ``control``)."""
        data = np.frombuffer((text or "").encode(), np.uint8)
        length = np.array([data.size], np.int64)
        self.broadcast(length, "control", self.everyone)
        data = data.copy() if self.is_server else np.empty(int(length[0]), np.uint8)
        self.broadcast(data, "control", self.everyone)
        return data.tobytes().decode()

    @contextmanager
    def together(self):
        """Make an error of one rank everyone's: all leave the block, or all raise.

        Raises
        ------
        FedmavgError
            The error itself, on the first rank that has one.
        FailedElsewhereError
            On all others.
        """
        error = None
        try:
            yield
        except FedmavgError as raised:
            error = raised
        first = np.array([self.size if error is None else self.rank], np.int64)
        if self.size > 1:
            self._wait(self._world.Iallreduce(self._in_place, first, op=self._minimum))
            self._count("control", sends=True, receives=True, nbytes=first.nbytes)
        if first[0] == self.rank:
            raise error
        if first[0] < self.size:
            raise FailedElsewhereError

    @contextmanager
    def uncounted(self):
        """What goes on inside of the block is in no ledger."""
        before = self.ledger
        self.ledger = MpiLedger()
        try:
            yield
        finally:
            self.ledger = before

    def ask_server_to_stop(self):
        """Tell the server, without waiting, that this rank was told to stop."""
        self._world.Isend(np.empty(0, np.uint8), dest=SERVER, tag=STOP_TAG)
        self._requests_to_stop += 1

    def is_asked_to_stop(self):
        """Whether another rank has called :meth:`ask_server_to_stop` since the last look; at the server."""
        # Matched by the probe: MPICH may find one message by Iprobe and wait for ever for another in a Recv from any source, when some
        # ranks are on this node and some are not.
        message = self._world.Improbe(tag=STOP_TAG)
        if message is None:
            return False
        message.Recv(np.empty(0, np.uint8))
        self._requests_to_stop -= 1
        return True

    def leave(self, status):
        """All ranks end, each with this exit status, once they are all here.

        Parameters
        ----------
        status : int
            The same on all ranks.

        Returns
        -------
        int
            The status.
        """
        if self.size > 1:
            pending = np.array([self._requests_to_stop], np.int64)
            self._wait(self._world.Iallreduce(self._in_place, pending))
            unread = int(pending[0]) if self.is_server else 0  # a message that nobody has received is an error to MPI
            while unread:
                unread -= self.is_asked_to_stop()
            if status and "HYDI_CONTROL_FD" in os.environ:
                # MPICH's launcher kills what still runs when a rank ends with a status other than 0, and often reports 0 or 9 then; that
                # of an abort it passes on. All is done by now, so the abort's own words would mislead.
                sys.stdout.flush()
                sys.stderr.flush()
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
                self.abort(status)
        return status

    def abort(self, status):
        """End all ranks at once."""
        self._world.Abort(status)

    @property
    def _in_place(self):
        from mpi4py import MPI

        return MPI.IN_PLACE

    @property
    def _minimum(self):
        from mpi4py import MPI

        return MPI.MIN

    def _count(self, kind, sends, receives, nbytes):
        self.ledger.add(kind, sent=nbytes if sends else 0, received=nbytes if receives else 0)

    def _group(self, ranks):
        """The communicator of the server and these ranks; None on a rank outside, or if the server would be alone."""
        if self.size == 1:
            return None
        if ranks is self.everyone:
            return self._world
        key = tuple(sorted({SERVER, *map(int, ranks)}))
        if len(key) == 1:
            return None
        return self._world if len(key) == self.size else self._cached_group(key)

    def _cached_group(self, key):
        # Every rank keeps the same list of groups, its own or not, so that all members of one free it together.
        if key not in self._groups:
            member = self.rank in key
            self._groups[key] = self._world.Create_group(self._world.Get_group().Incl(key)) if member else None
            if len(self._groups) > GROUPS_KEPT:
                _, oldest = self._groups.popitem(last=False)
                if oldest is not None:
                    oldest.Free()
        self._groups.move_to_end(key)
        return self._groups[key]

    def _spread(self, group, buffer):
        """The server's buffer to all of a group."""
        if not self.straight:
            self._wait(group.Ibcast(buffer, root=0))
        elif self.is_server:
            for request in [group.Isend(buffer, dest=rank, tag=TAG) for rank in range(1, group.Get_size())]:
                self._wait(request)
        else:
            self._wait(group.Irecv(buffer, source=SERVER, tag=TAG))

    def _add_up(self, group, buffer):
        """The sum of all buffers of a group, in place at the server."""
        if not self.straight:
            mine, result = (self._in_place, buffer) if self.is_server else (buffer, None)
            self._wait(group.Ireduce(mine, result, root=0))
        elif self.is_server:
            part = np.empty_like(buffer)
            for rank in range(1, group.Get_size()):
                self._wait(group.Irecv(part, source=rank, tag=TAG))
                buffer += part
        else:
            self._wait(group.Isend(buffer, dest=SERVER, tag=TAG))

    def _wait(self, request):
        """Wait without holding the core: MPI itself waits by polling, which would starve the workers beside it.

        A rank that shares its core with another doesn't spin at all: it would keep from working the very rank that it waits for. Naps are
        short, since sums and broadcasts pass through ranks on their way: one that sleeps on delays all behind it.
        """
        start = time.perf_counter()
        while not request.Test():  # which moves what there is to move, and is no waiting
            before = time.perf_counter()
            waited = before - start
            if self.ranks_per_core <= 1 and waited < SPIN_SECONDS:
                os.sched_yield()
            else:
                time.sleep(min(NAP_SHARE * waited, LONGEST_NAP))
            self.seconds_waited += time.perf_counter() - before

    def _look_at_host(self):
        """Ranks a core on this host, and whether all ranks are here."""
        from mpi4py import MPI

        host = self._world.Split_type(MPI.COMM_TYPE_SHARED)
        cores = np.zeros(MOST_CORES, np.uint8)  # of all ranks together: a launcher may have bound each of them to its own
        cores[usable_cores()] = 1
        host.Allreduce(self._in_place, cores, op=MPI.MAX)
        n_ranks = host.Get_size()
        host.Free()
        return n_ranks / np.count_nonzero(cores), n_ranks == self.size


def connect():
    """The communicator of all ranks.

    Raises
    ------
    LaunchError
        No MPI library, or the launcher started more processes than the MPI library sees.
    """
    try:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a launcher of another library is refused below
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"no usable MPI library ({str(error).splitlines()[0]}); install the embedded one with pip install 'fedmavg_mpi[mpich]', "
            "or load your cluster's MPI"
        ) from None
    check_launch(MPI.COMM_WORLD.Get_size(), os.environ)
    return Communicator(MPI.COMM_WORLD)


def alone():
    """The communicator of this process by itself, whatever the launcher has started: to measure many that don't wait for each other."""
    from mpi4py import MPI

    return Communicator(MPI.COMM_SELF)


def launched_size(environment):
    """How many ranks the launcher says it started, and the variable that says so; (None, None) without a launcher."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        if environment.get(name, "").isdigit():
            return int(environment[name]), name
    return None, None


def launched_rank(environment):
    """The launcher's number of this process, 0 without one."""
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), 0)


def check_launch(size, environment):
    """Refuse to run as many single processes, each believing to be rank 0 of 1.

    Raises
    ------
    LaunchError
        The launcher and the MPI library don't belong together.
    """
    launched, name = launched_size(environment)
    if launched is not None and launched != size:
        raise LaunchError(
            f"the launcher started {launched} processes ({name}) and the MPI library sees {size}: they don't belong together; use the mpirun "
            "of the MPI library that mpi4py loads (see fedmavg doctor), or srun with the matching --mpi"
        )


def mpi_library():
    """Name and version of the MPI library in one line."""
    from mpi4py import MPI

    lines = [line.strip() for line in MPI.Get_library_version().replace("\x00", "").splitlines() if line.strip()]
    return " ".join(lines[0].replace("\t", " ").split())[:120]
