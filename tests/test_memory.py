"""A rank reads its own clients' slab and no more."""

import json

import numpy as np
from launch import fedmavg

from fedmavg_mpi import store
from fedmavg_mpi.datasets import Dataset

CONSTANT = 250e6  # interpreter, libraries, compiled kernels


def test_a_workers_peak_is_its_slab_and_a_constant(tmp_path):
    samples = np.random.default_rng(0).random((12_000, 4_000))
    path = tmp_path / "store.h5"
    store.write(path, Dataset(samples), np.arange(12_000) % 30, "by hand")
    nbytes = samples.nbytes  # 384 MB
    for ranks, slab in ((2, nbytes), (4, nbytes / 3)):
        out = tmp_path / f"run{ranks}"
        settings = ["data.source=store", f"data.path={path}", "stop.max_rounds=2", "run.progress=off", "model.n_components=5"]
        job = tmp_path / "job.toml"
        job.write_text("")
        done = fedmavg("run", job, "--out", out, *[word for setting in settings for word in ("--set", setting)], ranks=ranks)
        assert done.returncode == 0, done.stderr
        peaks = json.loads(fedmavg("summary", out, "--json").stdout)["peak_memory_bytes"]
        assert len(peaks) == ranks
        for peak in peaks[1:]:
            assert peak <= 1.15 * slab + CONSTANT, f"{peak / 1e6:.0f} MB for a slab of {slab / 1e6:.0f} MB"
        assert peaks[0] <= CONSTANT, "the server holds no samples"
