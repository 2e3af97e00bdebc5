"""The algorithm once more, written for reading: plain loops, the paper's symbols, no shortcut. The oracle of the tests.

X[p] is M x N_p, W is M x K, H[p] is K x N_p, all float64. ``rho`` and ``nu`` are in units of |X|^2 / N.
"""

import numpy as np


def norm2(matrix):
    """|A|^2, entry by entry."""
    return sum(float(entry) ** 2 for entry in np.ravel(matrix))


def product(A, B):
    """A B, entry by entry."""
    out = np.zeros((A.shape[0], B.shape[1]))
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            out[i, j] = sum(float(A[i, n]) * float(B[n, j]) for n in range(A.shape[1]))
    return out


def penalties(X, rho, nu):
    """rho and nu in absolute units, and N."""
    N = sum(X_p.shape[1] for X_p in X)
    X2 = sum(norm2(X_p) for X_p in X)
    return rho * X2 / N, nu * X2 / N, N


def objective(X, W, H, rho, nu):
    """N F / |X|^2, summed as F = sum_p w_p F_p is written."""
    rho, nu, N = penalties(X, rho, nu)
    F = 0.0
    for X_p, H_p in zip(X, H):
        N_p = X_p.shape[1]
        penalty = 0.0
        for j in range(N_p):
            h = H_p[:, j]
            penalty += nu / 2 * norm2(h) + rho / 2 * (sum(h) ** 2 - norm2(h))
        F_p = norm2(X_p - W @ H_p) / N_p + N / N_p * penalty
        F += N_p / N * F_p
    X2 = sum(norm2(X_p) for X_p in X)
    return F * N / X2 if X2 else F * N


def gradient_h(X_p, W, H_p, rho, nu, N):
    """grad_H F_p, column by column (absolute rho and nu)."""
    N_p = X_p.shape[1]
    gradient = np.empty_like(H_p)
    for j in range(N_p):
        h, x = H_p[:, j], X_p[:, j]
        fit = 2 * W.T @ (W @ h - x) / N_p
        gradient[:, j] = fit + N / N_p * (nu * h + rho * (sum(h) * np.ones(h.size) - h))
    return gradient


def update_h(X_p, W, H_p, rho, nu, N, steps):
    """Q1 projected-gradient steps with t = 0.51 lambda_max of the Hessian."""
    N_p, K = X_p.shape[1], W.shape[1]
    ones = np.ones((K, K))
    hessian = (2 * W.T @ W + N * (rho * ones + (nu - rho) * np.eye(K))) / N_p
    t = 0.51 * max(np.linalg.eigvalsh(hessian))
    for _ in range(steps):
        if t > 0:
            H_p = np.maximum(0, H_p - gradient_h(X_p, W, H_p, rho, nu, N) / t)
    return H_p


def update_w(X_p, W, H_p, d, steps):
    """Q2 gradient steps on the client's copy of W."""
    N_p = X_p.shape[1]
    for _ in range(steps):
        if d > 0:
            W = W - 2 * (W @ H_p - X_p) @ H_p.T / N_p / d
    return W


def step_size_w(H, global_step):
    """d of each client: 5 lambda_max(2 HH' / N) over all clients, or over its own samples."""
    if not global_step:
        return [5 * max(np.linalg.eigvalsh(2 * H_p @ H_p.T / H_p.shape[1])) for H_p in H]
    N = sum(H_p.shape[1] for H_p in H)
    total = sum(H_p @ H_p.T for H_p in H)
    return [5 * max(np.linalg.eigvalsh(2 * total / N))] * len(H)


def fedmavg_round(X, W, H, draws, full, pcp, q1, q2, rho, nu, global_step):
    """One round: (W, H) after it. ``draws`` are client ids, one a draw, as they fell."""
    maximum = max(float(np.max(X_p)) for X_p in X)
    rho, nu, N = penalties(X, rho, nu)
    H = [H_p if pcp and p not in draws else update_h(X_p, W, H_p, rho, nu, N, q1) for p, (X_p, H_p) in enumerate(zip(X, H))]
    d = step_size_w(H, global_step)
    average = np.zeros_like(W)
    for p in draws:
        weight = X[p].shape[1] / N if full else 1 / len(draws)
        average += weight * update_w(X[p], W, H[p], d[p], q2)
    return np.minimum(np.maximum(average, 0), maximum), H


def fedmavg(X, W, H, draws_by_round, full, pcp, q1, q2, diminishing, rho, nu, global_step):
    """Rounds in a row: (W, H, objective before the first round and after each)."""
    objectives = [objective(X, W, H, rho, nu)]
    for s, draws in enumerate(draws_by_round, start=1):
        steps = q2 // s + 1 if diminishing else q2
        W, H = fedmavg_round(X, W, H, draws, full, pcp, q1, steps, rho, nu, global_step)
        objectives.append(objective(X, W, H, rho, nu))
    return W, H, objectives


def labels(H_p):
    """argmax_k of each column."""
    return [max(range(H_p.shape[0]), key=lambda k: (H_p[k, j], -k)) for j in range(H_p.shape[1])]


def accuracy(clusters, classes):
    """The best one-to-one matching, by trying all (few clusters only)."""
    from itertools import permutations

    n = max(max(clusters), max(classes)) + 1
    best = max(sum(match[c] == k for c, k in zip(clusters, classes)) for match in permutations(range(n)))
    return best / len(classes)


def closed_form(draws, n_clients, pcp, full, M, K, itemsize, global_step):
    """Protocol bytes of one round: (uplink values, uplink bytes, downlink values, downlink bytes)."""
    distinct = len(set(draws))
    updating = distinct if pcp and not full else n_clients
    up, down = distinct * M * K, updating * M * K
    up_bytes, down_bytes = up * itemsize, down * itemsize
    if global_step:
        up, up_bytes = up + updating * K * K, up_bytes + updating * K * K * 8
        down, down_bytes = down + distinct, down_bytes + distinct * 8
    return up, up_bytes, down, down_bytes
