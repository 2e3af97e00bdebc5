"""A run's course: what each evaluation found, and what clients and server had moved until then."""

import numpy as np

PROTOCOL = ("uplink_values", "uplink_bytes", "downlink_values", "downlink_bytes")


def by_evaluation(attributes, data):
    """One entry an evaluation.

    Parameters
    ----------
    attributes, data : dict
        A run, as :func:`fedmavg_mpi.results.read` gives it.

    Returns
    -------
    dict of str to ndarray
        ``round``, ``objective`` and the measures; the sums of :data:`PROTOCOL` so far, what was sent before the first round included.
    """
    columns = {name.removeprefix("evaluations/"): values for name, values in data.items() if name.startswith("evaluations/")}
    for name in PROTOCOL:
        so_far = int(attributes[f"setup_{name}"]) + np.r_[0, np.cumsum(data[f"rounds/{name}"])]
        columns[name] = so_far[columns["round"]]
    return columns
