"""Ratings of items by users: the MovieLens sets as GroupLens serves them (unpacked or zip), and tables with named columns."""

import csv
import gzip
import hashlib
import io
import lzma
import sys
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import sparse

from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.files import files_in, locate, open_bytes, quote
from fedmavg_mpi.datasets.ratings_files import COLUMNS, INTEGER, read_ratings
from fedmavg_mpi.errors import DataError

URL = "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip"
RATINGS_SHA256 = "aa289ca83157595d0df6aea1be6a4ded676ddc4385472e8313a8ed9805352646"
RATINGS_FILES = ("ratings.csv", "u.data", "ratings.dat")
OTHER_FILES = ("movies.csv", "links.csv", "tags.csv", "genome-scores.csv", "genome-tags.csv")
TITLE_FILES = {"\t": "u.item", "::": "movies.dat"}
TITLE_COLUMNS = ("title", "name")


def load(config, seed):
    """Read ratings and, where a file of items lies beside them, titles.

    Parameters
    ----------
    config : DataConfig
        ``path``: a file, or a folder or zip with one ``ratings.csv`` (ml-latest, ml-25m), ``u.data`` (ml-100k), ``ratings.dat`` (ml-1m) or
        else one other csv or tsv; gzip is fine. ``rating_minimum``, ``rating_maximum``: the range that ratings must lie in.
    seed : int
        Not used: nothing is drawn.

    Returns
    -------
    Dataset
        Users x items, a csr_array of float64 that holds every rating, those of 0 too; of several ratings of an item by a user the
        last in time, or else in the file. Names are the ids as they are spelled (``7`` and ``007`` are two), whole
        numbers first and by value, then other text by code points. Titles are from ``movies.csv``, ``u.item`` or ``movies.dat``.

    Raises
    ------
    ConfigError, DataError
        No path, no ratings file or several, or a file that can't be used.
    """
    path = locate(config.path, "data.path")
    file = _find_ratings(path) if path.is_dir() or _is_zip(path) else path
    limits = (config.rating_minimum, config.rating_maximum)
    with _open(file) as stream:
        ratings = read_ratings(stream, str(file), limits if limits != (0, 0) else None)
    samples, users, items, n_dropped = _matrix(ratings)
    if n_dropped:
        print(f"{n_dropped} duplicate ratings: kept the last of each", file=sys.stderr)
    if limits == (0, 0):
        limits = (float(samples.data.min()), float(samples.data.max()))
    known = _titles(file.parent, "movies.csv" if ratings.layout.has_header else TITLE_FILES[ratings.layout.delimiter])
    titles = None if known is None else [known.get(item, "") for item in items]
    return Dataset(samples, users, items, rating_range=limits, titles=titles)


def fetch(folder):
    """Download ml-latest-small, unless it is there already.

    The set is GroupLens's, for research: see its README.txt for the terms, which go with every copy, and cite Harper and Konstan,
    The MovieLens Datasets: History and Context, ACM TiiS 5 (4), 2015.

    Parameters
    ----------
    folder : path-like
        Made where it doesn't exist.

    Returns
    -------
    Path
        The zip, which :func:`load` reads as it is.

    Raises
    ------
    DataError
        No pooch, no network, or another set than the one expected.
    """
    path = Path(folder) / URL.rpartition("/")[2]
    advice = f"put {path.name} from {URL} into {folder}, or give --path to a copy elsewhere"
    if fresh := not path.exists():
        try:
            import pooch
        except ImportError:
            raise DataError(f"pooch isn't installed, expected it for the download; pip install pooch, or {advice}") from None
        pooch.get_logger().setLevel("ERROR")
        try:
            pooch.retrieve(URL, known_hash=None, fname=path.name, path=folder)
        except (OSError, ValueError) as error:  # those of requests are OSError
            raise DataError(f"{URL}: the download failed ({_short(error)}), expected a network connection; {advice}") from None
    try:
        file = _find_ratings(path)
        with _open(file) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != RATINGS_SHA256:
            raise DataError(
                f"{file}: the SHA-256 is {found}, expected {RATINGS_SHA256}: GroupLens changed the set, or the download"
                f" is broken; remove the file and fetch it again, or give --path to use a copy as it is"
            )
    except DataError:
        if fresh:
            path.unlink(missing_ok=True)
        raise
    return path


