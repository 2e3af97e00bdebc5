"""What numba keeps of compiled kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment

from fedmavg_mpi.kernels import jit, tiles

CALL = """
import numpy as np
from fedmavg_mpi.kernels import dense
out = np.zeros((1, 1, 1))
dense.grams(np.ones((1, 4)), np.array([0]), np.array([4]), out)
print(out[0, 0, 0], len(dense.grams.stats.cache_hits))
"""


@pytest.mark.skipif(not tiles.COMPILED, reason="of the compiled kernels")
def test_a_change_in_one_file_is_seen_by_kernels_of_another(tmp_path):
    """Else a kernel of an updated package would go on with parts of the one before."""
    package = tmp_path / "fedmavg_mpi"
    shutil.copytree(Path(jit.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    env = environment(PYTHONPATH=str(tmp_path), NUMBA_CACHE_DIR=str(tmp_path / "cache"))

    def call():
        done = subprocess.run([sys.executable, "-c", CALL], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert [call(), call()] == [["4.0", "0"], ["4.0", "1"]]
    source = package / "kernels" / "tiles.py"
    text = source.read_text()
    assert text.count("samples, width, m > 0") == 1
    source.write_text(text.replace("samples, width, m > 0", "samples, width - 1, m > 0"))
    os.utime(source, (0, 0))
    assert call() == ["3.0", "0"]
