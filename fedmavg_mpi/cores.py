"""The processor cores that this process may use."""

import os


def usable_cores():
    """Their numbers, as a list: those that a launcher or batch system has bound the process to, else all of the host."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # where a process can't be bound, as on macOS