def _matrix(ratings):
    """Users x items, the names of both in order, and how many duplicates were dropped."""
    users, user_rank = _in_order(ratings.users)
    items, item_rank = _in_order(ratings.items)
    key = user_rank[ratings.user] * np.int64(len(items)) + item_rank[ratings.item]
    order = np.argsort(key, kind="stable")
    key = key[order]
    last = np.append(key[1:] != key[:-1], True)
    n_dropped = int(last.size - np.count_nonzero(last))
    if n_dropped and ratings.time is not None:
        several = ~last | np.append(False, ~last[:-1])
        rows = order[several]
        order[several] = rows[np.lexsort((ratings.time[rows], key[several]))]
    if n_dropped:
        order, key = order[last], key[last]
    shape = len(users), len(items)
    index = np.int32 if max(key.size, *shape) < 2**31 else np.int64
    indptr = np.searchsorted(key, np.arange(shape[0] + 1) * np.int64(shape[1])).astype(index)
    key %= shape[1]
    return sparse.csr_array((ratings.rating[order], key.astype(index), indptr), shape=shape), users, items, n_dropped


def _in_order(names):
    """The names in the order of :func:`load`, and each one's place in it."""
    keys = [(0, int(name), name) if INTEGER.fullmatch(name) else (1, 0, name) for name in names]
    order = sorted(range(len(names)), key=keys.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return [names[i] for i in order], rank


def _is_zip(path):
    return path.suffix.lower() == ".zip" or (path.is_file() and zipfile.is_zipfile(path))


def _find_ratings(path):
    """The one ratings file in a folder (a Path) or zip (a zipfile.Path); of those in a zip's folders the least deep."""
    if path.is_dir():
        files = files_in(path)
    else:
        with _unzipping(path):
            root = zipfile.Path(path)
            files = [root / name for name in root.root.namelist() if not name.endswith("/")]
    files = [file for file in files if _base(file)[0] not in ".~"]
    found = [file for file in files if _base(file) in RATINGS_FILES]
    found = found or [file for file in files if _base(file).endswith((".csv", ".tsv")) and _base(file) not in OTHER_FILES]
    depths = [str(file).count("/") for file in found]
    found = [file for file, depth in zip(found, depths, strict=True) if depth == min(depths)]
    if len(found) != 1:
        what = f"{len(found)} ratings files" if found else f"no ratings file among {len(files)} files"
        names = [quote(file.name) for file in found or files]
        listed = f" ({', '.join(names[:10])}{', ...' if len(names) > 10 else ''})" if names else ""
        raise DataError(
            f"{path}: {what}{listed}, expected one {', '.join(RATINGS_FILES)} or other csv or tsv; give the path of the file or zip itself"
        )
    return found[0]


def _base(file):
    return file.name.lower().removesuffix(".gz")


@contextmanager
def _open(file):
    """Open a file of a folder or zip, decompressed where it is gzip."""
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
        raise DataError(
            f"{path}: the zip is locked or compressed in an unknown way ({_short(error)}); unpack it yourself"
        ) from None
    except (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise DataError(f"{path}: truncated or corrupt zip, or not one ({_short(error)}); fetch or write it again") from None


def _titles(folder, name):
    """The titles by item id from the file called ``name`` in the folder of the ratings, or None where there is no such file."""
    files = [file for file in (folder / name, folder / f"{name}.gz") if file.is_file()]
    if not files:
        return None
    with _open(files[0]) as stream:
        data = stream.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if name == "movies.csv":
        rows = _title_columns(files[0], text)
    else:
        rows = [line.split("|" if name == "u.item" else "::")[:2] for line in text.split("\n")]
    return {row[0].strip(): "".join(c if c.isprintable() else " " for c in row[1]).strip() for row in rows if len(row) > 1}


def _title_columns(where, text):
    """Item and title of each row of a csv with named columns."""
    try:
        header, *rows = csv.reader(io.StringIO(text, newline=""))
    except (csv.Error, ValueError) as error:
        raise DataError(f"{where}: not a table of titles ({_short(error)}); write it again, or move it away") from None
    names = [cell.strip().lower().replace("_", "") for cell in header]
    item = next((names.index(name) for name in (*COLUMNS["item"], "id") if name in names), None)
    title = next((names.index(name) for name in TITLE_COLUMNS if name in names), None)
    if item is None or title is None:
        listed = ", ".join(map(quote, header[:20]))
        raise DataError(f"{where}: columns {listed}, expected movieId and title; name them in line 1, or move the file away")
    return [[row[item], row[title]] for row in rows if len(row) > max(item, title)]


def _short(error):
    return "".join(c if c.isprintable() else " " for c in str(error))[:200]
