"""Checkpoints: the whole state of a run after a round, from which it goes on bit for bit.

``DIR/checkpoint/round-NNNNNNNN/`` is one generation: ``rank-NNNN.h5``, a file a rank with the private state of its clients, a row a sample in
client order; ``server.h5`` with the server's state, the rows of each rank and the digest of its file; and, written last, ``server.sha256``
with the digest of that one. No private state passes through another rank. Two generations are kept.
"""

import hashlib
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from fedmavg_mpi.communicator import FailedElsewhereError
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.results import CHECKPOINT_FOLDER
from fedmavg_mpi.store import reason, written_aside

FORMAT = "fedmavg_mpi checkpoint"
VERSION = 2
SERVER_FILE, DIGEST_FILE = "server.h5", "server.sha256"
GENERATIONS = 2


class Checkpoints:
    """The checkpoints of one run directory. All ranks make the same calls.

    Parameters
    ----------
    comm : Communicator
    directory : path-like
        The run directory, which every rank sees.
    placement : Placement
    identity : str
        What a run must have in common with a checkpoint to go on from it, a line a fact.
    """

    def __init__(self, comm, directory, placement, identity):
        self.comm, self.placement, self.identity = comm, placement, identity
        self.folder = Path(directory) / CHECKPOINT_FOLDER
        self.counts = {"private": placement.rows, "by_client": np.diff(placement.cut)}  # of every rank

    def write(self, s, server_state, rank_state, private, by_client):
        """Keep the state after round ``s``, complete or not at all; what that takes is in no ledger.

        Parameters
        ----------
        s : int
        server_state : dict of str to ndarray
            Read at the server only.
        rank_state : dict of str to ndarray
            This rank's own.
        private : dict of str to ndarray (samples here x ...)
            Of this rank's clients.
        by_client : dict of str to ndarray (clients here x ...)
            Likewise.

        Raises
        ------
        DataError
            It can't be written.
        """
        generation = self.folder / f"round-{s:08d}"
        with self.comm.uncounted():
            with self.comm.together():
                if self.comm.is_server:
                    with _writing(generation):
                        shutil.rmtree(generation, ignore_errors=True)  # of a run that was killed while it wrote
                        generation.mkdir(parents=True)
            with self.comm.together():
                parts = {f"rank/{name}": values for name, values in rank_state.items()}
                parts |= {f"private/{name}": values for name, values in private.items()}
                parts |= {f"by_client/{name}": values for name, values in by_client.items()}
                digest = _write(generation / _part(self.comm.rank), parts, "")
            digests = self.comm.gather(np.frombuffer(digest, np.uint8)[None], np.ones(self.comm.size, np.int64), "control")
            with self.comm.together():
                if self.comm.is_server:
                    parts = {**server_state, "parts/digests": digests}
                    parts |= {f"parts/{kind}": counts for kind, counts in self.counts.items()}
                    _write_digest(generation / DIGEST_FILE, _write(generation / SERVER_FILE, parts, self.identity))
                    self._remove_all_but(self._generations()[:GENERATIONS])

    def latest(self):
        """The newest state that is whole.

        Returns
        -------
        (server_state, rank_state, private, by_client), as given to :meth:`write`, or None
            None where there is no checkpoint. ``rank_state`` is empty for a rank that the run didn't have.

        Raises
        ------
        DataError
            There are checkpoints, and none that this run can go on from.
        """
        with self.comm.uncounted():
            names = self.comm.broadcast_text(
                "\n".join(path.name for path in self._generations()) if self.comm.is_server else None
            )
            names = names.split("\n") if names else []
            for i, name in enumerate(names):
                try:
                    with self.comm.together():
                        state = self._read(self.folder / name)
                    return state
                except (DataError, FailedElsewhereError) as error:
                    if i == len(names) - 1:
                        raise
                    if isinstance(error, DataError):
                        fault = str(error).partition(";")[0]  # what to do about it is for the last one
                        print(f"fedmavg: {fault}; trying the checkpoint before it", file=sys.stderr, flush=True)
        return None

    def remove(self):
        """Remove all checkpoints: the run is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _generations(self):
        """Folders that were written to the end, the newest first."""
        return sorted((path.parent for path in self.folder.glob(f"round-*/{DIGEST_FILE}")), reverse=True)

    def _remove_all_but(self, kept):
        for path in self.folder.glob("round-*"):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _read(self, generation):
        server_state, identity = _read(generation / SERVER_FILE, _read_digest(generation / DIGEST_FILE))
        self._check_identity(generation, identity)
        digests = server_state.pop("parts/digests")
        theirs = {kind: _ranges(server_state.pop(f"parts/{kind}")) for kind in self.counts}
        ours = {kind: _ranges(counts)[self.comm.rank] for kind, counts in self.counts.items()}
        rank_state, pieces = {}, {kind: {} for kind in self.counts}
        for rank, digest in enumerate(digests):
            own = rank == self.comm.rank and len(digests) == self.comm.size
            shared = {kind: _overlap(ranges[rank], ours[kind]) for kind, ranges in theirs.items()}
            if not own and not any(map(len, shared.values())):
                continue
            part, _ = _read(generation / _part(rank), digest.tobytes())
            for path, values in part.items():
                kind, name = path.split("/", 1)
                if kind in pieces:
                    begin = theirs[kind][rank].start
                    pieces[kind].setdefault(name, []).append(values[shared[kind].start - begin : shared[kind].stop - begin])
                elif own:
                    rank_state[name] = values
        whole = ({name: np.concatenate(parts) for name, parts in found.items()} for found in pieces.values())
        return server_state, rank_state, *whole

    def _check_identity(self, generation, identity):
        theirs, ours = identity.splitlines(), self.identity.splitlines()
        if differing := first_difference(theirs, ours):
            there, here = differing
            raise DataError(
                f"{generation}: checkpoint of another run, with {there} where this one has {here}; give that run's configuration, "
                "or another --out"
            )
        if len(theirs) != len(ours):
            raise DataError(
                f"{generation}: checkpoint of another version of fedmavg_mpi; choose another --out, or --force to start again"
            )


def first_difference(theirs, ours):
    """The first fact of two runs' lists that isn't the same in both: (theirs, ours), or None."""
    return next(((there, here) for there, here in zip(theirs, ours, strict=False) if there != here), None)


def _ranges(counts):
    """Where each rank's rows begin and end, from how many each has: list of range."""
    ends = np.cumsum(counts).tolist()
    return [range(end - count, end) for end, count in zip(ends, np.asarray(counts).tolist(), strict=True)]


