"""What ``auto`` chooses, and that it says so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlmc_dropout import estimate
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import source_of
from testing.zoo import ZOO

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")


def chosen(name, rows=64, transform=None, **goal):
    model, x = ZOO[name].make()
    x = x[:1].repeat(rows, *(1,) * (x.dim() - 1)) if isinstance(x, torch.Tensor) else x
    return Auto().choose(source_of(model, x, transform=transform), Goal(**goal))


def test_both_moments_of_a_small_network_take_the_expansion():
    method = chosen("mlp", budget=2000)
    assert isinstance(method, ControlVariate)
    assert "auto chose" in method.reason


def test_gradients_at_many_masks_are_for_those_who_ask_for_much():
    loose, tight = chosen("mlp", tolerance=3e-2), chosen("mlp", tolerance=1e-4)
    assert isinstance(tight, ControlVariate) and (tight.gradient_masks or tight.second_derivatives)
    assert not getattr(loose, "gradient_masks", 0)


def test_designs_are_believed_to_do_no_harm():
    """Where a pilot happens to see noise, it does not send us back to plain Monte Carlo: ``encoder``, ten pilots."""
    model, x = ZOO["encoder"].make()
    plans = [Auto().choose(source_of(model, x, seed=seed), Goal(budget=1000)) for seed in range(10)]
    assert all(isinstance(plan, (Stratified, ControlVariate)) for plan in plans)
    assert sum(isinstance(plan, ControlVariate) for plan in plans) >= 8  # gains 1.3 times as much as designs alone


@pytest.mark.parametrize("name", ["alpha", "gru"])
def test_one_row_that_looks_straight_does_not_rule_out_the_second_order(name):
    """It gains about 1.5 times as much there (``benchmarks/auto_on_zoo.py``), and a pilot of one row wavers by more."""
    model, x = ZOO[name].make()
    plans = [Auto().choose(source_of(model, x, seed=seed), Goal(budget=1000)) for seed in range(10)]
    assert all(plan.gradient_masks or plan.second_derivatives for plan in plans)


def test_where_the_first_order_leaves_nothing_the_second_is_not_paid_for():
    model, x = ZOO["feature1d"].make()
    plan = Auto().choose(source_of(model, x), Goal(budget=1000))
    assert isinstance(plan, ControlVariate) and not plan.gradient_masks


@pytest.mark.parametrize("rows", [1, 64])
def test_the_expansion_of_few_outputs_pays_from_few_passes_on(rows):
    few = chosen("mlp", rows=rows, budget=20)
    assert isinstance(few, ControlVariate) and not few.gradient_masks and few.overhead == 0


def test_few_passes_of_many_outputs_are_pooled():
    assert isinstance(chosen("encoder", rows=1, budget=30), Pooled)
    assert "too few for designs" in chosen("encoder", rows=1, budget=30).reason


def test_hardly_any_passes_are_pooled():
    assert isinstance(chosen("mlp", budget=8), Pooled)


def test_many_outputs_are_not_differentiated():
    """One backward pass per output: 4000 of them cost more than the budget."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 4000)).eval()
    method = Auto().choose(source_of(model, torch.rand(3, 2)), Goal(budget=1000))
    assert isinstance(method, Stratified)
    assert method.heads is False


@pytest.mark.parametrize("name", ["sequence_first", "weight_dropout"])
def test_masks_of_no_single_row_are_stratified_only(name):
    method = chosen(name, budget=2000)
    assert isinstance(method, Stratified)


def test_the_result_says_what_was_chosen_and_counts_the_pilot():
    model, x = ZOO["mlp"].make()
    result = estimate(model, x, budget=3000)
    assert result.method == "control-variate"
    assert any("auto chose" in note for note in result.notes)
    assert result.cost <= 3000
    passes = result.levels[-1].count
    assert result.cost > passes  # the pilot and the gradients are in it


def test_a_classifier_with_softmax_has_no_head_but_an_expansion():
    method = chosen("mlp", budget=3000, transform=lambda out: out.softmax(-1))
    source = source_of(ZOO["mlp"].make()[0], ZOO["mlp"].make()[1], transform=lambda out: out.softmax(-1))
    assert not method.bind(source).heads


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", ["auto", "control-variate"])
def test_gradients_are_found_inside_contexts_that_forbid_them(mode, method):
    model, x = ZOO["mlp"].make()
    expected = estimate(model, x, method=method, budget=400)
    with mode():
        found = estimate(model, x.clone(), method=method, budget=400)
    assert (found.mean == expected.mean).all()
    assert (found.variance == expected.variance).all()


def smooth(rows=64, width=48):
    torch.manual_seed(0)
    hidden = (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))
    model = nn.Sequential(nn.Linear(2, width), nn.GELU(), nn.Dropout(0.1), *hidden, nn.Linear(width, 1), nn.Tanh())
    return model.eval(), torch.rand(rows, 2)


def test_smooth_networks_get_all_second_derivatives_where_these_are_paid_for():
    source = source_of(*smooth())
    plans = {budget: Auto().choose(source, Goal(budget=budget)) for budget in (300, 3000)}
    assert [plan.second_derivatives for plan in plans.values()] == [False, True]
    assert "all second derivatives" in plans[3000].reason
    result = estimate(*smooth(), budget=3000)
    passes = result.levels[-1].count
    assert 2 * passes < result.cost <= 3000  # derivatives, and a product with them beside every pass
    assert float(result.levels[-1].gain.mean()) > 300


def test_they_have_to_fit_the_memory_limit():
    model, x = smooth(rows=2000)
    method = Auto().choose(source_of(model, x, memory_limit=1 << 24), Goal(budget=3000))
    assert not method.second_derivatives


def test_kinks_have_none_that_help():
    """A second derivative at the mean mask says little of a network of rectifiers: gradients at many masks say more."""
    torch.manual_seed(0)
    hidden = (nn.Linear(48, 48), nn.ReLU(), nn.Dropout(0.2))
    model = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Dropout(0.2), *hidden, *hidden, nn.Linear(48, 1)).eval()
    method = Auto().choose(source_of(model, torch.rand(64, 2)), Goal(budget=3000))
    assert not method.second_derivatives
