"""Tests run alone, or as ``mpirun -n K python -m pytest tests/mpi``: then rank 0 speaks for all, and a failure ends all."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# What tests measure of this machine is not for the user's own runs.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"fedmavg_mpi-tests-{os.getuid()}")

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

LAUNCHED = int(os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE") or 1)
RANK = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if RANK > 0:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        config.pluginmanager.unregister(reporter)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and LAUNCHED > 1:
        from mpi4py import MPI

        print(f"\nrank {RANK}: {item.nodeid}\n{report.longreprtext}", file=sys.__stderr__, flush=True)
        MPI.COMM_WORLD.Abort(1)
    return report


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real data: ``FEDMAVG_DATA``, or ``shared/data`` beside the checkout."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDMAVG_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set FEDMAVG_DATA to their folder")
    return folder
