"""The distributed k-means baselines once more, written for reading: plain loops over points. The oracle of the tests.

Points are lists or rows of numbers. Draws come from the same generators in the same order, so that results can be compared.
"""

import numpy as np


def d2(x, y):
    """|x - y|^2, entry by entry."""
    return sum((float(a) - float(b)) ** 2 for a, b in zip(x, y))


def nearest(x, centres):
    """The nearest centre and its squared distance; of equals the first."""
    distances = [d2(x, c) for c in centres]
    best = min(range(len(centres)), key=lambda i: (distances[i], i))
    return best, distances[best]


def cost(X, centres):
    """phi(C), the sum of squared distances to the nearest centre."""
    return sum(nearest(x, centres)[1] for x in X)


def kmeans_parallel(clients, expected, seeding_rounds, first, random_of):
    """Bahmani et al. 2012, Algorithm 2, steps 1 to 7: (candidates, weights, how many of each round and client).

    ``first`` is (client, point) and ``random_of(p, s)`` the generator of client p in round s.
    """
    C = [clients[first[0]][first[1]]]
    offered = [[int(p == first[0]) for p in range(len(clients))]]
    for s in range(1, seeding_rounds + 1):
        phi = sum(cost(X, C) for X in clients)
        new = []
        for p, X in enumerate(clients):
            draws = random_of(p, s).random(len(X))
            new.append([x for x, u in zip(X, draws) if phi > 0 and u < min(1, expected * nearest(x, C)[1] / phi)])
        C = C + [x for part in new for x in part]
        offered.append([len(part) for part in new])
    weights = [0] * len(C)
    for X in clients:
        for x in X:
            weights[nearest(x, C)[0]] += 1
    return C, weights, offered


def ball_growing(X, n_outliers, n_draws, random, beta=0.45):
    """Chen, Azer and Zhang 2018, Algorithm 1, then Algorithm 2: {index of a point of the summary: its weight}."""
    left, S = list(range(len(X))), []
    while len(left) > 8 * n_outliers:
        S_i = sorted({left[i] for i in random.integers(len(left), size=n_draws)})
        distances = {x: nearest(X[x], [X[y] for y in S_i])[1] for x in left}
        radius = sorted(distances.values())[int(np.ceil(beta * len(left))) - 1]
        left = [x for x in left if distances[x] > radius]
        S += S_i
    others = [x for x in range(len(X)) if x not in left and x not in S]
    more = min(len(others), len(left) - len(S))
    if more > 0:
        S += [others[i] for i in random.choice(len(others), more, replace=False)]
    S = sorted(S)
    weights = dict.fromkeys(left, 1)
    for x in range(len(X)):
        if x not in left:
            y = S[nearest(X[x], [X[y] for y in S])[0]]
            weights[y] = weights.get(y, 0) + 1
    return weights


def allot(costs, n_draws):
    """t_i proportional to the costs, by largest remainders."""
    if sum(costs) == 0:
        return [0] * len(costs)
    exact = [n_draws * c / sum(costs) for c in costs]
    t = [int(e) for e in exact]
    by_remainder = sorted(range(len(costs)), key=lambda i: (t[i] - exact[i], i))
    for i in by_remainder[: n_draws - sum(t)]:
        t[i] += 1
    return t


def coreset(X, B, n_draws, random):
    """Balcan, Ehrlich and Liang 2013, Algorithm 1, Round 2 at one client: ({point: weight}, [weight of each b])."""
    labels = [nearest(x, B)[0] for x in X]
    m = [nearest(x, B)[1] for x in X]
    total = sum(m)
    weights, w_b = {}, [labels.count(b) for b in range(len(B))]
    if n_draws and total:
        for q in random.choice(len(X), n_draws, p=np.array(m) / total):
            w_q = total / (n_draws * m[q])
            weights[q] = weights.get(q, 0) + w_q
            w_b[labels[q]] -= w_q
    return weights, [max(0, w) for w in w_b]


def trim(distances, weights, t):
    """Weights without the farthest points, which together weigh t."""
    kept = list(weights)
    for j in sorted(range(len(kept)), key=lambda j: (-distances[j], j)):
        out = min(t, kept[j])
        kept[j], t = kept[j] - out, t - out
    return kept


def kmeans_minus_minus(X, weights, centres, t, steps=100):
    """Chawla and Gionis 2013, Algorithm 1, with weights, from given centres: (trimmed cost, centres)."""
    last = float("inf"), centres
    for _ in range(steps):
        found = [nearest(x, centres) for x in X]
        kept = trim([d for _, d in found], weights, t)
        trimmed = sum(v * d for v, (_, d) in zip(kept, found))
        if not trimmed < last[0]:
            break
        last = trimmed, centres
        new = []
        for k, old in enumerate(centres):
            mine = [(v, x) for v, x, (label, _) in zip(kept, X, found) if label == k and v > 0]
            w = sum(v for v, _ in mine)
            new.append([sum(v * x[i] for v, x in mine) / w for i in range(len(old))] if w else old)
        centres = new
    return last
