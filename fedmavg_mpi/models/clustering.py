"""Data clustering: orthogonal non-negative factorization with a non-convex penalty (paper, Section on clustering).

F(W, H) = sum_p w_p F_p with F_p = |X_p - W H_p|^2 / N_p + (N / N_p) [nu/2 |H_p|^2 + rho/2 sum_j ((1'h_j)^2 - |h_j|^2)],
0 <= W <= max(X), H_p >= 0. Penalties are held in units of |X|^2 / N, and the objective in units of |X|^2 / N, so that
here N F / |X|^2 = fit / |X|^2 + nu/2 |H|^2 + rho/2 (1' HH' 1 - tr HH').

W is kept as K x M and samples as rows: the products with samples read both along their rows.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from fedmavg_mpi import rng
from fedmavg_mpi.kernels import dense
from fedmavg_mpi.models.eigenvalues import largest_eigenvalues
from fedmavg_mpi.models.products import products_of
from fedmavg_mpi.models.sums import in_order_sum

# Below this share of |X_p|^2 the cheap formula for |X_p - W H_p|^2 has lost too many digits, and the residual itself is formed.
CANCELLATION = {np.dtype(np.float64): 1e-6, np.dtype(np.float32): 1e-2}


@dataclass(frozen=True)
class DataTotals:
    """What the server knows of the pooled data: N, M, |X|^2, sum of X and max X."""

    n_samples: int
    n_features: int
    norm2: float
    total: float
    maximum: float


class ClusteringModel:
    """The server's half: the start, the step sizes, the projection and the objective.

    Parameters
    ----------
    config : ModelConfig
    totals : DataTotals
    curvature_factor : float
        The 5 of the shared step's d = 5 lambda_max (paper).
    """

    def __init__(self, config, totals, curvature_factor=5.0):
        self.n_components = config.n_components
        self.identity = np.eye(config.n_components)
        self.curvature_factor = curvature_factor
        self.nu = config.nu
        self.totals = totals
        # Start (paper leaves it open): both factors uniform in [0, a), a = sqrt(mean(X) / K).
        self.start_scale = np.sqrt(totals.total / (totals.n_samples * totals.n_features) / config.n_components)

    def start(self, seed, dtype):
        """The first W, uniform in [0, a): ndarray (K x M)."""
        uniform = rng.generator(seed, rng.START_SHARED).random((self.n_components, self.totals.n_features))
        return (self.start_scale * uniform).astype(dtype)

    @property
    def n_gram_values(self):
        """Values that one client sends for its H_p H_p'."""
        return self.n_components**2

    def add_grams(self, values):
        """HH' over clients, from their :meth:`ClusteringShard.gram_values`: ndarray (K x K)."""
        return in_order_sum(values)

    def as_rows(self, w):
        """W as M x K."""
        return np.ascontiguousarray(w.T)

    def local_hessian(self, w_gram, rho):
        """N_p times the Hessian of F_p in a column of H: 2 W'W + N (rho 11' + (nu - rho) I), ndarray (K x K).

        Parameters
        ----------
        w_gram : ndarray (K x K)
            W'W.
        rho : float
        """
        return 2 * w_gram + self.totals.norm2 * (rho + (self.nu - rho) * self.identity)

    def local_curvature(self, w, rho):
        """N_p times the local step's t = 0.51 lambda_max (paper, with one half kept strictly inside the stable range)."""
        return 0.51 * float(largest_eigenvalues(self.local_hessian(gram(w), rho)))

    def shared_curvature(self, h_gram):
        """The shared step's d = 5 lambda_max(2 HH' / N) (paper) from HH' (K x K)."""
        return self.curvature_factor * float(largest_eigenvalues(2 * h_gram / self.totals.n_samples))

    def project(self, w):
        """The projection onto 0 <= W <= max(X), in place."""
        return np.clip(w, 0, self.totals.maximum, out=w)

    def next_shared(self, w, average):
        """The next W from the average of the copies."""
        return self.project(average)

    def count_upload(self, ledger, clients, itemsize):
        """Enter in the protocol ledger what these clients send: a copy of W each."""
        ledger.uplink(len(clients) * self.n_components * self.totals.n_features, itemsize)

    def objective(self, sums, rho):
        """Relative objective N F / |X|^2.

        Parameters
        ----------
        sums : ndarray (>= 3,)
            Over all samples: |X - WH|^2, |H|^2, sum_j ((1'h_j)^2 - |h_j|^2).
        rho : float
        """
        fit, ridge, overlap = sums[:3]
        return float(fit / (self.totals.norm2 or 1.0) + self.nu / 2 * ridge + rho / 2 * overlap)


