"""Samples to clients, and clients to ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmavg_mpi.config import PartitionConfig
from fedmavg_mpi.datasets import Dataset
from fedmavg_mpi.errors import ConfigError, DataError
from fedmavg_mpi.partition import SCHEMES, partition
from fedmavg_mpi.placement import Placement, balanced_cut


def data(n_samples=200, n_classes=5, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, n_classes, n_samples).astype(np.int32)
    return Dataset(
        10.0 * np.eye(n_classes)[labels] + random.random((n_samples, n_classes)), labels=labels, label_names=list("abcde")
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n_clients", [1, 7, 200])
def test_every_client_has_a_sample_and_the_seed_decides(scheme, n_clients):
    config = PartitionConfig(scheme=scheme, n_clients=n_clients)
    first, again, other = (partition(data(), config, seed) for seed in (0, 0, 1))
    assert first.shape == (200,) and set(first) == set(range(n_clients))
    assert (first == again).all()
    if n_clients == 7:
        assert (first != other).any()


def test_iid_is_equal_parts():
    sizes = np.bincount(partition(data(), PartitionConfig(scheme="iid", n_clients=7), 0))
    assert sizes.max() - sizes.min() <= 1


def test_clustered_follows_the_clusters():
    dataset = data()
    clients = partition(dataset, PartitionConfig(scheme="clustered", n_clients=5), 0)
    assert all(len(set(dataset.labels[clients == p])) == 1 for p in range(5))


@pytest.mark.parametrize(("alpha", "low", "high"), [(1e-3, 0.95, 1.0), (1e3, 0.1, 0.15)])
def test_label_skew_goes_from_one_client_a_class_to_even(alpha, low, high):
    dataset = data(2000)
    clients = partition(dataset, PartitionConfig(scheme="label_skew", n_clients=10, alpha=alpha), 0)
    largest = [np.bincount(clients[dataset.labels == label]).max() for label in range(5)]
    assert low <= sum(largest) / 2000 <= high


def test_identical_samples_still_give_every_client_one():
    clients = partition(Dataset(np.ones((30, 4))), PartitionConfig(scheme="clustered", n_clients=10), 0)
    assert set(clients) == set(range(10))


def test_what_cannot_be_cut():
    with pytest.raises(DataError, match="200 samples for 201 clients"):
        partition(data(), PartitionConfig(n_clients=201), 0)
    with pytest.raises(ConfigError, match="needs labels"):
        partition(Dataset(np.ones((30, 4))), PartitionConfig(scheme="label_skew", n_clients=3), 0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 12))
def test_the_cut_is_contiguous_complete_and_balanced(sizes, n_workers):
    cut = balanced_cut(np.array(sizes), n_workers)
    assert cut[0] == 0 and cut[-1] == len(sizes) and (np.diff(cut) >= 0).all() and len(cut) == n_workers + 1
    loads = [sum(sizes[a:b]) for a, b in zip(cut[:-1], cut[1:], strict=True)]
    assert max(loads) == smallest_largest(sizes, n_workers)


def smallest_largest(sizes, n_workers):
    """The least that the largest of so many runs can be, by trying every first end."""
    best = {(0, 0): 0}
    for i in range(1, n_workers + 1):
        for end in range(len(sizes) + 1):
            starts = [start for start in range(end + 1) if (i - 1, start) in best]
            if starts:
                best[i, end] = min(max(best[i - 1, start], sum(sizes[start:end])) for start in starts)
    return best[n_workers, len(sizes)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 9), st.data())
def test_placement_answers_agree(sizes, n_ranks, drawn):
    placement = Placement(np.array(sizes), n_ranks)
    clients = np.array(sorted(drawn.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))))
    owner = {p: rank for rank in range(n_ranks) for p in placement.clients_of(rank)}
    assert sorted(owner) == list(range(len(sizes)))
    assert n_ranks == 1 or 0 not in owner.values()
    assert placement.ranks_of(clients) == tuple(sorted({owner[p] for p in clients}))
    assert placement.split(clients).tolist() == [sum(owner[p] == rank for p in clients) for rank in range(n_ranks)]
