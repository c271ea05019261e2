"""SIGKILL at random moments of a real process: nothing is lost but what came after the last checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testing import killing, rows_killed

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


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "dask"])
@pytest.mark.parametrize("case", list(rows_killed.CASES))
def test_inputs_that_stop_one_by_one_survive_kills_of_a_driver_with_workers(case, where, tmp_path):
    if where == "dask":
        pytest.importorskip("distributed")
    call = [sys.executable, "-m", "testing.rows_killed", str(tmp_path), "10", "0", case, where]
    done = subprocess.run(call, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["kills"] == 10 and found["same"]
    assert found["different_passes"] > 1
