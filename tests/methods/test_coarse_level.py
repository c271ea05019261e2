"""The coarse level through the reading of outputs: what it costs, what it leaves, and when it is not taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.methods import auto, coarse_level, coarse_pilot
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.coarse_level import CoarseLevel
from mlmc_dropout.methods.coarse_pilot import (
    FEW_ROWS,
    LITTLE,
    MOST_ROWS,
    SHARE,
    affordable_coarse_look,
    asked_moments,
    coarse_look,
)
from mlmc_dropout.methods.coarse_rows import DESIGN, CoarseRows, coarse_features
from mlmc_dropout.methods.coarse_time import times
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.stopping.goal import Goal
from mlmc_dropout.surrogates.linear import linearise
from testing.exact_quantities import INPUT, exact_quantities, small_net
from testing.oracles import enumerated, one_row_many_times, run_method, source_of
from testing.runs import digest


@pytest.fixture
def cheap(monkeypatch):
    """A sample of the coarse level costs a hundredth of a pass, as in networks of the usual size."""
    for module in (coarse_level, coarse_pilot, auto):
        monkeypatch.setattr(module, "coarse_cost", lambda source, outputs=None: 0.01)
    for module in (coarse_pilot, auto):
        monkeypatch.setattr(module, "time_of_sample", lambda source, outputs=None: 0.01)


def source(model=None, rows=4, seed=0, quantities=None, **options):
    x = torch.linspace(-1, 1, 2 * rows, dtype=torch.float64).reshape(rows, 2)
    return source_of(model or small_net(3), x, seed, questions=questions_for("logits", quantities), **options)


def last_layer_only():
    """Logits that are affine in the masks: the expansion is the network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3)).double().eval()


def test_where_the_expansion_is_the_network_nothing_is_left(cheap):
    """Both levels are then the same function of the masks, and only the coarse one leaves an error."""
    found = run_method(CoarseLevel(ratio=50.0), source(last_layer_only()), 200)
    assert found.levels[1].variance.max() < 1e-24
    plain = run_method(Pooled(), source(last_layer_only()), 200)
    assert (found.mean_stderr < plain.mean_stderr / 5).all()
    z = (found.mean - plain.mean) / np.hypot(found.mean_stderr, plain.mean_stderr)
    assert np.abs(z).max() < 4.5


@pytest.mark.parametrize("budget", [60, 100, 333, 1000, 5000])
@pytest.mark.parametrize("cost", [0.002, 0.02, 0.3])
def test_no_budget_is_exceeded_and_the_costs_add_up(budget, cost, monkeypatch):
    for module in (coarse_level, coarse_pilot, auto):
        monkeypatch.setattr(module, "coarse_cost", lambda source, outputs=None: cost)
    here = source()
    method = CoarseLevel(ratio=15.0, overhead=3.5)
    bound = method.bind(here)
    if budget < bound.min_cost():
        assert bound.extend({}, budget) == ([], {})
        return
    tasks, done = bound.extend({}, budget)
    passes = sum(task.count for task in tasks if not task.stream)
    designs = sum(task.count for task in tasks if task.stream)
    assert (passes, designs) == (done["fine"], done["designs"])
    spent = bound.overhead + passes * (1 + cost) + designs * DESIGN * cost
    assert spent <= done["passes"] + 1e-6 <= budget + 1e-6
    assert done["passes"] - spent < 1 + 1e-6
    assert spent > budget - 2 - DESIGN * cost - cost * method.ratio  # and hardly anything is left over


def test_rounds_extend_what_is_there(cheap):
    bound = CoarseLevel(ratio=15.0).bind(source())
    _, first = bound.extend({}, 300)
    tasks, both = bound.extend(first, 300)
    assert min(task.first for task in tasks if not task.stream) == first["fine"]
    assert both["passes"] <= 600 and both["fine"] > 1.9 * first["fine"]


def test_a_budget_that_does_not_hold_it_is_refused_with_a_remedy():
    model, x = small_net(3), INPUT.repeat(3, 1)
    with pytest.raises(md.AllocationError, match=r"a budget of 40 passes is too small .*; give more, or use"):
        md.estimate(model, x, outputs="logits", method="control-variate", budget=40)


# ----------------------------------------------------------------------------------------- auto


@pytest.mark.parametrize("rows", [1, 24])
@pytest.mark.parametrize("budget", [8, 100, 1000, 4000])
@pytest.mark.parametrize("cost", [0.002, 0.05, 1.0])
def test_auto_never_spends_more_than_its_share_on_looking(rows, budget, cost, monkeypatch):
    for module in (coarse_level, coarse_pilot, auto):
        monkeypatch.setattr(module, "coarse_cost", lambda source, outputs=None: cost)
    here = source(rows=rows)
    method = Auto().choose(here, Goal(budget=budget))
    looked = affordable_coarse_look(here, Goal(budget=budget)) is not None
    assert method.overhead <= SHARE * budget * 1.05 + 1
    assert looked or method.overhead == 0
    if isinstance(method, CoarseLevel):
        assert method.bind(here).min_cost() <= budget


