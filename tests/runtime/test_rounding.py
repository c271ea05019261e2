"""Standard errors allow for the rounding of the model's numbers; goals at the edge of what is possible."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.errors import InputError
from mlmc_dropout.methods.base import Estimates
from mlmc_dropout.quantities.student import student_factor
from mlmc_dropout.result import Status
from mlmc_dropout.runtime import progress
from mlmc_dropout.runtime.progress import LongRunWarning
from mlmc_dropout.runtime.rounding import at_precision
from testing.runs import METHODS, small


def one_hidden(width: int, p: float) -> tuple[nn.Module, torch.Tensor]:
    """Linear in its mask: the expansion is exact, and all that is left is rounding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(width)
        return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Dropout(p), nn.Linear(width, 2)), torch.randn(50, 3)


def exact(model: nn.Module, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of :func:`one_hidden` in float64."""
    first, activation, dropout, head = (part.double().eval() for part in model)
    with torch.no_grad():
        hidden = activation(first(x.double()))
        variance = hidden**2 @ (head.weight**2).T * dropout.p / (1 - dropout.p)
        return head(hidden).numpy(), variance.numpy()


@pytest.mark.parametrize("width", [16, 256])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_errors_in_closed_form_are_within_a_few_stated_standard_errors(width, p):
    """Without the floor they are off by 10⁸ standard errors; 100 components, the largest error within 3."""
    model, x = one_hidden(width, p)
    found = md.estimate(model, x, method="control-variate", budget=400)
    mean, variance = exact(model, x)
    assert np.abs((found.mean - mean) / found.mean_stderr).max() < 3
    assert np.abs((found.variance - variance) / found.variance_stderr).max() < 3
    assert found.mean_stderr.max() < 1e-6  # and it is the rounding only


def test_in_float64_the_floor_is_that_of_float64():
    model, x = one_hidden(16, 0.1)
    found = md.estimate(model.double(), x.double(), method="control-variate", budget=400)
    assert 0 < found.mean_stderr.max() < 1e-14


@pytest.mark.parametrize("name", ["pooled", "nested"])
def test_passes_that_differ_by_far_more_than_rounding_are_left_as_they_are(name):
    model, x = small()
    found = md.estimate(model, x, budget=900, **METHODS[name])
    assert "rounding" not in " ".join(found.notes)
    if name == "pooled":
        np.testing.assert_allclose(found.mean_stderr, np.sqrt(found.variance / 900) * student_factor(900), rtol=1e-5)


def test_the_floor_is_never_above_what_plain_averaging_knows():
    values = np.array([[100.0]])
    found = Estimates(values, np.array([[1.0]]), np.array([[1e-12]]), np.array([[1e-12]]), cost=1e12)
    assert at_precision(found, torch.float32).mean_stderr.item() == pytest.approx(1e-6)  # sqrt(1/1e12) < 4 eps 100
    assert at_precision(replaced(found, 100.0), torch.float32).mean_stderr.item() == pytest.approx(4.77e-5, rel=1e-2)


def replaced(found: Estimates, cost: float) -> Estimates:
    return Estimates(found.mean, found.variance, found.mean_stderr, found.variance_stderr, cost)


class Offset(nn.Module):
    """Outputs near 10⁶ that differ by 10⁻² from pass to pass, which float32 cannot tell apart there."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e-2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.scale * torch.ones_like(x), 0.5, True) + 1e6


@pytest.mark.parametrize("method", ["pooled", "stratified"])
def test_differences_lost_in_rounding_are_noted(method):
    x = torch.zeros(4, 1)
    single = md.estimate(Offset(), x, method=method, budget=400)
    assert any("lost in rounding" in note and "model.double()" in note for note in single.notes)
    assert (np.abs(single.mean - (1e6 + 1e-2)) <= single.mean_stderr).all()
    double = md.estimate(Offset().double(), x.double(), method=method, budget=400)
    assert not any("lost in rounding" in note for note in double.notes)
    assert np.allclose(double.variance, 1e-4, rtol=0.2)


def test_probabilities_close_to_one_are_no_case_of_lost_digits():
    model, x = small()
    found = md.estimate(
        model, x, method="pooled", budget=200, transform=lambda out: torch.softmax(out * 0 + torch.tensor([50.0, 0]), 1)
    )
    assert not any("lost in rounding" in note for note in found.notes)


def test_a_tolerance_below_rounding_stops_with_a_status_of_its_own():
    model, x = one_hidden(16, 0.1)
    found = md.estimate(model, x, method="control-variate", tolerance=1e-12)
    assert found.status is Status.PRECISION_REACHED and found.mean_stderr.max() > 1e-12
    assert found.cost < 2000


def test_plain_averaging_of_half_precision_goes_on_below_its_rounding():
    """Passes differ by more than they are rounded, so that rounding averages out; 4·eps is 1.6 % of a mean here."""
    model, x = small()
    found = md.estimate(model.bfloat16(), x.bfloat16() + 3, method="pooled", tolerance=2e-3)
    assert found.status is Status.TOLERANCE_MET and found.mean_stderr.max() <= 2e-3


# ------------------------------------------------------------------------------------- extremes


@pytest.mark.parametrize("method", ["pooled", "auto", "mlmc"])
@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ({"budget": 10**400}, "number of passes"),
        ({"budget": 10**5000}, "thousands of digits"),
        ({"budget": 1e16}, "would never end"),
        ({"budget": float("inf")}, "number of passes"),
        ({"tolerance": 1e-300}, "between 1e-100 and 1e"),
        ({"tolerance": 10**400}, "between 1e-100 and 1e"),
        ({"tolerance_variance": 1e-300}, "between 1e-100 and 1e"),
        ({"tolerance": 1e-90}, "would take about"),
        ({"tolerance": 1e-90, "relative": True}, "would take about"),
    ],
)
def test_goals_beyond_reason_are_refused_by_name(method, goal, words):
    model, x = small()
    with pytest.raises(InputError, match=words):
        md.estimate(model, x, method=method, **goal)


@pytest.mark.parametrize("method", ["pooled", "auto", "mlmc"])
@pytest.mark.parametrize("goal", [{"tolerance": 1e-90, "budget": 400}, {"tolerance": 1e90}])
def test_goals_at_the_edge_work(method, goal):
    model, x = small()
    found = md.estimate(model, x, method=method, **goal)
    assert found.status is (Status.TOLERANCE_MET if len(goal) == 1 else Status.BUDGET_EXHAUSTED)


def test_a_budget_for_years_begins_with_a_forecast_and_can_be_stopped(monkeypatch, interrupt_after):
    model, x = small()
    monkeypatch.setattr(progress, "FORECAST_AFTER", 0.2)
    interrupt_after(400)
    with pytest.warns(LongRunWarning, match=r"days\) for this batch"):
        found = md.estimate(model, x, method="pooled", budget=10**12)
    assert found.status is Status.STOPPED


def test_no_forecast_for_short_runs(monkeypatch):
    model, x = small()
    monkeypatch.setattr(progress, "FORECAST_AFTER", 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started = time.monotonic()
        md.estimate(model, x, method="pooled", budget=5000)
    assert time.monotonic() - started < progress.LONG


def test_budgets_beyond_a_round_are_spent_in_several(monkeypatch):
    model, x = small()
    expected = md.estimate(model, x, method="pooled", budget=1280)
    monkeypatch.setattr("mlmc_dropout.stopping.goal.MAX_ROUND", 512)
    found = md.estimate(model, x, method="pooled", budget=1280)
    assert found.cost == 1280 and np.array_equal(found.mean, expected.mean)
