"""Files that lie in a folder (as Path) or in a zip (as zipfile.Path), alike."""

import gzip
import lzma
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

from fedmavg_mpi.datasets.files import files_in, open_bytes
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.text import one_line


def is_zip(path):
    """Whether a path is a zip, or says so."""
    return path.suffix.lower() == ".zip" or (path.is_file() and zipfile.is_zipfile(path))


def files_below(path):
    """The files of a folder, or of a zip with all of its folders, without hidden ones."""
    if path.is_dir():
        return files_in(path)
    with _unzipping(path):
        root = zipfile.Path(path)
        files = [root / name for name in root.root.namelist() if not name.endswith("/")]
    return [file for file in files if base(file)[0] not in ".~"]


def files_beside(file):
    """The files in the folder of a file."""
    if isinstance(file, Path):
        return files_in(file.parent)
    with _unzipping(file):
        return [other for other in file.parent.iterdir() if other.is_file()]


def base(file):
    """A file's name in lower case, without ``.gz``."""
    return file.name.lower().removesuffix(".gz")


@contextmanager
def open_file(file):
    """Open it, decompressed where it is gzip."""
    if isinstance(file, Path):
        with open_bytes(file) as stream:
            yield stream
        return
    with _unzipping(file), file.open("rb") as stream:
        yield gzip.open(stream) if file.name.lower().endswith(".gz") else stream


@contextmanager
def _unzipping(path):
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        found = f"the zip is locked or compressed in an unknown way ({one_line(str(error), 200)})"
        raise DataError(f"{path}: {found}; unpack it yourself") from None
    except (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        found = f"truncated or corrupt zip, or not one ({one_line(str(error), 200)})"
        raise DataError(f"{path}: {found}; fetch or write it again") from None
