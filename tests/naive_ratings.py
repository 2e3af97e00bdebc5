"""Recommendation once more, written for reading: dense ratings with NaN where unknown, plain loops. The oracle of the tests.

X is users x items, W is items x K and H is users x K, all float64. With biases W and H have one more column, b and c, and a rating is
predicted by mean + b_i + c_p + w_i'h_p; else by w_i'h_p. ``ridges`` is the pair (of the factors, of the biases).
"""

import numpy as np


def rated(X, p):
    """The items that user p has rated."""
    return [i for i in range(X.shape[1]) if not np.isnan(X[p, i])]


def predict(w, h, mean, biased):
    """One rating from an item's and a user's row."""
    if not biased:
        return w @ h
    return mean + w[-1] + h[-1] + w[:-1] @ h[:-1]


def ridge_vector(n_columns, biased, ridges):
    """The ridge of each column of W or H."""
    return np.array([ridges[0]] * (n_columns - biased) + [ridges[1]] * biased)


def update_h(X, W, H, p, mean, biased, ridges, steps):
    """Q1 gradient steps on user p's row of H, [h_p, c_p], with t = 0.51 lambda_max of the Hessian of F_p in it."""
    h, ridge = H[p].copy(), ridge_vector(H.shape[1], biased, ridges)
    hessian = np.diag(ridge)
    for i in rated(X, p):
        direction = np.append(W[i, :-1], 1) if biased else W[i]
        hessian = hessian + 2 * np.outer(direction, direction)
    t = 0.51 * max(np.linalg.eigvalsh(hessian))
    for _ in range(steps if rated(X, p) and t > 0 else 0):
        gradient = ridge * h
        for i in rated(X, p):
            direction = np.append(W[i, :-1], 1) if biased else W[i]
            gradient = gradient + 2 * (predict(W[i], h, mean, biased) - X[p, i]) * direction
        h = h - gradient / t
    return h


def update_w(X, W, H, p, mean, biased, ridges, d, steps):
    """W_p: q gradient steps on user p's copy of W, of which only the rows that p has rated change."""
    W, ridge = W.copy(), ridge_vector(W.shape[1], biased, ridges)
    direction = np.append(H[p, :-1], 1) if biased else H[p]
    for _ in range(steps if d > 0 else 0):
        for i in rated(X, p):
            gradient = 2 * (predict(W[i], H[p], mean, biased) - X[p, i]) * direction + ridge * W[i]
            W[i] = W[i] - gradient / d
    return W


def contribution(X, W, H, users, weights, mean, biased, ridges, curvatures, steps):
    """sum_p a_p (W_p - W), and for each item the a_p of those who rated it."""
    delta, row_weight = np.zeros_like(W), np.zeros(W.shape[0])
    for p, weight, d in zip(users, weights, curvatures):
        delta += weight * (update_w(X, W, H, p, mean, biased, ridges, d, steps) - W)
        for i in rated(X, p):
            row_weight[i] += weight
    return delta, row_weight


def objective_terms(X, W, H, p, mean, biased):
    """Squared residuals, |w_i|^2 and b_i^2 over the rated items, |h_p|^2, c_p^2."""
    k = W.shape[1] - biased
    fit = shared = shared_bias = 0.0
    for i in rated(X, p):
        fit += (X[p, i] - predict(W[i], H[p], mean, biased)) ** 2
        shared += sum(W[i, :k] ** 2)
        shared_bias += sum(W[i, k:] ** 2)
    return [fit, shared, shared_bias, sum(H[p, :k] ** 2), sum(H[p, k:] ** 2)]


def objective(X, W, H, mean, biased, ridges):
    """sum_p F_p / sum x^2, as F_p is written."""
    total = norm2 = 0.0
    for p in range(X.shape[0]):
        fit, shared, shared_bias, local, local_bias = objective_terms(X, W, H, p, mean, biased)
        total += fit + ridges[0] / 2 * (local + shared) + ridges[1] / 2 * (local_bias + shared_bias)
        norm2 += sum(X[p, i] ** 2 for i in rated(X, p))
    return total / norm2


def predict_after(train, W, H, p, i, mean, overall_mean, biased, limits):
    """User p's rating of item i within the range, after training on ``train``.

    Without training ratings of the user or of the item there is no w_i'h_p: what stays is the mean and the other's bias.
    """
    known_user = len(rated(train, p)) > 0
    known_item = any(not np.isnan(train[q, i]) for q in range(train.shape[0]))
    if known_user and known_item:
        prediction = predict(W[i], H[p], mean, biased)
    else:
        prediction = overall_mean + (W[i, -1] * known_item + H[p, -1] * known_user if biased else 0)
    return min(max(prediction, limits[0]), limits[1])


def error_sums(X, train, W, H, p, mean, overall_mean, biased, limits):
    """Squared and absolute errors of user p's predictions of X, after training on ``train``."""
    errors = [X[p, i] - predict_after(train, W, H, p, i, mean, overall_mean, biased, limits) for i in rated(X, p)]
    return [sum(error**2 for error in errors), sum(abs(error) for error in errors)]
