"""Ratings of items by users: the MovieLens sets as GroupLens serves them (unpacked or zip), and tables with named columns."""

import hashlib
import sys
from pathlib import Path

import numpy as np
from scipy import sparse

from fedmavg_mpi.datasets.archives import base, files_below, is_zip, open_file
from fedmavg_mpi.datasets.dataset import Dataset
from fedmavg_mpi.datasets.files import locate, quote
from fedmavg_mpi.datasets.ratings_files import INTEGER, read_ratings
from fedmavg_mpi.datasets.titles import read_titles
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.text import one_line

URL = "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip"
RATINGS_SHA256 = "aa289ca83157595d0df6aea1be6a4ded676ddc4385472e8313a8ed9805352646"
RATINGS_FILES = ("ratings.csv", "u.data", "ratings.dat")
OTHER_FILES = ("movies.csv", "links.csv", "tags.csv", "genome-scores.csv", "genome-tags.csv")


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
    file = _find_ratings(path) if path.is_dir() or is_zip(path) else path
    limits = (config.rating_minimum, config.rating_maximum)
    with open_file(file) as stream:
        ratings = read_ratings(stream, str(file), limits if limits != (0, 0) else None)
    samples, users, items, n_dropped = _matrix(ratings)
    if n_dropped:
        print(f"{n_dropped} duplicate ratings: kept the last of each", file=sys.stderr)
    if limits == (0, 0):
        limits = (float(samples.data.min()), float(samples.data.max()))
    known = read_titles(file, ratings.layout)
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
            raise DataError(
                f"{URL}: the download failed ({one_line(str(error), 200)}), expected a network connection; {advice}"
            ) from None
    try:
        file = _find_ratings(path)
        with open_file(file) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != RATINGS_SHA256:
            raise DataError(
                f"{file}: the SHA-256 is {found}, expected {RATINGS_SHA256}: GroupLens changed the set, or the download"
                f" is broken; remove the file and fetch it again, or give --path to use a copy as it is"
            )
    except DataError as error:
        if not fresh:
            raise DataError(f"{error}; this one was there before: remove it to have {path.name} downloaded") from None
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


def _find_ratings(path):
    """The one ratings file in a folder (a Path) or zip (a zipfile.Path); of those in a zip's folders the least deep."""
    files = files_below(path)
    found = [file for file in files if base(file) in RATINGS_FILES]
    found = found or [file for file in files if base(file).endswith((".csv", ".tsv")) and base(file) not in OTHER_FILES]
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
