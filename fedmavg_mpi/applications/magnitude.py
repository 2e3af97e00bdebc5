"""Whether the data's squares, which every step and the objective are made of, stay in the range of the run's precision."""

import numpy as np

from fedmavg_mpi.errors import DataError


def check_magnitude(norm2, largest, n, dtype, advice):
    """Raise DataError where they don't.

    Parameters
    ----------
    norm2 : float
        The sum of all squares.
    largest : float
        The largest absolute value.
    n : int
        Number of samples.
    dtype : str
    advice : str
        What to do.
    """
    highest, lowest = float(np.finfo(dtype).max), float(np.finfo(dtype).tiny)
    if not np.isfinite(norm2) or norm2 > highest / 1e6:
        found = f"values up to {largest:.3g}, whose squares overflow" if not np.isnan(norm2) else "values that are not numbers"
    elif largest > 0 and norm2 < lowest * 1e6 * n:
        found = f"values of at most {largest:.3g}, whose squares vanish"
    else:
        return
    raise DataError(f"{found} in {dtype}; expected moderate numbers: {advice}")
