"""The cluster that these tests share."""

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster():
    """Two emulated nodes of two cores."""
    if reason := missing():
        pytest.skip(reason)
    with Cluster(nodes=2, cores=2) as up:
        yield up
