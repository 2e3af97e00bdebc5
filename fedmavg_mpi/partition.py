"""Which client holds which sample: one function a scheme, each giving the client of every sample."""

import warnings

import numpy as np

from fedmavg_mpi import rng
from fedmavg_mpi.errors import ConfigError, DataError


def partition(dataset, config, seed):
    """Give every sample a client.

    Parameters
    ----------
    dataset : Dataset
        N samples.
    config : PartitionConfig
    seed : int

    Returns
    -------
    ndarray of int64 (N,)
        Client of each sample, in ``0 .. P - 1``; every client has a sample. By user, each sample is one.

    Raises
    ------
    DataError
        Fewer samples than clients.
    ConfigError
        ``label_skew`` without labels.
    """
    n_samples = dataset.samples.shape[0]
    if config.scheme == "by_user":
        return np.arange(n_samples)
    if config.n_clients > n_samples:
        raise DataError(
            f"{n_samples} samples for {config.n_clients} clients, expected at least one sample a client; lower partition.n_clients"
        )
    client_of_sample = SCHEMES[config.scheme](dataset, config, rng.generator(seed, rng.PARTITION))
    return _without_empty_clients(client_of_sample, config.n_clients)


def iid(dataset, config, random):
    """Case 1 (paper): parts of equal size, at random."""
    n_samples = dataset.samples.shape[0]
    return random.permutation(np.arange(n_samples) % config.n_clients)


def clustered(dataset, config, random):
    """Case 2 (paper): the samples are grouped by k-means into P groups, one group a client."""
    from sklearn.cluster import KMeans  # here, because only the server needs it, and it costs a rank 50 MB and a second
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than clients: filled up below
        kmeans = KMeans(config.n_clients, n_init=1, random_state=int(random.integers(2**31)))
        return kmeans.fit_predict(dataset.samples).astype(np.int64)


def label_skew(dataset, config, random):
    """Each class is spread over the clients by shares from a symmetric Dirichlet distribution (Hsu, Qi and Brown 2019)."""
    if dataset.labels is None:
        raise ConfigError(
            "partition.scheme = 'label_skew' needs labels and the data have none; set data.labels or another scheme"
        )
    client_of_sample = np.empty(dataset.labels.size, np.int64)
    for label in np.unique(dataset.labels):
        members = random.permutation(np.flatnonzero(dataset.labels == label))
        shares = random.dirichlet(np.full(config.n_clients, config.alpha))
        if not np.isfinite(shares).all():  # a tiny alpha underflows: all to one client, which is its limit
            shares = np.eye(config.n_clients)[random.integers(config.n_clients)]
        edges = np.round(np.cumsum(shares) / shares.sum() * members.size).astype(np.int64)
        client_of_sample[members] = np.searchsorted(edges, np.arange(members.size), side="right").clip(max=config.n_clients - 1)
    return client_of_sample


SCHEMES = {"iid": iid, "clustered": clustered, "label_skew": label_skew}


def _without_empty_clients(client_of_sample, n_clients):
    """Give each empty client one sample of the client that then has most."""
    sizes = np.bincount(client_of_sample, minlength=n_clients)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(sizes.argmax())
        client_of_sample[np.flatnonzero(client_of_sample == largest)[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] = 1
    return client_of_sample
