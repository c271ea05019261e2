"""The pool of mpi4py, in real MPI processes; skipped where MPI is not installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import numpy as np, torch
from mpi4py.futures import MPIPoolExecutor
from torch import nn
from mlmc_dropout import estimate

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))
    x = torch.randn(20, 3)
    for method in ("pooled", "auto", "mlmc"):
        alone = estimate(model, x, method=method, budget=2000)
        with MPIPoolExecutor() as pool:
            together = estimate(model, x, method=method, budget=2000, executor=pool)
        assert np.array_equal(alone.mean, together.mean), method
        assert np.array_equal(alone.variance, together.variance), method
        print(method)
"""


def test_an_mpi_pool_gives_the_same_bits(tmp_path):
    here = [sys.executable, "-c", "from mpi4py import MPI"]
    if shutil.which("mpiexec") is None or subprocess.run(here, capture_output=True, check=False).returncode:
        pytest.skip("needs mpiexec and mpi4py")
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(SCRIPT))
    command = ["mpiexec", "-n", "3", sys.executable, "-m", "mpi4py.futures", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pooled", "auto", "mlmc"]
