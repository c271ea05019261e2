"""Decisions: right as often as promised, however often one looks; wrong more often without paying for the looks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.errors import InputError
from mlmc_dropout.runtime import row_by_row
from mlmc_dropout.runtime.screening import Screen
from mlmc_dropout.stopping import decisions
from testing.exact_quantities import INPUT, exact_quantities, small_net
from testing.oracles import enumerated, exact_moments, one_row_many_times
from testing.treacherous import Gate, Pool

RUNS = 2000
CONFIDENCE = 0.9


def exact(model: torch.nn.Module, outputs: str) -> dict[str, np.ndarray]:
    passes, weights = enumerated(model, INPUT)
    return exact_quantities(passes, weights, outputs)


def shifted(gap: float) -> tuple[torch.nn.Module, int]:
    """A classifier whose two leading classes differ in probability by about ``gap`` at the input, and the leader."""
    model = small_net(3)
    head = model[-1]
    for _ in range(60):
        p = exact(model, "logits")["mean"]
        first, second = np.argsort(p)[::-1][:2]
        head.bias.data[first] -= 0.5 * (p[first] - p[second] - gap)
    return model, int(np.argmax(exact(model, "logits")["mean"]))


def share_of_errors(result: md.Result, truth: object) -> float:
    """Decisions that are settled and wrong, in the mean over inputs."""
    found = result["decision"]
    return float(np.mean(found.settled & (found.value != truth)))


def allowed(runs: int, rate: float) -> float:
    """Three standard errors above the rate."""
    return rate + 3 * (rate * (1 - rate) / runs) ** 0.5


@pytest.mark.parametrize("gap", [0.02, 0.1])
def test_labels_are_right_as_often_as_promised(gap: float) -> None:
    model, leader = shifted(gap)
    x = one_row_many_times(INPUT, RUNS)
    result = md.estimate(model, x, outputs="logits", decision="label", confidence=CONFIDENCE, budget=1500)
    assert share_of_errors(result, leader) <= allowed(RUNS, 1 - CONFIDENCE)
    assert result["decision"].settled.mean() > (0.9 if gap > 0.05 else 0.1)
    assert result.passes.min() < result.passes.max() <= 1500
    assert result.cost == pytest.approx(result.passes.mean())


def test_looks_that_are_not_paid_for_err_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    model, leader = shifted(0.01)
    monkeypatch.setattr(decisions, "boundary", lambda passes, samples, alpha: 1.282)  # 90 % at a single look
    monkeypatch.setattr(decisions, "_unseen", lambda passes, alpha: 0.0)
    x = one_row_many_times(INPUT, RUNS)
    result = md.estimate(model, x, outputs="logits", decision="label", confidence=CONFIDENCE, budget=1500)
    assert share_of_errors(result, leader) > allowed(RUNS, 1 - CONFIDENCE)


@pytest.mark.parametrize("method", ["pooled", "stratified"])
@pytest.mark.parametrize("distance", [0.12, -0.3])
def test_thresholds_are_right_as_often_as_promised(method: str, distance: float) -> None:
    model = small_net(1)
    passes, weights = enumerated(model, INPUT)
    mean = float((weights @ passes)[0])
    spread = float(np.sqrt(weights @ (passes[:, 0] - mean) ** 2))
    x = one_row_many_times(INPUT, RUNS)
    threshold = md.Above(mean + distance * spread)
    result = md.estimate(model, x, decision=threshold, confidence=CONFIDENCE, budget=1000, method=method)
    assert result["decision"].value.shape == (RUNS,)
    assert share_of_errors(result, distance < 0) <= allowed(RUNS, 1 - CONFIDENCE)
    assert result["decision"].settled.mean() > 0.05


def test_the_largest_are_found_as_often_as_promised() -> None:
    rows, k, repeats = 10, 3, 40
    model = small_net(3, units=(6, 4), seed=5)
    x = torch.stack([torch.linspace(-1.5, 1.5, rows), torch.linspace(1.0, -0.6, rows)], dim=1).double()
    truth = np.zeros(rows)
    for row in range(rows):
        passes, weights = enumerated(model, x[row : row + 1])
        truth[row] = exact_quantities(passes, weights, "logits")["mutual_information"]
    inside = np.isin(np.arange(rows), np.argsort(-truth)[:k])
    wrong = 0
    for seed in range(repeats):
        decision = md.TopK(k, by="mutual_information")
        found = md.estimate(
            model, x, outputs="logits", decision=decision, confidence=CONFIDENCE, budget=1500, seed=seed
        )["decision"]
        assert found.value.sum() == k
        wrong += int((found.settled & (found.value != inside)).sum())
    assert wrong / (rows * repeats) <= allowed(rows * repeats, 1 - CONFIDENCE)


@pytest.mark.parametrize("repeats", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_inputs_that_look_certain_are_not_left_out_of_the_largest(repeats: int) -> None:
    rows, k = 20, 15
    model, x = Pool().eval(), torch.stack([torch.linspace(0.1, 1.6, rows), (torch.arange(rows) < 3).float()], dim=1)
    truth = np.zeros(rows)
    for row in range(rows):
        passes, weights = enumerated(model, x[row : row + 1])
        truth[row] = exact_quantities(passes, weights, "logits")["mutual_information"]
    inside = np.isin(np.arange(rows), np.argsort(-truth)[:k])
    assert inside[:3].all()
    wrong, settled = 0, 0
    for seed in range(repeats):
        found = md.estimate(model, x, outputs="logits", decision=md.TopK(k), confidence=0.99, budget=1000, seed=seed)
        wrong += int((found["decision"].settled & (found["decision"].value != inside)).sum())
        settled += int(found["decision"].settled.sum())
    assert wrong <= allowed(rows * repeats, 0.01) * rows * repeats
    assert settled > 0.2 * rows * repeats


@pytest.mark.parametrize("confidence", [0.9, 0.99])
@pytest.mark.parametrize("rate", [0.02, 0.2])
@pytest.mark.parametrize("times", [0.7, 1.3])
def test_frequent_looks_at_skewed_outputs_err_no_more(
    rate: float, times: float, confidence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = torch.nn.Dropout(rate)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.0 - self.dropout(x) * (1.0 - rate)  # 1 where the unit is dropped

    monkeypatch.setattr(row_by_row, "next_round", lambda goal, needs, part, spent: max(1.0, 0.03 * part.passes))
    decision = md.Above(times * rate)
    result = md.estimate(Dropped().eval(), torch.ones(RUNS, 1), decision=decision, confidence=confidence, budget=200)
    assert share_of_errors(result, times < 1) <= allowed(RUNS, 1 - confidence)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_a_single_input_is_not_settled_before_rare_masks_have_come(confidence: float) -> None:
    model, x, runs = Gate().eval(), torch.tensor([[0.02]]), 150
    threshold = float(exact_moments(model, x)[0][0]) + 0.005  # without the rare mask the mean is above
    decision = md.Above(threshold)
    batches = (x for _ in range(runs))  # each a run of its own
    result = md.estimate(model, batches, decision=decision, confidence=confidence, budget=1000)
    assert share_of_errors(result, False) <= allowed(runs, 1 - confidence)


def test_intervals_of_the_largest_have_half_of_the_error_rate() -> None:
    one, all_together = (decisions.decision_for(md.TopK(3), 0.9, familywise=flag) for flag in (False, True))
    assert decisions.error_rate(one, 10) == pytest.approx(0.05)
    assert decisions.error_rate(all_together, 10) == pytest.approx(0.01)
    assert Screen(all_together)._error_rate(0, 10) == pytest.approx(0.0025)  # half of it, and half for later batches
    assert sum(Screen(all_together)._error_rate(index, 1) for index in range(1000)) < 0.05


def classifier() -> torch.nn.Module:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Dropout(0.3)]
    return torch.nn.Sequential(
        *layers, torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 3)
    )


X = 3 * torch.randn(60, 4, generator=torch.Generator().manual_seed(2))


def test_passes_go_where_decisions_are_open() -> None:
    result = md.estimate(classifier(), X, outputs="logits", decision="label", budget=2000)
    settled = result["decision"].settled
    assert result.status in (md.Status.DECIDED, md.Status.UNSETTLED)
    assert np.median(result.passes) < result.passes.max() / 4
    if not settled.all():
        assert result.passes[~settled].min() >= result.passes[settled].mean()
        assert any("open decisions would take" in note for note in result.notes)
    assert np.array_equal(result["decision"].value, result["label"].value)


def test_all_decisions_together_need_more() -> None:
    alone, together = (
        md.estimate(classifier(), X, outputs="logits", decision="label", budget=3000, familywise=flag)
        for flag in (False, True)
    )
    assert together.cost > alone.cost


def test_a_pool_in_batches_is_one_pool() -> None:
    def pool():
        return (X[start : start + 16] for start in range(0, 60, 16))

    ask = {"outputs": "logits", "decision": md.TopK(5, by="entropy"), "budget": 800}
    whole, parts = md.estimate(classifier(), X, **ask), md.estimate(classifier(), pool(), **ask)
    assert whole["decision"].value.sum() == parts["decision"].value.sum() == 5
    both = whole["decision"].settled & parts["decision"].settled
    assert np.array_equal(whole["decision"].value[both], parts["decision"].value[both])
    assert len(parts.passes) == 60
    assert parts.cost == pytest.approx(parts.passes.mean())
    with md_executor() as executor:
        again = md.estimate(classifier(), pool(), executor=executor, **ask)
    assert np.array_equal(again.passes, parts.passes)
    assert np.array_equal(again["entropy"].value, parts["entropy"].value)


def md_executor():
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(2)


def test_an_own_quantity_decides_who_is_largest() -> None:
    margin = md.Quantity("margin", lambda p: np.sort(p, axis=-1)[:, -2:], lambda e: e[..., 0] - e[..., 1])
    result = md.estimate(classifier(), X, outputs="logits", decision=md.TopK(4, by=margin), budget=600)
    found = result["decision"]
    chosen = np.argsort(-result["margin"].value)[:4]
    assert np.array_equal(np.sort(chosen), np.flatnonzero(found.value))


def test_decisions_survive_files_and_checkpoints(tmp_path) -> None:
    ask = {"outputs": "logits", "decision": "label", "budget": 500}
    once = md.estimate(classifier(), X, checkpoint=tmp_path / "c", **ask)
    again = md.estimate(classifier(), X, checkpoint=tmp_path / "c", **ask)
    loaded = md.load_result(once.save(tmp_path / "r"))
    for other in (again, loaded):
        assert np.array_equal(other["decision"].value, once["decision"].value)
        assert np.array_equal(other["decision"].settled, once["decision"].settled)
    assert loaded.status is once.status


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"decision": "best"}, "'label', md.Above"),
        ({"decision": "label", "confidence": 1.0}, "between 0.5 and 1"),
        ({"decision": "label", "tolerance": 0.1}, "give one of them"),
        ({"decision": "label", "effort": "equal"}, "effort='equal'"),
        ({"decision": md.TopK(60)}, "choose fewer"),
        ({"decision": md.TopK(3, by="votes")}, "one value per input"),
        ({"decision": md.TopK(3, by="median")}, "unknown quantity 'median'"),
    ],
)
def test_what_cannot_be_decided_is_refused(wrong: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        md.estimate(classifier(), X, outputs="logits", **{"budget": 100, **wrong})


def test_labels_need_classes() -> None:
    with pytest.raises(InputError, match="needs a classifier"):
        md.estimate(classifier(), X, decision="label")
    with pytest.raises(InputError, match="at least 1"):
        md.TopK(0)


def test_rows_that_depend_on_each_other_go_on_together() -> None:
    class Mixing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = classifier()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.net(x)
            return out + 0.1 * out.mean(dim=0, keepdim=True)

    result = md.estimate(Mixing().eval(), X[:6], outputs="logits", decision="label", budget=300)
    assert len(set(result.passes.tolist())) == 1


@pytest.mark.parametrize("seed", [3, 5])
def test_an_input_whose_decision_opens_again_goes_on_up_to_the_budget(seed: int) -> None:
    """What rare passes may do is learnt from all inputs: an input that had stopped may have to go on.

    With seed 3, another input has used up its budget by then.
    """
    torch.manual_seed(seed)
    x = torch.randn(30, 4)
    layers = (torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
    result = md.estimate(torch.nn.Sequential(*layers), x, decision=md.Above(0.1), budget=2000)
    still_open = ~result["decision"].settled.all(axis=1)
    assert (result.passes[still_open] > 1900).all()
