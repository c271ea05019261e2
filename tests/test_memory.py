"""Memory does not grow with the number of passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing import memory_probe

PROBE = Path(memory_probe.__file__)
ALLOWED = 50.0  # MB


def growth(passes: int, *options: str) -> float:
    """MB between the peaks for 10³ and for ``passes`` passes of a small net on 100 inputs."""
    command = [sys.executable, str(PROBE), str(passes), *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_hundred_thousand_passes_need_the_memory_of_a_thousand():
    assert growth(100_000) < ALLOWED


def test_the_probe_sees_stored_passes():
    """Negative control: 2 × 10⁵ kept passes of 100 inputs are 80 MB."""
    assert growth(100_000, "--keep") > ALLOWED


@pytest.mark.slow
def test_a_million_passes_need_the_memory_of_a_thousand():
    assert growth(1_000_000) < ALLOWED
