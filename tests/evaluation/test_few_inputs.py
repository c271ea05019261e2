"""Levels of few inputs: one that got a single input by bad luck, and runs that are too short for several levels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mlmc_dropout.evaluation.evaluate import _look, _readings
from mlmc_dropout.evaluation.goal import EvaluationGoal
from mlmc_dropout.evaluation.levels import LevelState
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.evaluation.plan import Planner
from mlmc_dropout.evaluation.strata import Part


def samples(level: int, count: int, falls: float = 4.0) -> LevelState:
    rng = np.random.default_rng(level)
    f, delta, below = rng.normal(1.0, 0.3, (3, count, 1)) * [[[1.0]], [[falls**-level]], [[falls ** (1 - level)]]]
    return LevelState.of(f, delta, delta, below, rng.normal(0, 0.1, (count, 2)))


def test_a_level_with_one_input_does_not_make_the_estimate_nan() -> None:
    metrics = select_metrics(("entropy",), "logits", False)
    planner = Planner("mlmc", None, EvaluationGoal(0.1, True, None), metrics)
    states = tuple(samples(level, count) for level, count in enumerate((40, 40, 100, 20, 1)))
    progress = SimpleNamespace(strata=None, parts=(Part(states, rows=1000),), rows=1000)
    run = SimpleNamespace(progress=progress, planner=planner, data=SimpleNamespace(once=False))
    looked = _look(run, planner)
    (reading,) = _readings(run, looked)
    assert np.isfinite([reading.value, reading.stderr, reading.bias]).all() and reading.stderr > 0
    assert looked[0][1].top < 4


@pytest.mark.parametrize(("design", "several"), [(1, False), (4, True)])
def test_a_run_is_short_beside_its_own_pilot(design: int, several: bool) -> None:
    """4000 passes are 8 times a pilot of 480; 4000 designs are 16 times one of 240, enough for several levels."""
    metrics, rows = select_metrics(("entropy",), "logits", False), 10**6
    planner = Planner("mlmc", None, EvaluationGoal(None, True, 4000 / rows), metrics, design)
    states = [samples(level, count, 2.0) for level, count in enumerate((40, 40, 100, 20))]
    chosen = planner._choose(planner.statistics(states, rows))
    assert (chosen.base < chosen.top) == several
