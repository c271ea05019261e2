"""Quantities through a whole run: chunks, batches, processes, kills, files; no bit depends on any of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.methods import coarse_level, coarse_pilot
from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.methods.states import from_blocks, merge_states, to_blocks
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.runtime import checkpoint
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.sampling import source as sources
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import source_of
from testing.runs import digest

ALL = ("std", "entropy", "expected_entropy", "mutual_information", "votes", "label", "above_0.3", "quantile_0.9")
METHODS = {
    "pooled": {"method": "pooled", "budget": 400},
    "stratified": {"method": "stratified", "budget": 400},
    "control-variate": {"method": "control-variate", "budget": 500},
    "nested": {"method": "mlmc", "ladder": (2, 4, 8), "budget": 400},
    "independent": {"method": "mlmc", "ladder": (2, 4, 8), "levels": "independent", "budget": 400},
}
every = pytest.mark.parametrize("name", METHODS)


def squared(p):
    return p**2


def total(e):
    return e.sum(-1)


MINE = md.Quantity("mine", features=squared, combine=total)


def network(rows=6, classes=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(2, 40), nn.Tanh(), nn.Dropout(0.25), nn.Linear(40, 40), nn.Tanh(), nn.Dropout(0.1)]
        return nn.Sequential(*layers, nn.Linear(40, classes)).eval(), torch.randn(rows, 2)


def run(name, model, x, **options):
    settings = {"quantities": (*ALL, MINE), "seed": 3, **METHODS[name], **options}
    return md.estimate(model, x, outputs="logits", **settings)


@every
def test_the_size_of_chunks_changes_no_bit(name):
    model, x = network()
    whole = run(name, model, x)
    for chunk in (1, 7, 16):
        assert digest(run(name, model, x, chunk=chunk)) == digest(whole)


@pytest.mark.parametrize("name", ["pooled", "control-variate"])
def test_processes_give_the_same_bits(name):
    model, x = network()
    expected = run(name, model, x)
    assert {"mine", *ALL} == set(expected.quantities)
    assert digest(run(name, model, x, executor=2)) == digest(expected)


@pytest.mark.parametrize("name", ["pooled", "stratified", "nested"])
def test_batches_are_one_after_the_other_and_the_same_as_one(name):
    """Of control variates, coefficients are fitted on a batch: there the values differ, in shapes they agree."""
    model, x = network(rows=7)
    whole, parts = run(name, model, x), run(name, model, [x[:3], x[3:]])
    for quantity in whole.quantities:
        rtol = 1e-3 if quantity == "std" else 1e-9  # its correction knows the skewness of the whole batch
        np.testing.assert_allclose(parts[quantity].value, whole[quantity].value, rtol=rtol)
    one = run("control-variate", model, [x[:3], x[3:]])
    assert one["entropy"].value.shape == (7,) and one["votes"].value.shape == (7, 3)


class Killed(BaseException):
    """Stands for a kill: nothing may be written after it."""


@every
def test_killed_after_every_other_task_and_resumed_no_bit_is_different(name, tmp_path, monkeypatch):
    model, x = network()
    expected = run(name, model, x)
    accept = Run.accept
    kills = 0
    while True:
        merged = 0

        def accepting(self, start, states):
            nonlocal merged
            merged += 1
            if merged > 2:
                raise Killed
            accept(self, start, states)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "accept", accepting)
            patch.setattr(checkpoint.CheckpointStore, "flush", lambda *_: None)
            try:
                result = run(name, model, x, checkpoint=tmp_path / "c", checkpoint_interval=0.0)
                break
            except Killed:
                kills += 1
    assert kills
    assert digest(result) == digest(expected)


def test_a_checkpoint_of_other_quantities_is_refused(tmp_path):
    model, x = network()
    run("pooled", model, x, checkpoint=tmp_path / "c")
    with pytest.raises(md.CheckpointError, match="quantities"):
        run("pooled", model, x, checkpoint=tmp_path / "c", quantities=("entropy",))


@pytest.mark.parametrize("name", ["pooled", "stratified", "nested"])
def test_states_merge_in_any_split_and_come_back_from_their_blocks(name):
    model, x = network()
    here = source_of(model, x, questions=questions_for("logits", ALL))
    settings = {k: v for k, v in METHODS[name].items() if k not in ("method", "budget")}
    defaults = {"ladder": None, "counts": None, "levels": "nested", "target": "mean", "moments": None}
    spec = make_method(METHODS[name]["method"], **{**defaults, **settings}, mean_only=False)
    bound = spec.choose(here, Goal(budget=300)).bind(here)
    tasks, _ = bound.extend({}, 300)
    states = [bound.run(here, task) for task in tasks]
    assert len(states) > 2
    left = merge_states(merge_states(states[0], states[1]), states[2])
    right = merge_states(states[0], merge_states(states[1], states[2]))
    for a, b in zip(to_blocks(left).values(), to_blocks(right).values(), strict=True):
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-10, atol=1e-14)
        assert a.count == b.count
    back = from_blocks(type(left), to_blocks(left))
    for path, block in to_blocks(left).items():
        assert np.array_equal(to_blocks(back)[path].mean, block.mean)


@every
def test_results_are_saved_and_read_and_printed_with_their_quantities(name, tmp_path):
    model, x = network()
    result = run(name, model, x)
    back = md.load_result(result.save(tmp_path / "r"))
    assert digest(back) == digest(result)
    assert back["label"].value.dtype == result["label"].value.dtype
    np.testing.assert_array_equal(back["label"].confidence, result["label"].confidence)
    np.testing.assert_array_equal(back["entropy"].reliable, result["entropy"].reliable)
    data = back.to_xarray()
    assert data["entropy"].dims == ("input",) and data["votes"].dims == ("input", "out0")
    frame = back.to_dataframe()
    assert len(frame) == 18 and {"entropy", "entropy_stderr", "votes", "label_confidence"} <= set(frame.columns)
    with pytest.raises(KeyError, match="ask for it with quantities="):
        back["aleatoric_variance"]


@pytest.mark.parametrize("method", ["pooled", "stratified"])
def test_passes_that_are_not_held_give_the_same_quantities(method, monkeypatch):
    """Wide outputs are added up one by one, in fewer groups; values agree, standard errors nearly."""
    model, x = network(rows=3, classes=40)
    options = {"outputs": "logits", "quantities": ("entropy", "votes", "label"), "method": method, "budget": 320}
    held = md.estimate(model, x, **options)
    monkeypatch.setattr(sources, "WIDE", 10)
    added = md.estimate(model, x, **options)
    np.testing.assert_allclose(added["votes"].value, held["votes"].value, rtol=1e-9)
    np.testing.assert_allclose(added["entropy"].value, held["entropy"].value, rtol=2e-3)
    assert np.array_equal(added["label"].value, held["label"].value)
    for chunk in (1, 5):
        assert digest(md.estimate(model, x, **options, chunk=chunk)) == digest(added)


def test_quantities_of_ones_own_may_have_any_name():
    """Names of the library's own features, too; what others ask is not changed by it."""
    model, x = network()
    alone = md.estimate(model, x, outputs="logits", quantities=("entropy", "votes"), method="pooled", budget=100)
    for name in ("probabilities", "main", "square of main", "below", "centre"):
        mine = md.Quantity(name, features=squared, combine=total)
        both = md.estimate(
            model, x, outputs="logits", quantities=("entropy", "votes", mine), method="pooled", budget=100
        )
        assert np.array_equal(both["entropy"].value, alone["entropy"].value), name
        assert both[name].value.shape == (6,)


def test_a_tolerance_with_quantities_and_the_coarse_level(monkeypatch):
    for module in (coarse_level, coarse_pilot):
        monkeypatch.setattr(module, "coarse_cost", lambda source, outputs=None: 0.01)
    model, x = network()
    result = md.estimate(model, x, outputs="logits", method="control-variate", tolerance=1e-3)
    assert result.status is md.Status.TOLERANCE_MET and result.mean_stderr.max() <= 1e-3
    assert (result["entropy"].stderr < 5e-3).all()
