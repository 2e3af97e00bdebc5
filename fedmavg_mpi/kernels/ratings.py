"""Steps on the factors over the observed ratings, compiled: loops over a block of users.

``w`` (items x L) holds a row an item and ``h`` (users x L) a row a user. Without biases L = K and the prediction of a rating is w_i'h_p.
With biases L = K + 1, the last entry of a row is b_i or c_p, and the prediction is mean + b_i + c_p + w_i'h_p.
"""

from typing import NamedTuple

import numpy as np

from fedmavg_mpi.kernels.jit import jit
from fedmavg_mpi.kernels.rating_sums import inner

EIGENVALUE_STEPS = 1000  # by then the power method is within 1% (Kuczynski and Wozniakowski 1992), where t has 2% to spare
TYPICAL_EIGENVALUE_STEPS = 10  # on ratings, where one direction, the mean rating, stands out


class Block(NamedTuple):
    """The ratings of some users in CSR form: ``indptr`` (users + 1,), ``indices`` (n,) of items, ``values`` (n,)."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray


class Form(NamedTuple):
    """The model's constants: ``biased`` is 1 or 0, ``mean`` what a prediction starts from (0 without biases), then the ridges."""

    biased: int
    mean: float
    ridge: float
    ridge_bias: float


@jit
def local_factor_steps(users, block, w, h, form, steps, ridge_counts=None):
    """Gradient steps u <- u - (A u - 2 D'y) / t on each user's row u = [h_p, c_p] at fixed W, in place.

    D has a row [w_i, 1] for each rated item ([w_i] without biases), y = x - mean - b_i, A = 2 D'D + diag(ridges) is the Hessian of
    F_p in u, and t = 0.51 lambda_max(A). A is formed, or applied through the residual, whichever is cheaper for the user's count.

    Parameters
    ----------
    users : ndarray of int (n,)
        Rows of h to update; users without ratings stay as they are.
    block : Block
    w : ndarray (items x L)
    h : ndarray (users x L)
    form : Form
    steps : int
        Q1.
    ridge_counts : ndarray (users,), optional
        How often each user's ridges count; by default once. With users and items changed over, these are steps on the rows of W, whose
        ridges count once a rating.
    """
    indptr, indices, values = block
    size = h.shape[1]
    k = size - form.biased
    longest = 0
    for p in users:
        longest = max(longest, indptr[p + 1] - indptr[p])
    design = np.empty((longest + 3, size), w.dtype)
    hessian = np.zeros((size, size), w.dtype)
    ridges = np.zeros(size, w.dtype)
    pull = np.zeros(size, w.dtype)
    gradient = np.zeros(size, w.dtype)
    for p in users:
        begin, count = indptr[p], indptr[p + 1] - indptr[p]
        if count == 0 or steps == 0:
            continue
        times = 1.0 if ridge_counts is None else ridge_counts[p]
        ridges[:k], ridges[k:] = times * form.ridge, times * form.ridge_bias
        pull[:] = 0
        for j in range(count):
            row = w[indices[begin + j]]
            target = values[begin + j] - form.mean - (row[k] if form.biased else 0)
            design[j, k:] = 1
            for a in range(k):
                design[j, a] = row[a]
            for a in range(size):
                pull[a] += 2 * target * design[j, a]
        products = steps + TYPICAL_EIGENVALUE_STEPS
        formed = count * size // 2 + products * size < 2 * count * products
        if formed:
            _form_hessian(design, count, ridges, hessian)
        t = 0.51 * _largest_eigenvalue(hessian, formed, design, count, ridges)
        step = w.dtype.type(1 / t if t > 0 else 0)
        u = h[p]
        for _ in range(steps):
            _apply_hessian(hessian, formed, design, count, ridges, u, gradient)
            for a in range(size):
                u[a] -= step * (gradient[a] - pull[a])


@jit
def _form_hessian(design, count, ridges, out):
    """out = 2 D'D + diag(ridges), D being the first ``count`` rows of ``design``, four of them at a time."""
    size = ridges.size
    out[:] = 0
    for j in range(count, count + -count % 4):
        design[j] = 0
    for j in range(0, count, 4):
        for a in range(size):
            f0, f1, f2, f3 = 2 * design[j, a], 2 * design[j + 1, a], 2 * design[j + 2, a], 2 * design[j + 3, a]
            for b in range(size):
                out[a, b] += f0 * design[j, b] + f1 * design[j + 1, b] + f2 * design[j + 2, b] + f3 * design[j + 3, b]
    for a in range(size):
        out[a, a] += ridges[a]


@jit
def _apply_hessian(hessian, formed, design, count, ridges, u, out):
    """out = A u, from A itself where it is formed, else through the residual: 2 D'(D u) + diag(ridges) u."""
    size = u.size
    if formed:
        out[:] = 0
        for a in range(size):
            factor = u[a]
            for b in range(size):
                out[b] += factor * hessian[a, b]
        return
    for a in range(size):
        out[a] = ridges[a] * u[a]
    for j in range(count):
        fitted = u[0] * design[j, 0]
        for a in range(1, size):
            fitted += u[a] * design[j, a]
        fitted += fitted
        for a in range(size):
            out[a] += fitted * design[j, a]


