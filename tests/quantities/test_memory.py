"""Memory with all class quantities: flat in the passes, and within the limit for classes of pixels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing import quantity_memory

PROBE = Path(quantity_memory.__file__)
ALLOWED = 50.0  # MB
LIMIT = 32  # MiB
RESULTS = 2 * 64 * 64 * (8 * 12 + 10 + 8 * 17) * 8 / 2**20  # moments, levels and means over 8 groups, of both images

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def growth(*arguments: object) -> float:
    command = [sys.executable, str(PROBE), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("method", ["pooled", "stratified", "control-variate", "mlmc"])
def test_a_hundred_thousand_passes_of_a_classifier_need_the_memory_of_a_thousand(method):
    assert growth("digits", method, 100_000) < ALLOWED


@pytest.mark.parametrize("method", ["pooled", "stratified", "auto"])
def test_the_limit_bounds_the_classes_of_pixels(method):
    assert growth("segmentation", method, 200, LIMIT) <= 2 * LIMIT + RESULTS