def _overlap(one, other):
    """What two ranges share, empty within the first where that is nothing."""
    begin = max(one.start, other.start)
    return range(begin, min(one.stop, other.stop)) if begin < min(one.stop, other.stop) else range(one.start, one.start)


def _part(rank):
    return f"rank-{rank:04d}.h5"


@contextmanager
def _writing(path):
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: can't be written ({reason(error)}); free some space or choose another --out") from None


def _write(path, datasets, identity):
    """Write a file, whole on the disk before it gets its name; returns the SHA-256 of its bytes."""
    with written_aside(path) as aside:
        with h5py.File(aside, "w") as file:
            file.attrs.update(format=FORMAT, version=VERSION, identity=identity)
            for name, values in datasets.items():
                file[name] = values
        with open(aside, "rb+") as written:
            os.fsync(written.fileno())
            return hashlib.file_digest(written, "sha256").digest()


def _write_digest(path, digest):
    """Write the digest of a file, likewise."""
    with written_aside(path) as aside, open(aside, "w") as file:
        file.write(digest.hex())
        file.flush()
        os.fsync(file.fileno())


def _read(path, digest):
    """A file's (datasets, identity), if its bytes are those that have this digest.

    Nothing else looks at a file before that: on damaged ones the HDF5 library may loop for ever or crash.

    Raises
    ------
    DataError
    """
    datasets = {}
    try:
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").digest() != digest:
                raise DataError(f"{path}: cut or damaged checkpoint; --force to start again")
        with h5py.File(path, "r", locking=False) as file:
            if file.attrs.get("format") != FORMAT or file.attrs["version"] != VERSION:
                raise DataError(f"{path}: not a checkpoint of version {VERSION}; choose another --out, or --force to start again")
            identity = file.attrs["identity"]
            file.visititems(lambda name, item: datasets.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    except FileNotFoundError:
        raise DataError(f"{path}: missing from the checkpoint; --force to start again") from None
    except (OSError, LookupError, RuntimeError, ValueError, TypeError) as error:
        raise DataError(f"{path}: can't be read ({reason(error)}); --force to start again") from None
    return datasets, identity


def _read_digest(path):
    """The digest that :func:`_write_digest` wrote; of nothing where it can't be read."""
    try:
        return bytes.fromhex(path.read_text())
    except (OSError, ValueError):
        return b""
