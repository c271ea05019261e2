"""The weights that come with the library: with the settings of the paper profile, as close as the docs say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mlmc_dropout.pinn import BoundaryLayer, SourceInference, pretrained
from mlmc_dropout.pinn.evaluation import dropout_moments, grid, relative_error
from mlmc_dropout.pinn.problem import Problem

CASES: list[tuple[type[Problem], dict[str, float]]] = [
    (BoundaryLayer, {"u": 0.05}),
    (SourceInference, {"u": 0.02, "f": 0.05}),
]


@pytest.mark.parametrize(("problem", "limits"), CASES)
def test_dropout_mean_is_close_to_the_exact_solution(problem: type[Problem], limits: dict[str, float]) -> None:
    """With other passes than those of the summary; the summary must agree with what is measured here."""
    run = pretrained(problem.name)
    x = grid(run.config)
    moments = dropout_moments(replace(run.config, seed=1), run.model, x, passes=2000)
    exact = run.problem.exact_mean(x)
    for name, limit in limits.items():
        error = relative_error(moments[name][0], exact[name])
        # the error of the mean itself, from 2000 passes
        noise = float((moments[name][1] / 2000).sum().sqrt() / exact[name].norm())
        print(f"{problem.name} {name}: relative L2 error {error:.4f} (limit {limit}, sampling noise {noise:.4f})")
        assert error < limit
        assert run.summary["relative_l2_of_mean"][name] == pytest.approx(error, abs=5 * noise)


@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference])
def test_the_settings_are_the_papers(problem: type[Problem]) -> None:
    run = pretrained(problem.name)
    assert run.config == problem.profile("paper")
    assert run.history[-1][0] == run.config.epochs
    files = {path.name for path in run.path.iterdir()}
    assert "checkpoint.safetensors" not in files
    assert {"loss.png", "solution.png"} <= files
    assert sum(path.stat().st_size for path in run.path.iterdir()) < 1_000_000
    assert json.loads((run.path / "run.json").read_text())["revision"]


def test_the_untrained_network_would_fail() -> None:
    run = pretrained("boundary-layer")
    x = grid(run.config)
    fresh: dict[str, Tensor] = {name: torch.zeros_like(t) for name, t in run.model.state_dict().items()}
    run.model.load_state_dict(fresh)
    moments = dropout_moments(run.config, run.model, x, passes=10)
    assert relative_error(moments["u"][0], run.problem.exact_mean(x)["u"]) == pytest.approx(1.0)
