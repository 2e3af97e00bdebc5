"""Ratings as MovieLens serves them, few of them, and a job on them."""

import numpy as np

JOB = """
[data]
source = "movielens"
path = "{path}"
[partition]
scheme = "by_user"
[model]
kind = "ratings"
n_components = 2
[stop]
max_rounds = 8
[run]
progress = "off"
save_local_factors = true
"""
USERS = ("3", "1000", "ann", "42", "7")
ITEMS = ("70", "9", "alpha", "b,c", "12")
RANGE = ("--set", "data.rating_minimum=0.5", "--set", "data.rating_maximum=6")


def write_ratings(folder):
    """``ratings.csv`` and ``movies.csv``, ids with gaps and words among them; gives who has rated what."""
    random = np.random.default_rng(2)
    rated = {user: sorted(random.choice(5, random.integers(1, 5), replace=False)) for user in USERS}
    lines = ["userId,movieId,rating,timestamp"]
    for user, items in rated.items():
        lines += [f'{user},"{ITEMS[i]}",{random.integers(1, 11) / 2},{random.integers(1000)}' for i in items]
    (folder / "ratings.csv").write_text("\r\n".join(lines) + "\r\n")
    (folder / "movies.csv").write_text('movieId,title,genres\n9,"Nine, the film (2009)",Drama\nalpha,Alpha,Drama\n')
    return rated


def write_job(path, data):
    """A job on these data."""
    path.write_text(JOB.format(path=data))
    return str(path)