def test_auto_does_not_look_where_a_coarse_sample_costs_nearly_a_pass():
    result = md.estimate(small_net(3), INPUT.repeat(24, 1), outputs="logits", budget=2000)
    assert result.method == "pooled" and result.levels[0].count == 2000
    assert any("cost hardly more than samples of their expansion" in note for note in result.notes)


@pytest.mark.parametrize("budget", [8, 20, 60, 100])
def test_auto_takes_any_budget_for_a_single_input(budget):
    result = md.estimate(small_net(3), INPUT, outputs="logits", budget=budget)
    assert result.method == "pooled" and result.cost == budget and result.levels[0].count == budget


def test_auto_takes_the_coarse_level_where_it_pays_and_says_so(cheap):
    result = md.estimate(last_layer_only(), INPUT.repeat(8, 1), outputs="logits", budget=1000)
    assert result.method == "control-variate"
    assert any("auto chose the expansion" in note for note in result.notes)
    assert any("samples of the expansion" in note for note in result.notes)


@pytest.mark.parametrize(("time", "reason"), [(0.1, "nothing else is worth"), (0.5, "passes cost hardly more")])
def test_auto_does_not_take_it_where_it_takes_more_time_than_it_saves(cheap, monkeypatch, time, reason):
    for module in (coarse_pilot, auto):
        monkeypatch.setattr(module, "time_of_sample", lambda source, outputs=None: time)
    monkeypatch.setattr(auto, "LEAST_OF_BOTH", 1000.0 if time < 0.2 else 1.1)
    result = md.estimate(last_layer_only(), INPUT.repeat(8, 1), outputs="logits", budget=1000)
    assert result.method == "pooled" and any(reason in note for note in result.notes)


def test_less_coarse_samples_where_they_take_time(cheap, monkeypatch):
    here = source(rows=4)
    size = affordable_coarse_look(here, Goal(budget=2000))
    ratios = []
    for time in (0.01, 0.1):
        monkeypatch.setattr(coarse_pilot, "time_of_sample", lambda source, outputs=None, time=time: time)
        look = coarse_look(here, size, by_time=True)
        ratios.append(look.ratio)
        fast, slow = look.at(2000), look.in_time(2000)
        assert time == 0.01 or max(slow) < max(fast)
    assert ratios[1] < ratios[0] and coarse_look(here, size).ratio == ratios[0]


def test_of_many_inputs_the_pilot_sees_many_for_a_small_share_of_the_passes(cheap):
    """Eight images of a classifier may all be easy ones; then every third pilot called the expansion worthless."""
    few, many = (affordable_coarse_look(source(rows=rows), Goal(budget=1000)) for rows in (24, 2000))
    assert 1 <= few.rows <= FEW_ROWS and many.rows == MOST_ROWS
    here = source(rows=2000)
    assert coarse_look(here, many).cost <= LITTLE * 1000


def test_a_tolerance_of_the_mean_is_served_by_what_suits_the_mean(cheap):
    here = source(rows=8)
    assert asked_moments(Goal(budget=100)) == asked_moments(Goal(tolerance=0.1, tolerance_variance=0.1)) == (0, 1)
    assert asked_moments(Goal(tolerance=0.1)) == (0,) and asked_moments(Goal(tolerance_variance=0.1)) == (1,)
    size = affordable_coarse_look(here, Goal(budget=2000))
    mean, variance, both = (coarse_look(here, size, moments=moments).ratio for moments in ((0,), (1,), (0, 1)))
    assert both == pytest.approx((mean * variance) ** 0.5)


def test_times_of_samples_grow_with_what_is_read_and_expanded():
    small, wide = (source(small_net(3, units=units, rates=(0.3, 0.3))) for units in ((5, 4), (60, 40)))
    more = source(small_net(3), quantities=("entropy", "quantile_0.5"))
    assert times(wide)[0] > times(small)[0] and times(wide)[1] > times(small)[1]
    assert times(more)[1] > times(source(small_net(3)))[1]


def test_the_pilot_predicts_the_gain(cheap):
    """Against the standard errors of runs: within a factor of 1.6, with one pilot of four rows."""
    here = source(rows=4)
    look = coarse_look(here, affordable_coarse_look(here, Goal(budget=2000)))
    ours = run_method(look.method(), here, 2000)
    plain = run_method(Pooled(), here, 2000)
    for predicted, name in zip(look.at(2000), ("mean_stderr", "variance_stderr"), strict=True):
        seen = np.square(getattr(plain, name)).sum() / np.square(getattr(ours, name)).sum()
        assert 1 / 1.6 < predicted / seen < 1.6, name


