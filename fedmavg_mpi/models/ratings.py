"""Item recommendation: factorization over the observed ratings (paper, Section on item recommendation; biases: Koren et al. 2009).

F_p = sum_{i in O_p} (x_ip - w_i'h_p)^2 + ridge/2 (|h_p|^2 + sum_{i in O_p} |w_i|^2), every user p being one client. With biases
the prediction is mean + b_i + c_p + w_i'h_p and F_p has ridge_bias/2 (c_p^2 + sum_{i in O_p} b_i^2) besides; c_p stays with its user as
h_p does. The ridge on W runs over the rated rows only, so a client changes no other row.

W is kept with a row an item, and H with a row a user; with biases b and c are their last columns: L = K + 1 columns, else L = K.
"""

import numpy as np
from scipy import sparse

from fedmavg_mpi import rng
from fedmavg_mpi.kernels import rating_sums
from fedmavg_mpi.kernels import ratings as kernels
from fedmavg_mpi.models.eigenvalues import largest_eigenvalues


class RatingsModel:
    """The server's half: the start, the step size, the average and the objective; and what both halves predict.

    Parameters
    ----------
    settings : Config
        Its sections ``model``, ``algorithm`` and ``aggregation`` are read.
    totals : RatingTotals
    counts : ndarray of int64 (users,)
        Training ratings of every user.

    Attributes
    ----------
    width : int
        L, columns of W and H.
    form : kernels.ratings.Form
    """

    def __init__(self, settings, totals, counts):
        config = settings.model
        self.n_components = config.n_components
        self.start_deviation = config.start_deviation
        self.curvature_factor = settings.algorithm.curvature_factor_w
        self.weighting, self.upload = settings.aggregation.weighting, settings.algorithm.upload
        self.totals, self.counts = totals, counts
        self.width = self.n_components + config.biases
        mean = totals.mean if config.biases else 0.0
        self.form = kernels.Form(int(config.biases), mean, config.regularization, config.bias_regularization)

    def start(self, seed, dtype):
        """The first W: ndarray (items x L)."""
        return self._start(rng.generator(seed, rng.START_SHARED), self.totals.n_items).astype(dtype)

    def start_local(self, seed, client):
        """The first [h_p, c_p] of one client: ndarray of float64 (L,)."""
        return self._start(rng.generator(seed, rng.START_LOCAL, client), 1)[0]

    def _start(self, generator, n_rows):
        """With biases normal, and biases 0. Without, about the mean rating is predicted (paper leaves it open)."""
        out = np.zeros((n_rows, self.width))
        if self.form.biased:
            out[:, :-1] = self.start_deviation * generator.standard_normal((n_rows, self.n_components))
        else:
            scale = np.sqrt(self.totals.magnitude / max(self.totals.n_ratings, 1) / self.n_components)
            out[:] = scale * generator.uniform(0.8, 1.2, (n_rows, self.n_components))
        return out

    def shared_curvature(self, h_gram):
        """The shared step's d = 5 lambda_max(2 H~H~' / N) (paper) from :meth:`add_grams` over all N users."""
        return float(
            np.maximum(self.curvature_factor * largest_eigenvalues(2 * h_gram / self.totals.n_users), self._least_curvature)
        )

    def client_curvatures(self, h):
        """The same from each client alone, d = 10 |h~_p|^2, h~_p = [h_p, 1] with biases: ndarray of float64 (clients,) from h (clients x L)."""
        norm2 = np.square(h[:, : self.n_components], dtype=np.float64).sum(axis=1)
        return np.maximum(2 * self.curvature_factor * (norm2 + self.form.biased), self._least_curvature)

    @property
    def _least_curvature(self):
        """A smaller d would let the ridge alone throw a row beyond 0."""
        return max(self.form.ridge, self.form.ridge_bias if self.form.biased else 0.0)

    @property
    def n_gram_values(self):
        """Values that one client sends for its h_p h_p'."""
        return self.n_components

    def add_grams(self, values):
        """sum_p h~_p h~_p' over users, h~_p = [h_p, 1] with biases, from :meth:`RatingsShard.gram_values`: ndarray (L x L)."""
        h = np.column_stack([values, np.ones(len(values))]) if self.form.biased else values
        return h.T @ h

    def as_rows(self, w):
        """W as items x L."""
        return w

    def next_shared(self, w, average):
        """W after a round, in place: W + sum_p a_p (W_p - W), with weights a_p that sum to 1 (paper).

        Parameters
        ----------
        w : ndarray (items x L)
        average : ndarray (items x (L + 1))
            Sum of all :meth:`RatingsShard.contribution`. With ``weighting = "rows"`` each row is averaged over those who rated it,
            whose a_p add up to the last column.
        """
        change, row_weight = average[:, :-1], average[:, -1]
        if self.weighting == "clients":
            w += change
        else:
            rated = row_weight > 0
            w[rated] += change[rated] / row_weight[rated, None]
        return w

    def count_upload(self, ledger, clients, itemsize):
        """Enter in the protocol ledger what these clients send.

        Dense: a copy of W, and where rows are averaged over their raters a mark a row. Rows: the rated rows and their indices.
        """
        if self.upload == "dense":
            marks = self.totals.n_items if self.weighting == "rows" else 0
            ledger.uplink(len(clients) * (self.totals.n_items * self.width + marks), itemsize)
        else:
            rows = self.counts[clients].sum()
            ledger.uplink(rows * self.width, itemsize)
            ledger.uplink(rows, 4)

    def objective(self, sums):
        """Relative objective sum_p F_p / sum x^2 from :meth:`RatingsShard.objective_terms` summed over all clients."""
        residual, shared, shared_bias, local, local_bias = sums
        ridges = self.form.ridge / 2 * (local + shared) + self.form.ridge_bias / 2 * (local_bias + shared_bias)
        return float((residual + ridges) / (self.totals.norm2 or 1.0))


