"""Runs that stop at a tolerance: the rule, the cap, the words, every method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.errors import AllocationError, InputError
from mlmc_dropout.result import Status
from mlmc_dropout.stopping.goal import TRUSTED, Goal
from testing.runs import METHODS, digest, small


@pytest.mark.parametrize("effort", ["adaptive", "equal"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_meets_a_tolerance_for_the_mean(name, effort):
    model, x = small()
    tight = md.estimate(model, x, tolerance=0.009, effort=effort, **METHODS[name])
    loose = md.estimate(model, x, tolerance=0.018, effort=effort, **METHODS[name])
    assert tight.status is loose.status is Status.TOLERANCE_MET
    assert tight.mean_stderr.max() <= 0.009 and loose.mean_stderr.max() <= 0.018
    assert tight.cost >= loose.cost or (effort, name) == ("adaptive", "auto")  # the least passes of two methods


@pytest.mark.parametrize("name", METHODS)
def test_every_method_meets_a_tolerance_for_the_variance(name):
    model, x = small()
    result = md.estimate(model, x, tolerance_variance=0.004, **METHODS[name])
    assert result.status is Status.TOLERANCE_MET
    assert result.variance_stderr.max() <= 0.004


def test_both_tolerances_have_to_be_met():
    model, x = small()
    either = [
        md.estimate(model, x, method="pooled", **goal) for goal in ({"tolerance": 0.01}, {"tolerance_variance": 0.001})
    ]
    both = md.estimate(model, x, method="pooled", tolerance=0.01, tolerance_variance=0.001)
    assert both.cost >= max(result.cost for result in either)
    assert both.mean_stderr.max() <= 0.01 and both.variance_stderr.max() <= 0.001


def test_relative_tolerances_are_in_units_of_the_largest_estimate_of_each_output():
    model, x = small()
    with torch.no_grad():  # one output a thousand times the other
        model[-1].weight[1] *= 1000.0
        model[-1].bias[1] *= 1000.0
    result = md.estimate(model, x, method="pooled", tolerance=0.01, relative=True)
    scale = np.abs(result.mean).max(axis=0)
    assert scale[1] > 100 * scale[0]
    assert (result.mean_stderr / scale).max() <= 0.01
    assert result.mean_stderr.max() > 0.01 * scale.min()  # the absolute rule would have gone on


def test_a_quantile_lets_the_worst_components_go():
    model, x = small(rows=20)
    everything = md.estimate(model, x, method="pooled", tolerance=0.01)
    most = md.estimate(model, x, method="pooled", tolerance=0.01, quantile=0.5)
    assert most.cost < everything.cost
    assert np.mean(most.mean_stderr <= 0.01) >= 0.5
    assert np.mean(most.mean_stderr <= 0.01) < 1.0


def test_the_budget_is_a_cap_and_the_result_says_how_far_it_got():
    model, x = small()
    full = md.estimate(model, x, method="pooled", tolerance=0.003)
    capped = md.estimate(model, x, method="pooled", tolerance=0.003, budget=500)
    assert capped.status is Status.BUDGET_EXHAUSTED and capped.cost <= 500
    words = next(note for note in capped.notes if "times the tolerance" in note)
    factor, predicted = float(words.split(" times")[0].split()[-1]), float(words.split("about ")[1].split()[0])
    assert factor == pytest.approx(capped.mean_stderr.max() / 0.003, rel=0.01)
    assert predicted == pytest.approx(full.cost, rel=0.25)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [300, 703.5])
def test_no_method_exceeds_its_budget(name, budget):
    model, x = small()
    result = md.estimate(model, x, budget=budget, tolerance=1e-9, **METHODS[name])
    assert result.status is Status.BUDGET_EXHAUSTED
    assert 0.7 * budget <= result.cost <= budget
    plain = md.estimate(model, x, budget=budget, **METHODS[name])
    assert plain.status is Status.COMPLETED and plain.cost <= budget


def test_pilot_passes_are_kept():
    """The passes of a run to a tolerance are those of a run with that budget: none is thrown away or repeated."""
    model, x = small()
    stopped = md.estimate(model, x, method="pooled", tolerance=0.005, effort="equal")
    budgeted = md.estimate(model, x, method="pooled", budget=stopped.cost)
    assert stopped.levels[0].count == stopped.cost
    np.testing.assert_allclose(stopped.mean, budgeted.mean, rtol=1e-12)
    np.testing.assert_allclose(stopped.variance, budgeted.variance, rtol=1e-10)


def test_fields_and_dictionaries_follow_the_same_rule():
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 8)

    def model(x):
        h = torch.nn.functional.dropout(torch.tanh(layer(x)), 0.2, True)
        return {"field": h.reshape(-1, 2, 4), "sum": 0.1 * h.sum(1)}

    result = md.estimate(model, torch.randn(4, 3), method="pooled", tolerance=0.02)
    assert result.mean["field"].shape == (4, 2, 4)
    assert max(leaf.max() for leaf in result.mean_stderr.values()) <= 0.02


def test_every_batch_meets_the_tolerance_by_itself():
    model, x = small(rows=12)
    result = md.estimate(model, [x[:4], x[4:8], x[8:]], method="pooled", tolerance=0.006)
    alone = md.estimate(model, x[:4], method="pooled", tolerance=0.006)
    assert result.mean_stderr.max() <= 0.006
    np.testing.assert_array_equal(result.mean[:4], alone.mean)


def test_an_adaptive_ladder_grows_until_the_finest_correction_is_negligible():
    model, x = small()
    result = md.estimate(model, x, method="mlmc", ladder="adaptive", budget=3000)
    ladder = [level.fidelity for level in result.levels]
    assert ladder == [2 ** (i + 1) for i in range(len(ladder))]
    for name in ("variance", "variance_V"):
        shares = np.array([getattr(level, name).mean() for level in result.levels])
        assert shares[-1] / shares.sum() < 0.07  # 0.05 at the pilot that settled it
    short = md.estimate(model, x, method="mlmc", ladder="adaptive", budget=300)
    assert len(short.levels) < len(ladder) and short.cost <= 300
    assert result.metadata["ladder"] == ladder


def test_no_dropout_noise_is_no_reason_to_go_on():
    """A component that does not vary has standard error 0 and meets every tolerance, relative or not."""
    model, x = small()
    with torch.no_grad():
        model[-1].weight.zero_()
        model[-1].bias.zero_()
    result = md.estimate(model, x, method="pooled", tolerance=1e-6, relative=True)
    assert result.status is Status.TOLERANCE_MET and result.mean_stderr.max() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give a stop rule"),
        ({"tolerance": 0.0}, "tolerance is a standard error"),
        ({"tolerance": float("nan")}, "tolerance is a standard error"),
        ({"tolerance_variance": -1.0}, "tolerance_variance is a standard error"),
        ({"budget": float("inf")}, "budget is a number of passes"),
        ({"tolerance": 0.1, "quantile": 0.0}, "quantile is the share"),
        ({"tolerance": 0.1, "ladder": "adaptive"}, "'adaptive' with method='mlmc'"),
        ({"tolerance": 0.1, "method": "mlmc", "ladder": "dyadic"}, "'dyadic'"),
        ({"budget": 100, "executor": 0}, "at least 1"),
        ({"budget": 100, "executor": "dask"}, "submit"),
        ({"budget": 100, "progress": 3}, "progress is True, False"),
        ({"budget": 100, "checkpoint_interval": -1.0}, "checkpoint_interval"),
        ({"tolerance": 0.1, "method": "mlmc", "ladder": (4, 8), "counts": (5, 5)}, "give one of them"),
    ],
)
def test_bad_arguments_are_refused_with_value_and_remedy(arguments, words):
    model, x = small()
    with pytest.raises(InputError, match=words):
        md.estimate(model, x, **{"method": "pooled", **arguments})


def test_a_budget_too_small_for_the_method_is_refused():
    model, x = small()
    with pytest.raises(AllocationError, match="cheapest feasible plan"):
        md.estimate(model, x, method="mlmc", ladder=(4, 8, 16), budget=10)


class _Look:
    def __init__(self, stderr, cost, overhead=0.0):
        self.mean = self.variance = np.ones_like(stderr)
        self.mean_stderr = self.variance_stderr = stderr
        self.cost, self.overhead, self.widening = cost, overhead, None


def test_a_noisy_maximum_does_not_lead_far_beyond_the_goal():
    """With a thousand equal components the largest estimated standard error is too large; the step allows for it."""
    rng = np.random.default_rng(0)
    stderr = np.sqrt(rng.chisquare(127, size=(1000, 1)) / 127 / 128)
    goal = Goal(tolerance=(1 / 1000) ** 0.5)
    look = _Look(stderr, 128)
    assert look.cost * goal.shortfall(look) > 1250  # what the look seems to say; the truth is 1000
    assert 500 < look.cost + goal.more(look, 128) < 1000


def test_the_fewer_the_samples_the_shorter_the_next_step():
    goal, far = Goal(tolerance=0.01), _Look(np.array([[1.0]]), 320)
    assert [goal.more(far, samples) / far.cost for samples in (16, 32, 64, 1000)] == [1, 2, 4, 7]


def test_what_was_spent_before_the_first_sample_is_not_spent_again():
    goal, stderr = Goal(tolerance=0.1), np.array([[0.14]])
    assert goal.more(_Look(stderr, 1000, overhead=900), 100) == goal.more(_Look(stderr, 100), 100)


def test_few_samples_stop_a_run_only_with_room_for_doubt():
    goal = Goal(tolerance=1.0)
    assert goal.met(_Look(np.array([[0.99]]), 100), TRUSTED)
    assert not goal.met(_Look(np.array([[0.99]]), 100), 4)
    assert goal.met(_Look(np.array([[0.1]]), 100), 4)
    assert not goal.met(_Look(np.array([[0.1]]), 100), 1)
    assert not goal.met(_Look(np.array([[np.nan]]), 100), 100)


def test_progress_reports_passes_standard_errors_and_time(capsys):
    model, x = small()
    events = []
    result = md.estimate(model, x, method="pooled", tolerance=0.004, progress=events.append)
    assert events[-1].passes == result.cost == events[-1].planned
    assert events[-1].mean_stderr == result.mean_stderr.max()
    assert events[-1].rows == len(x)
    silent = md.estimate(model, x, method="pooled", tolerance=0.004)
    assert capsys.readouterr() == ("", "")
    assert digest(silent) == digest(result)
    md.estimate(model, x, method="pooled", tolerance=0.004, progress=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "largest standard error" in captured.err
