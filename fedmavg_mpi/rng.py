"""Seeded random streams, one a purpose, keyed by client or round and never by MPI rank.

A run's draws therefore don't depend on the number of ranks, and a stream that is added later disturbs none of the others.
"""

import numpy as np

DATA, PARTITION, START_SHARED, START_LOCAL, SAMPLING, HOLD_OUT, PEERS = range(7)


def generator(seed, stream, key=0):
    """The generator of one purpose.

    Parameters
    ----------
    seed : int
        The run's seed.
    stream : int
        One of the constants of this module.
    key : int
        Client id or round, where the purpose has one.

    Returns
    -------
    numpy.random.Generator
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, key))))