@pytest.mark.parametrize("cost", [0.01, 0.2])
def test_passes_are_at_least_half_of_the_cost_however_good_the_expansion_is(cost, monkeypatch):
    """Few passes would not show what it misses: their standard errors were ten times too small."""
    for module in (coarse_level, coarse_pilot, auto):
        monkeypatch.setattr(module, "coarse_cost", lambda source, outputs=None: cost)
    here = source(last_layer_only())
    look = coarse_look(here, affordable_coarse_look(here, Goal(budget=5000)))
    assert look.rest[0] < 1e-12 * look.plain[0]
    _, done = look.method().bind(here).extend({}, 5000)
    assert done["designs"] * DESIGN * cost <= 1.01 * done["fine"] * (1 + cost) + DESIGN * cost


def test_a_budget_below_the_least_run_promises_nothing(cheap):
    here = source()
    look = coarse_look(here, affordable_coarse_look(here, Goal(budget=2000)))
    assert look.at(20) == (0.0, 0.0)


# ------------------------------------------------------------------------------- reading, rounding


def test_stratified_masks_average_nothing_out_of_outputs_that_are_read():
    """The last dropout is followed by a linear map only: what is averaged out of a logit is not of a probability."""
    model, x = small_net(1, seed=5), one_row_many_times(INPUT, 400)
    exact = exact_quantities(*enumerated(model, INPUT), "binary-logits")
    result = md.estimate(model, x, outputs="binary-logits", method="stratified", budget=1200, seed=2)
    z = (result.variance.mean() - exact["variance"]) / (result.variance.std() / 20)
    assert abs(z) < 4.5
    wrong = md.estimate(model, x, method="stratified", budget=1200, seed=2)
    assert wrong.variance.mean() > 2 * result.variance.mean()  # that of the logit


def test_both_levels_round_alike_where_a_network_is_saturated():
    """Features of the coarse level, of a network in single precision, as if it were in double precision."""
    model = small_net(3)
    with torch.no_grad():
        model[-1].bias[0] += 12.0
    means = []
    for kind in (torch.float32, torch.float64):
        here = source_of(model.to(kind), INPUT.to(kind), questions=questions_for("logits", None))
        slopes = linearise(here.sampler, here.program, here.batch)
        part = CoarseRows.of(slice(0, 1), here, slopes)
        means.append(coarse_features(here, part, here.observation.squared(), np.arange(64), 5).mean(axis=0))
    p, squares = (means[0][0, i : i + 3] for i in (0, 3))
    exact_p, exact_squares = (means[1][0, i : i + 3] for i in (0, 3))
    spread, exact = squares - p**2, exact_squares - exact_p**2
    assert exact[0] < 1e-9
    np.testing.assert_allclose(spread, exact, rtol=1e-3)


def test_a_checkpoint_with_more_designs_than_passes_goes_on(cheap, monkeypatch, tmp_path):
    for module in (coarse_level, coarse_pilot, auto):
        monkeypatch.setattr(module, "coarse_cost", lambda source, outputs=None: 0.0005)
    monkeypatch.setattr(coarse_pilot, "RATIOS", (300.0, 300.0))
    x, options = INPUT.repeat(4, 1), {"outputs": "logits", "method": "control-variate"}
    short = md.estimate(small_net(3), x, budget=100, checkpoint=tmp_path / "c", **options)
    assert short.levels[0].count / DESIGN > short.cost
    again = md.estimate(small_net(3), x, budget=100, checkpoint=tmp_path / "c", **options)
    assert digest(again) == digest(short)
    more = md.estimate(small_net(3), x, budget=200, checkpoint=tmp_path / "c", **options)
    assert more.cost > 1.8 * short.cost


def test_of_many_classes_those_that_matter_are_expanded_without_bias(cheap):
    model = small_net(40, seed=11)
    model[-1].weight.data *= 3.0
    few = source(model, rows=8, quantities=("entropy",))
    outputs = coarse_pilot.outputs_that_matter(few, 300)
    assert outputs is not None
    assert 1 <= len(outputs) <= 30
    assert coarse_pilot.outputs_that_matter(source(rows=2), 300) is None

    copies = one_row_many_times(INPUT, 800)
    many = source_of(model, copies, questions=questions_for("logits", ("entropy",)))
    found = run_method(CoarseLevel(5.0, outputs), many, 150)
    passes, weights = enumerated(model, INPUT)
    exact = exact_quantities(passes, weights, "logits")
    error = found.mean.std(axis=0, ddof=1) / np.sqrt(len(copies))
    z = (found.mean.mean(axis=0) - exact["mean"]) / error
    assert np.abs(z).max() < 4.2  # of 40 comparisons, once in a thousand runs


def test_derivatives_that_do_not_fit_the_memory_limit_are_not_taken():
    tight = source(rows=64, memory_limit=1 << 12)
    assert not coarse_pilot.fits_memory(tight, None)
    chosen = Auto().choose(tight, Goal(budget=1000))
    assert isinstance(chosen, Pooled)
    assert "memory limit" in chosen.reason
