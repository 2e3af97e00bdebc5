"""Answers from a finished recommendation run, in the users' and items' own ids."""

import numpy as np

from fedmavg_mpi import results
from fedmavg_mpi.errors import DataError
from fedmavg_mpi.models import ratings


class Predictor:
    """A run that kept its local factors.

    Parameters
    ----------
    directory : path-like
        The run directory.

    Raises
    ------
    DataError
        No finished run, none of ratings, or one without local factors.
    """

    def __init__(self, directory):
        self.directory = directory
        self.attributes, self.data = results.read(directory)
        if "users/ids" not in self.data:
            raise DataError(f"{directory}: not a run on ratings; give the directory of one with model.kind = 'ratings'")
        if "factors/H" not in self.data:
            raise DataError(f"{directory}: the users' factors were not kept; run again with --set run.save_local_factors=true")
        self.users = {name.decode(): p for p, name in enumerate(self.data["users/ids"])}
        self.items = {name.decode(): i for i, name in enumerate(self.data["items/ids"])}

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
        return [(self._id(i), self._title(i), float(predicted[i])) for i in best if np.isfinite(predicted[i])]

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

    def _id(self, i):
        return self.data["items/ids"][i].decode()

    def _title(self, i):
        return self.data["items/titles"][i].decode() if "items/titles" in self.data else ""