def predict(w, h_row, biased, mean, limits, known_user, known_items):
    """What a user would give to each item, within the rating range.

    Parameters
    ----------
    w : ndarray (items x L)
    h_row : ndarray (L,)
        [h_p, c_p].
    biased : bool
        Whether the last columns are biases, on top of the mean.
    mean : float
        The mean training rating.
    limits : tuple of float
        Lowest and highest rating.
    known_user : bool
        Whether the user has training ratings; without, mean + b_i is predicted.
    known_items : ndarray of bool (items,)
        Which items have training ratings; without, mean + c_p is predicted.

    Returns
    -------
    ndarray of float64 (items,)
    """
    w, h_row = w.astype(np.float64), h_row.astype(np.float64)
    k = w.shape[1] - bool(biased)
    fitted = (mean if biased else 0.0) + w[:, :k] @ h_row[:k]
    out = np.where(known_items & bool(known_user), fitted, mean)
    if biased:
        out += w[:, -1] * known_items + h_row[-1] * bool(known_user)
    return np.clip(out, *limits)


class RatingsShard:
    """One rank's users, each one client: their ratings and their private factors.

    Parameters
    ----------
    train, test : scipy.sparse.csr_array (users here x items)
        Column indices sorted in each row and none twice; a stored 0 is a rating of 0.
    first_client : int
        Id of this rank's first user.
    model : RatingsModel
    seed : int
    known_items : ndarray of bool (items,), optional
        Which items have training ratings anywhere; by default those that have some here.

    Attributes
    ----------
    h : ndarray (users here x L)
        Private factors, a row [h_p, c_p] a user.
    sizes : ndarray of int64 (users here,)
        Training ratings of each.
    counts : ndarray of int64 (users,)
        Training ratings of every user on any rank.
    """

    def __init__(self, train, test, first_client, model, seed, known_items=None):
        self.model = model
        self.dtype = train.dtype
        self.train = kernels.Block(train.indptr, train.indices, train.data)
        self.test = kernels.Block(test.indptr, test.indices, test.data)
        self.sizes = np.diff(train.indptr).astype(np.int64)
        self.test_sizes = np.diff(test.indptr).astype(np.int64)
        self.all_clients = np.arange(train.shape[0])
        self.offsets = np.arange(train.shape[0] + 1)  # a user is one column of H
        self.counts = model.counts
        self.known_items = self.item_counts() > 0 if known_items is None else known_items
        self.h = np.empty((train.shape[0], model.width), self.dtype)
        for i in range(train.shape[0]):
            self.h[i] = model.start_local(seed, first_client + i)
        self.w = None
        self.by_item = None  # the training ratings, a row an item, once they are asked for

    def receive(self, w):
        """Take a new W: one for all users (items x L), or each user's own copy (users here x items x L)."""
        self.w = w

    def copy_of(self, client):
        """The W that a client works with: ndarray (items x L)."""
        return self.w if self.w.ndim == 2 else self.w[client]

    def _sharing(self):
        """Runs of clients that have their W in common: slices."""
        n = self.sizes.size
        return [slice(0, n)] if self.w.ndim == 2 else [slice(i, i + 1) for i in range(n)]

    def item_counts(self):
        """Training ratings here of each item: ndarray of int64 (items,)."""
        return np.bincount(self.train.indices, minlength=self.model.totals.n_items)

    def form_products(self, clients):
        """Nothing to form ahead: the steps read W itself."""

    def update_local_factors(self, clients, steps):
        """Q1 gradient steps on [h_p, c_p] at fixed W for these clients (indices here); t = 0.51 lambda_max of each one's Hessian."""
        alike = [(clients, self.w)] if self.w.ndim == 2 else [(np.array([p]), self.w[p]) for p in clients]
        for users, w in alike:
            kernels.local_factor_steps(users, self.train, w, self.h, self.model.form, steps)

    def update_shared_factor(self, steps):
        """Q2 gradient steps on each row of W, in place, of sum_p F_p over the users here at fixed H, as where the ratings are pooled.

        A row's own t = 0.51 lambda_max(2 sum_{p rated i} h~_p h~_p' + n_i ridges), n_i being its number of ratings: each F_p has the
        row's ridge once. It is the step on H with users and items changed over.
        """
        if self.by_item is None:
            n_users, n_items = self.sizes.size, self.w.shape[0]
            of_user = sparse.csr_array((self.train.values, self.train.indices, self.train.indptr), shape=(n_users, n_items))
            of_item = of_user.T.tocsr()
            self.by_item = kernels.Block(of_item.indptr, of_item.indices, of_item.data)
        counts = np.diff(self.by_item.indptr).astype(np.float64)
        items = np.arange(counts.size)
        kernels.local_factor_steps(items, self.by_item, self.h, self.w, self.model.form, steps, counts)

    def contribution(self, clients, weights, curvature, steps):
        """sum_p a_p (W_p - W) over these clients after their steps on W, without forming any W_p.

        Parameters
        ----------
        clients : ndarray of int
            Indices on this rank, sorted.
        weights : ndarray of float64 (clients,)
            a_p.
        curvature : float or None
            d; None takes each client's own, 10 |h~_p|^2.
        steps : int
            q.

        Returns
        -------
        ndarray (items x (L + 1))
            The last column adds up the a_p of those who rated each item.
        """
        delta, row_weight = np.zeros_like(self.w), np.zeros(self.w.shape[0])
        curvatures = self._curvatures(clients, curvature)
        kernels.add_row_steps(clients, weights, self.train, self.w, self.h, self.model.form, curvatures, steps, delta, row_weight)
        return np.column_stack([delta, row_weight.astype(self.dtype)])

    def no_contribution(self):
        """What a rank without drawn clients would give: zeros of the shape of :meth:`contribution`."""
        return np.zeros((self.w.shape[0], self.w.shape[1] + 1), self.dtype)

    def changed_rows(self, contribution):
        """The rows that a contribution changes: ndarray of int."""
        return np.flatnonzero(contribution[:, -1])

    def client_rows(self, clients, curvature, steps):
        """These clients' own rated rows after their steps: (items (n,) of int32, rows (n x L)), client after client."""
        counts = self.sizes[clients]
        ends = np.cumsum(counts)
        items, rows = np.empty(counts.sum(), np.int32), np.empty((counts.sum(), self.w.shape[-1]), self.dtype)
        for p, begin, end, d in zip(clients, ends - counts, ends, self._curvatures(clients, curvature), strict=True):
            items[begin:end] = self.train.indices[self.train.indptr[p] : self.train.indptr[p + 1]]
            kernels.new_rows(p, self.train, self.copy_of(p), self.h, self.model.form, d, steps, rows[begin:end])
        return items, rows

    def client_models(self, clients, curvature, steps):
        """These clients' own copies W_p after their steps, and in the last column a mark for each rated row: (clients x items x (L + 1))."""
        items, rows = self.client_rows(clients, curvature, steps)
        out = np.zeros((clients.size, self.w.shape[0], self.w.shape[1] + 1), self.dtype)
        out[:, :, :-1] = self.w
        which = np.repeat(np.arange(clients.size), self.sizes[clients])
        out[which, items, :-1] = rows
        out[which, items, -1] = 1
        return out

    def add_copies(self, total, weights, copies):
        """Add weighted copies (as of :meth:`client_models`) to a total (as of :meth:`contribution`), one after the other."""
        for weight, copy in zip(weights, copies, strict=True):
            items = np.flatnonzero(copy[:, -1])
            self._add(total, weight, items, copy[items, :-1])

    def add_rows(self, total, weights, counts, items, rows):
        """Add weighted rows (as of :meth:`client_rows`, ``counts`` of each client) to a total (as of :meth:`contribution`), in order."""
        ends = np.cumsum(counts)
        for weight, begin, end in zip(weights, ends - counts, ends, strict=True):
            self._add(total, weight, items[begin:end], rows[begin:end])

    def _add(self, total, weight, items, rows):
        weight = self.dtype.type(weight)
        total[items, :-1] += weight * (rows - self.w[items])
        total[items, -1] += weight

    def gram_values(self, clients):
        """What these clients (indices here) send for the shared step: ndarray of float64 (clients x K).

        A client is one column, so h_p h_p' gives h_p away but for its sign. Those K values say the same as its K x K: h_p with the sign
        that makes its first entry other than 0 positive. With biases sum_p h_p is part of the matrix too, and h_p goes as it is.
        """
        h = self.h[clients, : self.model.n_components].astype(np.float64)
        if self.model.form.biased or not h.size:
            return h
        first = np.take_along_axis(h, (h != 0).argmax(axis=1)[:, None], axis=1)
        return np.copysign(1.0, first) * h

    def private_factors(self):
        """H of all clients here, a row a user: ndarray (users here x L)."""
        return self.h

    def restore_private_factors(self, h):
        """Take H (users here x L) from a checkpoint."""
        self.h[:] = h

    def objective_terms(self):
        """What the objective sums over clients: ndarray of float64 (clients here x 5).

        Columns: squared training residuals, |w_i|^2 and b_i^2 over the rated items, |h_p|^2, c_p^2.
        """
        out = np.zeros((self.sizes.size, 5))
        for part in self._sharing():
            w, block = self.copy_of(part.start), _of_users(self.train, part)
            rating_sums.objective_sums(block, w, self.h[part], self.model.form, out[part])
        squares = self.h.astype(np.float64) ** 2
        out[:, 3] = squares[:, : self.model.n_components].sum(axis=1)
        out[:, 4] = squares[:, self.model.n_components :].sum(axis=1)
        return out

    def error_sums(self):
        """Of predictions within the rating range, by client: ndarray of float64 (clients here x 6).

        Columns: number of ratings, squared and absolute errors on the training ratings, then the same on the held-out ones.
        """
        model, out = self.model, np.zeros((self.sizes.size, 6))
        out[:, 0], out[:, 3] = self.sizes, self.test_sizes
        limits = model.totals.minimum, model.totals.maximum
        for part in self._sharing():
            w, h, known = self.copy_of(part.start), self.h[part], (self.sizes[part] > 0, self.known_items)
            for ratings, columns in ((self.train, out[part, 1:3]), (self.test, out[part, 4:6])):
                block = _of_users(ratings, part)
                rating_sums.error_sums(block, w, h, model.form, model.totals.mean, *known, *limits, columns)
        return out

    def _curvatures(self, clients, curvature):
        return self.model.client_curvatures(self.h[clients]) if curvature is None else np.full(clients.size, float(curvature))


def _of_users(block, part):
    """The ratings of a run of users (a slice)."""
    return kernels.Block(block.indptr[part.start : part.stop + 1], block.indices, block.values)
