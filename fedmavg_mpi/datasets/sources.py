"""The data sources by name. A new one is a file with a ``load(config, seed)`` and a line in the table."""

from fedmavg_mpi.datasets import expression, matrix, movielens, synthetic
from fedmavg_mpi.datasets.normalize import normalize
from fedmavg_mpi.errors import ConfigError, DataError

SOURCES = {"synthetic": synthetic.load, "expression": expression.load, "matrix": matrix.load, "movielens": movielens.load}


def load(config, seed):
    """Read or make the data set that a run asks for.

    Parameters
    ----------
    config : Config
        The whole configuration; its ``data`` section is read.
    seed : int
        The run's seed.

    Returns
    -------
    Dataset
        N x M samples, checked (finite, non-negative) and normalized; or ratings, users x items.

    Raises
    ------
    ConfigError, DataError
        An unknown source, or data that can't be used.
    """
    name = config.data.source
    if name not in SOURCES:
        raise ConfigError(f"data.source = {name!r} is none that is loaded; known: {', '.join(SOURCES)}")
    origin = config.data.path if name != "synthetic" else "synthetic data"
    try:
        dataset = SOURCES[name](config.data, seed)
        dataset.check(origin)
        return normalize(dataset, config.data.normalize)
    except MemoryError:
        raise DataError(f"{origin}: doesn't fit in memory; take fewer samples or features, or a sparse format") from None
