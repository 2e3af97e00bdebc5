"""Files and folders of any format: found, listed, opened; what is wrong with one becomes a DataError in a line."""

import gzip
import reprlib
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedmavg_mpi.config import find_data
from fedmavg_mpi.errors import ConfigError, DataError
from fedmavg_mpi.text import one_line

_repr = reprlib.Repr()
_repr.maxstring = 60
quote = _repr.repr


def locate(path, key, beside=""):
    """The existing file or folder that a configuration key names, looked for as any data, and in the folder ``beside``."""
    if not path:
        raise ConfigError(f'{key} = "": expected the path of a file or folder')
    try:
        for found in (find_data(path), Path(beside, path)):
            if found.exists():
                return found
    except OSError as error:
        raise DataError(f"{key} = {quote(path)}: {error.strerror}; expected a path that can be read") from None
    raise DataError(f"{path}: no such file or folder, neither below $FEDMAVG_DATA nor as it stands; set {key} to one that exists")


def files_in(folder):
    """The folder's files by name, without hidden ones."""
    try:
        return sorted(file for file in Path(folder).iterdir() if file.is_file() and not file.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; expected a folder that can be listed") from None


def listed(files):
    """How messages name several files: the first ten."""
    return ", ".join(file.name for file in files[:10]) + (", ..." if len(files) > 10 else "")


@contextmanager
def open_bytes(path):
    """Open a file, decompressed where it is gzip; what goes wrong in the file while it is read is one DataError."""
    path = Path(path)
    try:
        if not path.is_file():
            what = "a folder" if path.is_dir() else "not a regular file"
            raise DataError(f"{path}: {what}, expected a file; give the path of the file itself")
        with open(path, "rb") as stream:
            magic = stream.read(2)
        zipped = magic == b"\x1f\x8b"
        if not magic:
            raise DataError(f"{path}: the file is empty, expected data; fetch or write it again")
        if path.suffix.lower() == ".gz" and not zipped:
            raise DataError(f"{path}: not gzip, though its name ends in .gz; rename it or compress it")
        with gzip.open(path) if zipped else open(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or corrupt gzip ({error}); fetch or write it again") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}; give a file that can be read") from None


@contextmanager
def parsing(path, what):
    """Make one DataError of what the parsers of numpy and scipy raise for a broken file, which is anything at all."""
    try:
        yield
    except (MemoryError, OSError):  # the machine's or the file system's fault
        raise
    except Exception as error:
        reason = one_line(str(error), 200)
        if "allow_pickle" in reason:
            reason = "it holds pickled objects, which may run code and aren't read"
        raise DataError(f"{path}: not a valid {what} ({reason}), expected a matrix of numbers; write it again") from None


def read_npy(path):
    """The array of an npy file."""
    with open_bytes(path) as stream, parsing(path, "npy file"):
        return np.lib.format.read_array(stream, allow_pickle=False)