class ClusteringShard:
    """One rank's clients: their samples and their private factors.

    Parameters
    ----------
    samples : ndarray (n x M) or scipy.sparse.csr_array (n x M)
        Rows sorted by client.
    offsets : ndarray of int64 (clients here + 1,)
        Client i of this rank holds rows ``offsets[i]:offsets[i + 1]``.
    first_client : int
        Id of this rank's first client.
    model : ClusteringModel
    seed : int
    client_by_client : bool
        Form the products so that their bits don't depend on the clients that share the rank.
    products : str
        How products with dense samples are formed: one of ``products.DENSE``.

    Attributes
    ----------
    h : ndarray (K x n)
        Private factors, one column a sample.
    h_grams : ndarray of float64 (clients here x K x K)
        H_p H_p' of each client.
    norms2 : ndarray of float64 (clients here,)
        |X_p|^2.
    """

    def __init__(self, samples, offsets, first_client, model, seed, client_by_client, products):
        self.samples = samples
        self.offsets = offsets
        self.sizes = np.diff(offsets)
        self.divisors = np.maximum(self.sizes, 1)  # N_p, where a client without samples gets zeros
        self.all_clients = np.arange(self.sizes.size)
        self.model = model
        self.dtype = samples.dtype
        self.client_by_client = client_by_client
        self.form_products_by(products)
        n_components = model.n_components
        self.h = np.empty((n_components, samples.shape[0]), self.dtype)
        for i, (begin, end) in enumerate(self.ranges(self.all_clients)):
            uniform = rng.generator(seed, rng.START_LOCAL, first_client + i).random((end - begin, n_components))
            self.h[:, begin:end] = model.start_scale * uniform.T
        self.h_grams = np.empty((self.sizes.size, n_components, n_components))
        self._update_grams(self.all_clients)
        self.norms2 = client_totals(samples, offsets)[:, 0]
        self.b = np.empty_like(self.h)  # W'X, of the clients that are marked below
        self.has_product = np.zeros(self.sizes.size, bool)
        self.w = self.w_gram = self.rho = self.curvature = None

    def form_products_by(self, products):
        """Form products with dense samples in this way: one of ``products.DENSE``."""
        self.products = products_of(self.samples, products)
        self.by_client = self.client_by_client and self.products.by_client

    def take_step(self, rho, curvature):
        """Take the server's penalty, and N_p times the local step's t, for the rounds to come."""
        self.rho, self.curvature = rho, curvature

    def receive(self, w):
        """Take a new W (K x M); the products with the old one are void."""
        self.w = w
        self.w_gram = gram(w)
        self.has_product[:] = False

    def form_products(self, clients):
        """W'X_p of these clients (indices on this rank, sorted), once for all of a round's steps and for the objective."""
        clients = clients[~self.has_product[clients]]
        if not clients.size:
            return
        for begin, end in self._blocks(clients):
            self.products.multiply(self.w, begin, end, self.b[:, begin:end])
        self.has_product[clients] = True

    def update_local_factors(self, clients, steps):
        """Q1 projected-gradient steps on H_p at fixed W (paper, local step) for these clients.

        H <- max(0, H - (A H - 2 W'X) / t), with A the Hessian and t its curvature, both times N_p.
        """
        self.form_products(clients)
        rho, curvature = self.rho, self.curvature
        if steps == 0 or curvature <= 0:
            return
        step_matrix = self.model.identity - self.model.local_hessian(self.w_gram, rho) / curvature
        step_matrix, scale = step_matrix.astype(self.dtype), self.dtype.type(2 / curvature)
        for begin, end in self._runs(clients):
            dense.local_factor_steps(self.h[:, begin:end], self.b[:, begin:end], step_matrix, scale, steps)
        self._update_grams(clients)

    def update_shared_factor(self, steps):
        """Q2 projected-gradient steps on W of F over all samples here at fixed H, as where the data are pooled.

        W <- min(max(0, W - (W A - 2 X H') / t), max X), A = 2 HH' and t = 0.51 lambda_max(A): the step on H with the factors changed over.
        """
        hessian = 2 * in_order_sum(self.h_grams)
        curvature = 0.51 * float(largest_eigenvalues(hessian))
        if curvature <= 0:
            return
        step_matrix = (self.model.identity - hessian / curvature).astype(self.dtype)
        pull, w = np.zeros_like(self.w), self.w.copy()
        self.products.add(self.private_factors(), 0, self.h.shape[1], pull)
        for _ in range(steps):
            dense.local_factor_steps(w, pull, step_matrix, self.dtype.type(2 / curvature), 1)
            self.model.project(w)
        self.receive(w)

    def assign_to_nearest(self):
        """Make H the samples' indicators of the nearest column of W, as in k-means; of equals the first."""
        self.form_products(self.all_clients)
        distances = np.diag(self.w_gram)[:, None] - 2 * self.b  # less |x|^2
        self.h[:] = 0
        self.h[distances.argmin(axis=0), np.arange(self.h.shape[1])] = 1
        self._update_grams(self.all_clients)

    def contribution(self, clients, weights, curvature, steps):
        """sum_p a_p W_p over these clients after their steps on W, without forming any W_p.

        With A_p = I - G_p / d and S_p = (1/d) sum_{i<q} A_p^i it is W (sum_p a_p A_p^q) + X_sel Z,
        Z_p = (2 a_p / N_p) H_p' S_p: one product over the drawn clients' columns.

        Parameters
        ----------
        clients : ndarray of int
            Indices on this rank, sorted.
        weights : ndarray (clients,)
            a_p.
        curvature : float or None
            d; None takes each client's own, 5 lambda_max(G_p).
        steps : int
            q.

        Returns
        -------
        ndarray (K x M)
        """
        powers, sums = self._shared_steps(clients, curvature, steps)
        out = np.einsum("p,pij->ij", weights, powers).astype(self.dtype) @ self.w
        sums *= (2 * weights / self.divisors[clients])[:, None, None]
        z = self._combined_components(clients, sums)
        for begin, end in self._blocks(clients):
            self.products.add(z[begin:end], begin, end, out)
        return out

    def no_contribution(self):
        """What a rank without drawn clients would give: zeros of the shape of :meth:`contribution`."""
        return np.zeros_like(self.w)

    def client_models(self, clients, curvature, steps):
        """Each client's own W_p = W A_p^q + B_p S_p after its steps: ndarray (clients x K x M). Parameters as above."""
        powers, sums = self._shared_steps(clients, curvature, steps)
        sums *= (2 / self.divisors[clients])[:, None, None]
        out = powers.astype(self.dtype) @ self.w
        z = self._combined_components(clients, sums)
        for copy, (begin, end) in zip(out, self.ranges(clients), strict=True):
            self.products.add(z[begin:end], begin, end, copy)
        return out

    def add_copies(self, total, weights, copies):
        """Add weighted copies W_p (clients x K x M) to ``total``, one after the other."""
        for weight, copy in zip(weights, copies, strict=True):
            total += total.dtype.type(weight) * copy

    def restore_private_factors(self, h):
        """Take H (n x K) from a checkpoint."""
        self.h[:] = h.T
        self._update_grams(self.all_clients)
        self.has_product[:] = False

    def objective_terms(self):
        """What the objective sums over samples, by client: ndarray of float64 (clients here x 3).

        Columns: |X_p - W H_p|^2, |H_p|^2, sum_j ((1'h_j)^2 - |h_j|^2). The first comes as
        |X|^2 - 2 <W'X, H> + <W'W, HH'> from products that the next round needs anyway.
        """
        self.form_products(self.all_clients)
        terms = np.empty((self.sizes.size, 3))
        dense.objective_terms(self.h, self.b, self.offsets, self.norms2, self.w_gram, self.h_grams, terms)
        for i in (terms[:, 0] < CANCELLATION[self.dtype] * self.norms2).nonzero()[0]:
            terms[i, 0] = self._residual(self.offsets[i], self.offsets[i + 1])
        return terms

    def gram_values(self, clients):
        """What these clients (indices on this rank) send for the shared step, H_p H_p': ndarray of float64 (clients x K x K)."""
        return self.h_grams[clients]

    def private_factors(self):
        """H of all clients here, a row a sample: ndarray (n x K)."""
        return np.ascontiguousarray(self.h.T)

    def assignments(self):
        """The cluster of each sample here, argmax_k H[k, j]: ndarray of int32 (n,)."""
        out = np.empty(self.h.shape[1], np.int32)
        dense.assignments(self.h, out)
        return out

    def _shared_steps(self, clients, curvature, steps):
        """A_p^q and S_p of each client: two ndarrays of float64 (clients x K x K)."""
        g = self.h_grams[clients] * (2 / self.divisors[clients])[:, None, None]
        d = self.model.curvature_factor * largest_eigenvalues(g) if curvature is None else np.full(clients.size, curvature)
        return step_powers(g, np.divide(1.0, d, out=np.zeros_like(d), where=d > 0), steps)

    def _combined_components(self, clients, factors):
        """H_p' S_p of these clients: ndarray (n x K), filled in their rows only."""
        out = np.empty((self.h.shape[1], self.h.shape[0]), self.dtype)
        dense.combine_components(self.h, factors.astype(self.dtype), self.offsets[clients], self.offsets[clients + 1], out)
        return out

    def _residual(self, begin, end):
        """|X_p - W H_p|^2 term by term, in float64, a few rows at a time."""
        total = 0.0
        for start in range(begin, end, 256):
            rows = self.samples[start : min(start + 256, end)]
            rows = rows.toarray() if sparse.issparse(rows) else rows
            difference = rows - self.h[:, start : start + rows.shape[0]].T.astype(np.float64) @ self.w
            total += float(np.vdot(difference, difference))
        return total

    def _update_grams(self, clients):
        out = np.empty((clients.size, *self.h_grams.shape[1:]))
        dense.grams(self.h, self.offsets[clients], self.offsets[clients + 1], out)
        self.h_grams[clients] = out

    def ranges(self, clients):
        """Where the samples of each client (indices here) begin and end: list of (int, int)."""
        return list(zip(self.offsets[clients].tolist(), self.offsets[clients + 1].tolist(), strict=True))

    def _runs(self, clients):
        """Column range of each run of adjacent clients (sorted): fewer and larger than :meth:`ranges`."""
        return dense.runs(clients, self.offsets).tolist()

    def _blocks(self, clients):
        """Column ranges of the products: a client where bits must not depend on its neighbours, else a run of clients."""
        return self.ranges(clients) if self.by_client else self._runs(clients)


