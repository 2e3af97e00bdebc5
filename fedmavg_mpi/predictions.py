"""Answers from a finished recommendation run, in the users' and items' own ids."""

import numpy as np

from fedmavg_mpi import results
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.models import ratings

DATASETS = ("users/ids", "users/known", "users/rated_offsets", "users/rated_items", "items/ids", "items/known")
NUMBERS = ("mean_rating", "biases", "rating_minimum", "rating_maximum")  # attributes


class Predictor:
    """A run that kept its local factors.

    Parameters
    ----------
    directory : path-like
        The run directory.

    Raises
    ------
    DataError
        No finished run, none of ratings, or one without local factors or without finite ones.
    """

    def __init__(self, directory):
        self.directory = directory
        self.attributes, self.data = results.read(directory)
        if "users/ids" not in self.data:
            raise DataError(f"{directory}: not a run on ratings; give the directory of one with model.kind = 'ratings'")
        if "factors/H" not in self.data:
            raise DataError(f"{directory}: the users' factors were not kept; run again with --set run.save_local_factors=true")
        self._check()
        self.users = {name: p for p, name in enumerate(self._names("users/ids"))}
        self.item_ids = self._names("items/ids")
        self.items = {name: i for i, name in enumerate(self.item_ids)}
        self.titles = self._names("items/titles") if "items/titles" in self.data else [""] * len(self.item_ids)

    def _check(self):
        """Raise DataError where answers would be no numbers, or parts of them are missing or don't fit."""
        missing = [name for name in DATASETS if name not in self.data]
        missing += [name for name in NUMBERS if not isinstance(self.attributes.get(name), np.number | np.bool_)]
        if missing:
            raise DataError(f"{self.directory}: the run file has no {', '.join(missing)}; run it again")
        numbers = [self.data["factors/W"], self.data["factors/H"], *(self.attributes[name] for name in NUMBERS)]
        if not all(np.isfinite(part).all() for part in numbers):
            raise DataError(
                f"{self.directory}: the factors are not finite ({self.attributes['stop_reason']}), expected numbers; run again with a "
                "larger algorithm.curvature_factor_w or a lower algorithm.q2"
            )
        offsets, items = self.data["users/rated_offsets"], self.data["users/rated_items"]
        rises = offsets[0] == 0 and offsets[-1] == items.size and (np.diff(offsets) >= 0).all()
        if not rises or items.size and not 0 <= items.min() <= items.max() < len(self.data["items/ids"]):
            raise DataError(f"{self.directory}: what users have rated doesn't fit the run's users and items; run it again")

    def _names(self, path):
        return [name.decode(errors="replace") for name in self.data[path]]

    def recommend(self, user, n):
        """The items that a user would rate highest, the ones it has rated left out.

        Parameters
        ----------
        user : str
            The user's own id.
        n : int

        Returns
        -------
        list of tuple (item id, title or "", predicted rating)
        """
        p = self._find(self.users, user, "user")
        predicted = self._predict(p)
        begin, end = self.data["users/rated_offsets"][p : p + 2]
        predicted[self.data["users/rated_items"][begin:end]] = -np.inf
        best = np.argsort(-predicted, kind="stable")[:n]
        return [(self.item_ids[i], self.titles[i], float(predicted[i])) for i in best if np.isfinite(predicted[i])]

    def predict(self, user, item):
        """What a user would give to an item, both by their own ids."""
        p, i = self._find(self.users, user, "user"), self._find(self.items, item, "item")
        return float(self._predict(p)[i])

    def _predict(self, p):
        known, low, high = self.data["users/known"][p], self.attributes["rating_minimum"], self.attributes["rating_maximum"]
        return ratings.predict(
            self.data["factors/W"],
            self.data["factors/H"][:, p],
            self.attributes["biases"],
            self.attributes["mean_rating"],
            (low, high),
            known,
            self.data["items/known"],
        )

    def _find(self, known, name, kind):
        if name not in known:
            some = ", ".join(list(known)[:5])
            raise DataError(f"{self.directory}: no {kind} {name!r} among the {len(known)} of this run (as in {some}, ...)")
        return known[name]
