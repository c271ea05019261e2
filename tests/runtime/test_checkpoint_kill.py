"""SIGKILL at random moments of a real process: nothing is lost but what came after the last checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testing import killing

SCRIPT = Path(killing.__file__)
INTERVAL = 0.1


@pytest.mark.parametrize("method", ["pooled", "effort"])
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_and_resumed_the_result_is_the_same(kills, method, tmp_path):
    call = [sys.executable, str(SCRIPT), str(tmp_path), str(kills), str(kills), method]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["kills"] == kills, "the run was over before the last kill"
    assert found["same"]
    # a checkpoint is due when the interval has passed and the next piece is merged; writing it takes a moment
    assert found["repeated"] <= INTERVAL + 2 * found["longest_gap"]
