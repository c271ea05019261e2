"""Pools in batches that are stopped and resumed, and requests that a decision cannot serve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from testing.exact_quantities import exact_quantile
from testing.oracles import enumerated


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers)


X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
ASK = {"outputs": "logits", "decision": md.TopK(5), "budget": 400}


def pool():
    return (X[start : start + 10] for start in range(0, 40, 10))


@pytest.mark.parametrize("event", [1, 2, 3, 4, 6])
def test_a_pool_that_is_stopped_anywhere_goes_on_to_the_same_answer(event, tmp_path):
    whole = md.estimate(network(), pool(), **ASK)
    seen = 0

    def stop(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == event:
            raise KeyboardInterrupt

    with_file = {**ASK, "checkpoint": tmp_path / "c", "checkpoint_interval": 0}
    try:
        stopped = md.estimate(network(), pool(), progress=stop, **with_file)
    except KeyboardInterrupt:
        pass
    else:
        assert stopped["decision"].settled.shape == stopped.passes.shape
    for _ in range(2):  # the second time everything is in the files
        again = md.estimate(network(), pool(), **with_file)
        for name in ("value", "settled"):
            assert np.array_equal(getattr(again["decision"], name), getattr(whole["decision"], name))
        assert np.array_equal(again.passes, whole.passes)
    assert whole.passes.max() <= ASK["budget"]
    assert whole.metadata["outputs"] == "logits"


def test_another_function_of_the_same_name_is_another_run(tmp_path):
    def own(factor: float) -> md.Quantity:
        return md.Quantity("own", lambda p: factor * p, lambda e: e.max(axis=-1))

    ask = {"outputs": "logits", "budget": 50, "method": "pooled", "checkpoint": tmp_path / "c"}
    md.estimate(network(), X, quantities=(own(1.0),), **ask)
    md.estimate(network(), X, quantities=(own(1.0),), **ask)
    with pytest.raises(md.CheckpointError, match="own quantities differ"):
        md.estimate(network(), X, quantities=(own(100.0),), **ask)
    with pytest.raises(md.CheckpointError, match="quantities differ"):
        md.estimate(network(), X, quantities=(md.Above(0.1),), **ask)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decision": md.TopK(2, by="std")}, "TopK by 'std'"),
        ({"decision": md.TopK(2, by="label")}, "standard error"),
        ({"confidence": 0.9}, "belong to decision="),
        ({"quantities": 5}, "a quantity is a name"),
        ({"quantities": (md.Quantity("decision", lambda p: p, lambda e: e),)}, "a name of its own"),
        (
            {
                "decision": md.TopK(2, by=md.Quantity("q", lambda p: p[:, 0], lambda e: e)),
                "quantities": (md.Quantity("q", lambda p: p[:, 1], lambda e: e),),
            },
            "another one of that name",
        ),
    ],
)
def test_requests_that_contradict_themselves_are_refused(settings, words):
    with pytest.raises(md.InputError, match=words):
        md.estimate(network(), X, outputs="logits", budget=60, **settings)


@pytest.mark.parametrize("wrong", [lambda: md.TopK(2, by=3), lambda: md.Above("0.5"), lambda: md.Quantile("0.5")])
def test_values_of_the_wrong_kind_are_refused(wrong):
    with pytest.raises(md.InputError):
        wrong()


def test_a_threshold_per_input_can_be_ranked():
    model = torch.nn.Sequential(*network(), torch.nn.Linear(4, 1))
    found = md.estimate(model, X, decision=md.TopK(3, by=md.Above(0.1)), budget=200)
    assert found["decision"].value.sum() == 3


def test_quantities_of_odd_shapes_get_columns_of_their_own():
    pytest.importorskip("pandas")
    two = md.Quantity("two", lambda p: p[:, :2], lambda e: e)
    table = md.estimate(network(), X, outputs="logits", quantities=(two, "entropy"), budget=50).to_dataframe()
    assert {"two[0]", "two[1]", "two_stderr[0]", "entropy"} <= set(table.columns)
    assert "two" not in table


def test_quantiles_of_laws_with_few_values_are_right_or_flagged():
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(3, 1))
    median = md.estimate(model, X, quantities=(md.Quantile(0.5),), budget=2000, method="pooled")["quantile_0.5"]
    exact = np.array([exact_quantile(*enumerated(model, x[None]), 0.5) for x in X])
    off = (exact < median.low - 1e-6) | (exact > median.high + 1e-6)
    assert off.mean() < 0.125  # two and a half times 5 % of 40 inputs
    assert (np.abs(median.value - exact) < 1e-6).mean() > 0.5
    assert (median.stderr >= 0).all() and median.reliable.any()
