"""The one way in which functions are compiled here."""

import numba


def jit(function):
    """Compile with numba, kept on disk where a cache folder can be written and in memory where none can.

    Only contraction to fused multiply-adds is allowed, no reordering of sums: a column's result must not depend on the
    columns beside it.
    """
    options = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder that it may write to
        return numba.njit(**options)(function)
