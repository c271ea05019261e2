"""Every kind of bad input: a typed error with the value and a remedy, before any pass is spent."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.errors import AllocationError, InputError, LadderError, ModelError

X = torch.zeros(3, 2)


@pytest.fixture
def model():
    """A network that lists the number of rows of each forward call in ``calls``."""
    net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    net.calls = []
    net.register_forward_pre_hook(lambda module, args: module.calls.append(len(args[0])))
    return net


def refused(error, model, x=X, **options):
    """The message of the error, which must be one of ours, have a remedy, and come before the model is run."""
    with pytest.raises(error) as caught:
        md.estimate(model, x, **options)
    message = str(caught.value)
    assert isinstance(caught.value, md.MLMCDropoutError)
    assert not getattr(model, "calls", []), "passes were spent"
    assert any(mark in message for mark in (";", ":", "use ")), message
    return message


MLMC = {"method": "mlmc", "budget": 1000}


@pytest.mark.parametrize(
    ("ladder", "shown"),
    [
        ((), "()"),
        ((8, 4), "(8, 4)"),
        ((4, 4), "(4, 4)"),
        ((4, 8.5), "8.5"),
        ((0, 4), "(0, 4)"),
        ((-4, 4), "(-4, 4)"),
        ((1, 4), "(1, 4)"),
        ((4, 5), "(4, 5)"),
        ((4, 8, 9), "(4, 8, 9)"),
        (7, "7"),
    ],
)
def test_ladders(model, ladder, shown):
    assert shown in refused(LadderError, model, ladder=ladder, **MLMC)


def test_an_unknown_word_for_a_ladder(model):
    assert "'fine'" in refused(InputError, model, ladder="fine", **MLMC)


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((4, 4), "(4, 4)"),
        ((4, 4, 4, 4), "4 counts"),
        ((), "0 counts"),
        ((4, 0, 4), "(4, 0, 4)"),
        ((4, -2, 4), "-2"),
        ((4, 4, 1), "(4, 4, 1)"),
        ((4, 4, 2.5), "2.5"),
        (5, "5"),
    ],
)
def test_counts(model, counts, shown):
    assert shown in refused(AllocationError, model, method="mlmc", ladder=(4, 8, 16), counts=counts)


@pytest.mark.parametrize(
    ("options", "budget", "least"),
    [
        ({"method": "mlmc", "ladder": (4, 8, 16)}, 31, 32),
        ({"method": "mlmc", "ladder": (4, 8, 16), "levels": "independent"}, 55, 56),
        ({"method": "mlmc", "ladder": (4, 8), "counts": (9, 5)}, 50, 56),
        ({"method": "pooled"}, 3, 4),
    ],
)
def test_a_budget_below_the_cheapest_plan_says_what_that_is(model, options, budget, least):
    message = refused(AllocationError, model, budget=budget, **options)
    assert f"{budget}" in message and f"{least}" in message
    model.calls.clear()
    assert md.estimate(model, X, budget=least, **options).cost <= least


@pytest.mark.parametrize("budget", [0, -5, math.nan, math.inf])
def test_impossible_budgets(model, budget):
    assert str(budget) in refused(InputError, model, budget=budget)


def test_neither_stop_rule(model):
    assert "budget=" in refused(InputError, model)
    assert "tolerance=" in refused(InputError, model, method="mlmc", ladder=(4, 8))


def test_contradictory_stop_rules(model):
    message = refused(InputError, model, method="mlmc", ladder=(4, 8), counts=(4, 4), tolerance=0.1)
    assert "counts=" in message and "tolerance=" in message


@pytest.mark.parametrize("name", ["tolerance", "tolerance_variance"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_tolerances(model, name, value):
    message = refused(InputError, model, **{name: value})
    assert name in message and str(value) in message


@pytest.mark.parametrize("quantile", [0.0, 1.5, -0.1, math.nan])
def test_impossible_quantiles(model, quantile):
    assert str(quantile) in refused(InputError, model, tolerance=0.1, quantile=quantile)


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("method", "bayes", "pooled"),
        ("masks", "same", "'shared'"),
        ("levels", "mixed", "'independent'"),
        ("target", "median", "'variance'"),
    ],
)
def test_unknown_names(model, option, value, remedy):
    message = refused(InputError, model, **{"budget": 100, option: value})
    assert repr(value) in message and remedy in message


@pytest.mark.parametrize("option", [{"ladder": (4, 8)}, {"counts": (4, 4)}])
def test_arguments_of_another_method(model, option):
    assert "'pooled'" in refused(InputError, model, method="pooled", budget=100, **option)


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True])
def test_seeds(model, seed):
    assert repr(seed) in refused(InputError, model, budget=100, seed=seed)


# ------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize(
    "net",
    [
        nn.Linear(2, 1),
        nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.0), nn.Linear(4, 1)),
        lambda x: x + 1,
    ],
    ids=["none", "rates zero", "callable"],
)
def test_no_active_dropout(net):
    with pytest.raises(ModelError, match="no active dropout") as error:
        md.estimate(net, X, method="pooled", budget=100)
    assert "0 < p < 1" in str(error.value)


def test_all_sites_excluded(model):
    with pytest.raises(ModelError, match="no active dropout"):
        md.estimate(model, X, method="pooled", budget=100, exclude=["*"])


def test_rate_one():
    with pytest.raises(ModelError, match=r"1\.0.*0 <= p < 1"):
        md.estimate(nn.Sequential(nn.Linear(2, 4), nn.Dropout(1.0), nn.Linear(4, 1)), X, method="pooled", budget=100)


@pytest.mark.parametrize("rates", [1.0, -0.1, 2])
def test_impossible_rates(model, rates):
    with pytest.raises(md.MLMCDropoutError, match=str(float(rates))):
        md.estimate(model, X, method="pooled", budget=100, rates=rates)


@pytest.mark.parametrize("net", [3, None, "model.pt"])
def test_not_a_model(net):
    with pytest.raises(InputError, match=type(net).__name__):
        md.estimate(net, X, method="pooled", budget=100)


# ------------------------------------------------------------------------------------------ inputs


@pytest.mark.parametrize(
    "x", [torch.zeros(0, 2), np.zeros((0, 2)), [], iter(())], ids=["tensor", "array", "list", "iter"]
)
def test_empty_inputs(model, x):
    assert "empty" in refused(InputError, model, x, budget=100)


def test_inputs_with_nan_name_their_rows(model):
    x = torch.zeros(5, 2)
    x[1, 0] = x[4, 1] = math.nan
    message = refused(InputError, model, x, budget=100)
    assert "rows 1, 4" in message and "remove" in message


def test_nan_in_a_later_batch_counts_rows_from_the_beginning(model):
    x = torch.zeros(4, 2)
    x[3] = math.nan
    with pytest.raises(InputError, match="row 3"):
        md.estimate(model, list(x.split(2)), method="pooled", budget=100)


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (3.0, "float"),
        (None, "NoneType"),
        (np.array([["a", "b"]]), "<U1"),
        ((torch.zeros(3, 1), torch.zeros(2, 1)), "[2, 3]"),
        (torch.tensor(1.0), "no rows"),
        ([1.0, 2.0], "ambiguous"),
    ],
)
def test_inputs_that_are_none(model, x, shown):
    assert shown in refused(InputError, model, x, budget=100)


def test_a_decision_on_labels_needs_classes(model):
    assert "decision='label' needs a classifier" in refused(InputError, model, decision="label", budget=100)


def test_names_that_are_nearly_right(model):
    assert "did you mean 'pooled'?" in refused(InputError, model, method="polled", budget=100)
    assert "did you mean 'entropy'?" in refused(
        InputError, model, outputs="logits", quantities=("entorpy",), budget=100
    )
    with pytest.raises(InputError, match="did you mean 'budget'"):
        md.Predictor(model, budgt=30)


def _image_net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(0.2), nn.Conv2d(4, classes, 1))


def test_classes_along_the_first_axis_of_an_image_are_warned_of():
    with pytest.warns(md.ModelWarning, match="its 3 classes are along the first axis") as caught:
        md.estimate(_image_net(), torch.zeros(1, 1, 8, 8), outputs="logits", budget=20, method="pooled")
    assert caught[0].filename == __file__


def test_classes_along_the_last_axis_are_not(recwarn):
    last = lambda out: out.movedim(1, -1)  # noqa: E731
    found = md.estimate(_image_net(), torch.zeros(1, 1, 8, 8), outputs="logits", transform=last, budget=20)
    assert found["label"].value.shape == (1, 8, 8)
    assert not [w for w in recwarn if "first axis" in str(w.message)]


def test_a_loader_that_shuffles_is_warned_of_at_the_callers_line(model):
    loader = torch.utils.data.DataLoader(torch.zeros(6, 2), batch_size=3, shuffle=True)
    with pytest.warns(md.ModelWarning, match="shuffles") as caught:
        md.estimate(model, loader, budget=20, method="pooled")
    assert caught[0].filename == __file__