@jit
def _largest_eigenvalue(hessian, formed, design, count, ridges):
    """lambda_max(A) by the power method, until the residual is below sqrt(eps): an error of about eps / relative gap."""
    size = ridges.size
    u = 1.5 + np.sin(np.arange(1.0, size + 1)).astype(ridges.dtype)  # a direction to which no data are orthogonal by design
    out = np.zeros(size, ridges.dtype)
    value = 0.0
    for _ in range(EIGENVALUE_STEPS):
        norm = np.sqrt(inner(u, u, size))
        if norm == 0:
            return 0.0
        for a in range(size):
            u[a] /= norm
        _apply_hessian(hessian, formed, design, count, ridges, u, out)
        value = inner(u, out, size)
        if inner(out, out, size) - value**2 <= np.finfo(ridges.dtype).eps * value**2:
            break
        u[:] = out
    return value


@jit
def shared_step_map(norm2, form, curvature, steps):
    """Where q gradient steps take the rows [w_i, b_i] that a client has rated: a linear map, the same for all of its rows.

    A step is w <- w - (2 e h + ridge w) / d, b <- b - (2 e + ridge_bias b) / d, e = w'h + b - y, y = x - mean - c. It shrinks w and
    moves it along h, so after q steps w_q = shrink w + along h, where ``along`` and b_q are linear in y, s = w'h and b. Their
    coefficients come from the recursion in the scalars (along, s, b), run with one of y, s and b at 1 and the others at 0.

    Parameters
    ----------
    norm2 : float
        |h_p|^2, without the bias.
    form : Form
    curvature : float
        d; at 0 nothing moves.
    steps : int
        q.

    Returns
    -------
    shrink : float
    along, bias : ndarray of float64 (3,)
        ``along @ [y, s, b]`` and ``bias @ [y, s, b]`` are the distance along h and b_q.
    """
    inverse = 1 / curvature if curvature > 0 else 0.0
    keep, keep_bias = 1 - form.ridge * inverse, 1 - form.ridge_bias * inverse
    along, bias = np.zeros(3), np.zeros(3)
    for which in range(2 + form.biased):
        y, s, b = 1.0 * (which == 0), 1.0 * (which == 1), 1.0 * (which == 2)
        for _ in range(steps):
            push = -2 * inverse * (s + b - y)
            along[which] = keep * along[which] + push
            s = keep * s + push * norm2
            if form.biased:
                b = keep_bias * b + push
        bias[which] = b
    return keep**steps, along, bias


@jit
def add_row_steps(users, weights, block, w, h, form, curvatures, steps, delta, row_weight):
    """delta[i] += a_p (W_p - W)[i] over the users' rated rows, W_p being W after q steps on user p's F_p, in the users' order.

    Parameters
    ----------
    users : ndarray of int (n,)
    weights, curvatures : ndarray of float64 (n,)
        a_p and d of each.
    block, w, h, form
        As in :func:`local_factor_steps`.
    steps : int
        q.
    delta : ndarray (items x L)
    row_weight : ndarray of float64 (items,) or None
        ``row_weight[i] += a_p`` for each rated i.
    """
    indptr, indices, values = block
    k = h.shape[1] - form.biased
    for n in range(users.size):
        p, weight, own = users[n], weights[n], h[users[n]]
        shrink, along, bias = shared_step_map(inner(own, own, k), form, curvatures[n], steps)
        on_w = w.dtype.type(weight * (shrink - 1))
        for j in range(indptr[p], indptr[p + 1]):
            row, change = w[indices[j]], delta[indices[j]]
            distance, new_bias = _row_step(row, own, values[j], k, form, along, bias)
            on_h = w.dtype.type(weight * distance)
            for a in range(k):
                change[a] += on_w * row[a] + on_h * own[a]
            if form.biased:
                change[k] += weight * (new_bias - row[k])
            if row_weight is not None:
                row_weight[indices[j]] += weight


@jit
def new_rows(p, block, w, h, form, curvature, steps, out):
    """The rows of W_p that user p has rated, in the order of its ratings: ``out`` (count of p x L). As :func:`add_row_steps`."""
    indptr, indices, values = block
    k = h.shape[1] - form.biased
    own = h[p]
    shrink, along, bias = shared_step_map(inner(own, own, k), form, curvature, steps)
    on_w = w.dtype.type(shrink)
    for n in range(out.shape[0]):
        row = w[indices[indptr[p] + n]]
        distance, new_bias = _row_step(row, own, values[indptr[p] + n], k, form, along, bias)
        on_h = w.dtype.type(distance)
        for a in range(k):
            out[n, a] = on_w * row[a] + on_h * own[a]
        if form.biased:
            out[n, k] = new_bias


@jit
def _row_step(row, own, value, k, form, along, bias):
    """How far the row of one rating goes along h_p, and its new bias."""
    y, s = value - form.mean, inner(row, own, k)
    if not form.biased:
        return along[0] * y + along[1] * s, 0.0
    y -= own[k]
    b = np.float64(row[k])
    return along[0] * y + along[1] * s + along[2] * b, bias[0] * y + bias[1] * s + bias[2] * b
