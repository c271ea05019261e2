"""Memory does not grow with the number of passes, and the limit bounds that of wide outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.sampling import source
from testing import memory_probe

PROBE = Path(memory_probe.__file__)
WIDE = Path(__file__).parents[1] / "benchmarks" / "wide_outputs.py"
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


# --------------------------------------------------------------------------------- wide outputs


def wide_case(case: str, method: str) -> dict[str, float]:
    """Peak, results (MiB) and seconds of a case of the benchmark, in a fresh process."""
    command = [sys.executable, str(WIDE), "--case", case, "--how", method]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", ["pooled", "stratified"])
def test_the_limit_bounds_an_image(method):
    """128 × 128 × 8 outputs under 32 MiB; 128 passes of them in float64 are 128 MiB."""
    found = wide_case("image 128 x 128 x 8", method)
    assert found["peak"] <= 2 * 32 + found["results"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", ["pooled", "stratified", "auto"])
@pytest.mark.parametrize(("case", "limit"), [("image 256 x 256 x 8", 128), ("2 rows of 1e6 outputs", 512)])
def test_the_limit_bounds_wide_outputs(case, limit, method):
    found = wide_case(case, method)
    assert found["peak"] <= 2 * limit + found["results"]


def wide_network(outputs: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(16, outputs)).eval(), torch.randn(3, 2)


ARRAYS = ("mean", "variance", "mean_stderr", "variance_stderr")
wide_methods = pytest.mark.parametrize("method", ["pooled", "stratified", "auto"])


@wide_methods
def test_passes_that_are_not_held_give_the_same_estimates(method, monkeypatch):
    """Against the same run with all passes of a task in memory, to rounding."""
    model, x = wide_network(source.WIDE + 1)
    folded = md.estimate(model, x, method=method, budget=300)
    monkeypatch.setattr(source, "WIDE", 10**9)
    held = md.estimate(model, x, method=method, budget=300)
    for name in ARRAYS[:2]:
        np.testing.assert_allclose(getattr(folded, name), getattr(held, name), rtol=1e-9, atol=1e-13)
    for name in ARRAYS[2:]:  # passes that are not held know less of their skewness, for which errors are widened
        ratio = getattr(folded, name) / getattr(held, name)
        assert 0.97 < np.median(ratio) < 1.03 and np.mean(np.abs(ratio - 1) < 0.2) > 0.9
    assert not all(np.array_equal(getattr(folded, name), getattr(held, name)) for name in ARRAYS)  # two ways indeed


@wide_methods
def test_neither_limit_nor_chunk_changes_a_bit_of_wide_outputs(method):
    model, x = wide_network(source.WIDE + 1)
    whole = md.estimate(model, x, method=method, budget=150)
    for options in ({"memory_limit": 1 << 20}, {"memory_limit": 1 << 24}, {"chunk": 1}, {"chunk": 7}):
        other = md.estimate(model, x, method=method, budget=150, **options)
        assert all(np.array_equal(getattr(whole, name), getattr(other, name)) for name in ARRAYS), options


@pytest.mark.parametrize("method", ["pooled", "stratified"])
def test_wide_outputs_that_are_not_finite_are_refused(method):
    model, x = wide_network(source.WIDE + 1)
    with torch.no_grad():
        model[-1].bias[5] = torch.inf
    with pytest.raises(md.NonFiniteOutputError, match=r"output\[5\]"):
        md.estimate(model, x, method=method, budget=100)