def client_totals(samples, offsets):
    """|X_p|^2, sum and maximum of each client's samples, in float64: ndarray (clients x 3)."""
    out = np.zeros((offsets.size - 1, 3))
    bounds = offsets if not sparse.issparse(samples) else samples.indptr[offsets]
    values = samples.data if sparse.issparse(samples) else samples
    for i, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        for start in range(begin, end, 4096):  # small pieces: no second copy of the samples
            piece = values[start : min(start + 4096, end)].astype(np.float64).ravel()
            with np.errstate(over="ignore", invalid="ignore"):  # the sums tell
                squares, total = piece @ piece, piece.sum()
            out[i] = out[i, 0] + squares, out[i, 1] + total, max(out[i, 2], piece.max())
    return out


def gram(factor):
    """factor factor' for a K x n factor, multiplied in its own precision: ndarray of float64 (K x K)."""
    return (factor @ factor.T).astype(np.float64)


def step_powers(g, inverse_curvature, steps):
    """A^q and S_q = (1/d) sum_{i<q} A^i for A = I - G / d, by repeated doubling.

    Parameters
    ----------
    g : ndarray (P x K x K)
        Symmetric.
    inverse_curvature : ndarray (P,)
        1 / d.
    steps : int
        q >= 1.

    Returns
    -------
    power, total : ndarray (P x K x K)
    """
    scale = inverse_curvature[:, None, None]
    identity = np.eye(g.shape[-1])
    a = identity - scale * g
    power, total = a, scale * identity
    for bit in bin(steps)[3:]:
        total = total + power @ total
        power = power @ power
        if bit == "1":
            total = total + scale * power
            power = power @ a
    return power, total
