"""What an evaluation finds."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Evaluation:
    """The state of the factors, as the server sees it.

    Attributes
    ----------
    objective : callable(rho) -> float
        The relative objective under a penalty.
    n_changed : int
        Samples whose cluster has changed since the penalty was last raised.
    metrics : dict of str to float
        By name; NaN where the data allow none.
    """

    objective: Callable
    n_changed: int = 0
    metrics: dict = field(default_factory=dict)
