"""A sum whose bits don't depend on who adds."""

import numpy as np


def in_order_sum(values):
    """The sum over the first axis, one after the other in its order, where ``sum`` may pair its terms: ndarray (...) from (n x ...)."""
    return np.add.accumulate(values, axis=0)[-1] if len(values) else np.zeros(values.shape[1:])
