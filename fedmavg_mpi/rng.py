"""Seeded random streams, one a purpose, keyed by client or round and never by MPI rank.

A run's draws therefore don't depend on the number of ranks, and a stream that is added later disturbs none of the others.
"""

import numpy as np

DATA, PARTITION, START_SHARED, START_LOCAL, SAMPLING, HOLD_OUT, PEERS, CENTRES, SUMMARIES = range(9)


def generator(seed, stream, *keys):
    """The generator of one purpose.

    Parameters
    ----------
    seed : int
        The run's seed.
    stream : int
        One of the constants of this module.
    keys : int
        Client id, round or both, where the purpose has them.

    Returns
    -------
    numpy.random.Generator
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream, *(keys or (0,))))))
