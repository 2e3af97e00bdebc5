"""The one way in which functions are compiled here."""

import contextlib
from pathlib import Path

import numba

# What has been compiled into a function may stand in any of these files; numba itself looks at the function's own only.
_SOURCES = tuple((path.name, path.stat().st_mtime, path.stat().st_size) for path in sorted(Path(__file__).parent.glob("*.py")))


def jit(function):
    """Compile with numba, kept on disk where a cache folder can be written and in memory where none can.

    Only contraction to fused multiply-adds is allowed, no reordering of sums: a column's result must not depend on the
    columns beside it.
    """
    options = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder that it may write to
        return numba.njit(**options)(function)
    with contextlib.suppress(AttributeError):  # numba has no public way to say this; it may come to keep it elsewhere
        compiled._cache._cache_file._source_stamp = _SOURCES  # what was kept is void when it changes
    return compiled
