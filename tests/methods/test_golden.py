"""Numbers stay what they were: another processor rounds differently, so they are compared to a few digits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from testing.golden import MODELS, PATH, RUNS, values

KEPT = json.loads(PATH.read_text())
pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("run", RUNS)
def test_results_are_those_that_were_kept(model: str, run: str) -> None:
    kept, now = KEPT[f"{model}/{run}"], values(model, run)
    assert (now["cost"], now["method"]) == (kept["cost"], kept["method"])
    for name in ("mean", "variance", "mean_stderr", "variance_stderr"):
        np.testing.assert_allclose(now[name], kept[name], rtol=2e-3, atol=1e-7)
