"""Inputs that stop one by one: who gets how many passes, the same bits however it is run, and going on from there."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout.errors import CheckpointError, InputError
from mlmc_dropout.result import Status
from mlmc_dropout.runtime import checkpoint
from mlmc_dropout.runtime.run import Run
from testing.runs import METHODS, Shuffled, digest, small
from testing.treacherous import TREACHEROUS, inputs
from testing.zoo import ZOO

ROWS = 24
EFFORTS = ("adaptive", "equal")
GOALS: dict[str, float] = {"nested": 0.05, "independent": 0.06, "adaptive": 0.06}  # ladders take more passes


def uneven(rows: int = ROWS) -> tuple[nn.Module, Tensor]:
    """Inputs whose spread differs by a factor of thirty."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first, last = nn.Linear(1, 16, bias=False), nn.Linear(16, 2)
        model = nn.Sequential(first, nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2), last)
        order = torch.randperm(rows)
    return model, torch.logspace(-1.5, 1.0, rows)[order, None]


def goal_of(name: str) -> dict[str, Any]:
    return {"tolerance": GOALS.get(name, 0.012), **METHODS[name]}


@pytest.mark.parametrize("masks", ["independent", "shared"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_lets_inputs_stop_when_they_may(name, masks):
    model, x = uneven()
    adaptive = md.estimate(model, x, masks=masks, **goal_of(name))
    equal = md.estimate(model, x, masks=masks, effort="equal", **goal_of(name))
    assert adaptive.status is equal.status is Status.TOLERANCE_MET
    assert adaptive.mean_stderr.max() <= goal_of(name)["tolerance"]
    assert (equal.passes == equal.cost).all()
    assert adaptive.cost == pytest.approx(adaptive.passes.mean())
    assert len(np.unique(adaptive.passes)) > 1 or equal.cost < 600
    assert adaptive.cost < equal.cost or equal.cost < 600
    spread = np.abs(adaptive.mean - equal.mean) / np.hypot(adaptive.mean_stderr, equal.mean_stderr)
    assert spread.max() < 6


@pytest.mark.parametrize("method", ["pooled", "auto", "stratified"])
@pytest.mark.parametrize("tolerance", [0.3, 0.05, 0.03, 0.02, 0.012, 0.006])
def test_at_no_tolerance_does_it_cost_more_than_equal_effort(tolerance, method):
    model, x = uneven()
    costs = np.array(
        [
            [md.estimate(model, x, method=method, tolerance=tolerance, effort=effort, seed=seed) for effort in EFFORTS]
            for seed in range(3)
        ]
    )
    assert all(found.status is Status.TOLERANCE_MET for found in costs.flat)
    adaptive, equal = np.array([[found.cost for found in pair] for pair in costs]).mean(axis=0)
    assert adaptive <= 1.1 * equal


def test_inputs_that_are_alike_stop_together():
    model, x = uneven()
    same = x[:1].repeat(8, 1)
    adaptive, equal = (md.estimate(model, same, method="pooled", tolerance=0.004, effort=effort) for effort in EFFORTS)
    assert adaptive.cost <= 1.1 * equal.cost


def test_an_input_has_the_passes_that_it_would_have_alone_with_that_budget():
    model, x = uneven()
    found = md.estimate(model, x, method="pooled", tolerance=0.02)
    for passes in np.unique(found.passes):
        rows = found.passes == passes
        same = md.estimate(model, x, method="pooled", budget=passes)
        np.testing.assert_allclose(found.mean[rows], same.mean[rows], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.variance_stderr[rows], same.variance_stderr[rows], rtol=1e-3)


def test_without_a_tolerance_inputs_are_equal_unless_asked():
    model, x = uneven()
    result = md.estimate(model, x, method="pooled", budget=300)
    assert (result.passes == 300).all() and result.cost == 300 and isinstance(result.cost, int)


@pytest.mark.parametrize("name", METHODS)
def test_a_budget_is_spent_where_it_lowers_the_errors_most(name):
    model, x = uneven()
    adaptive = md.estimate(model, x, budget=3000, effort="adaptive", **METHODS[name])
    equal = md.estimate(model, x, budget=3000, **METHODS[name])
    assert adaptive.status is Status.COMPLETED
    assert 2700 <= adaptive.cost <= 3000
    assert (adaptive.mean_stderr**2).sum() < 0.95 * (equal.mean_stderr**2).sum()
    assert adaptive.passes[x[:, 0].numpy().argmax()] > 1.5 * adaptive.passes[x[:, 0].numpy().argmin()]


def test_plain_passes_are_shared_in_proportion_to_the_spread():
    model, x = uneven()
    found = md.estimate(model, x, method="pooled", budget=20_000, effort="adaptive")
    spread = (found.variance / found.variance.mean(axis=0)).mean(axis=1) ** 0.5
    best = spread.sum() ** 2 / 20_000 / ROWS  # Σ s²/T with T ∝ s
    assert (spread**2 / found.passes).sum() < 1.08 * best < 0.8 * (spread**2).sum() / 20_000


def test_with_both_the_budget_is_an_average():
    model, x = uneven()
    full = md.estimate(model, x, method="pooled", tolerance=0.01)
    capped = md.estimate(model, x, method="pooled", tolerance=0.01, budget=0.6 * full.cost)
    assert capped.status is Status.BUDGET_EXHAUSTED
    assert 0.55 * full.cost < capped.cost <= 0.6 * full.cost < capped.passes.max()
    met = (capped.mean_stderr <= 0.01).all(axis=1)
    assert 0 < met.sum() < ROWS
    note = next(note for note in capped.notes if "have not met" in note)
    assert note.startswith(f"{ROWS - met.sum()} of {ROWS} inputs")
    assert float(note.split("about ")[1].split()[0]) == pytest.approx(full.cost, rel=0.3)


# ------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("name", METHODS)
def test_chunks_and_executors_change_no_bit(name):
    model, x = uneven()
    expected = md.estimate(model, x, **goal_of(name))
    assert digest(md.estimate(model, x, chunk=48, **goal_of(name))) == digest(expected)
    with Shuffled(1, deaths=3) as executor:
        assert digest(md.estimate(model, x, executor=executor, **goal_of(name))) == digest(expected)


@pytest.mark.parametrize("name", ["pooled", "control-variate"])
def test_processes_change_no_bit(name):
    model, x = uneven()
    expected = digest(md.estimate(model, [x[:14], x[14:]], **goal_of(name)))
    assert digest(md.estimate(model, [x[:14], x[14:]], executor=2, **goal_of(name))) == expected
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        assert digest(md.estimate(model, [x[:14], x[14:]], executor=executor, **goal_of(name))) == expected


def test_small_parts_of_rows_give_the_same():
    model, x = uneven()
    whole = md.estimate(model, x, method="control-variate", tolerance=0.01)
    parts = md.estimate(model, x, method="control-variate", tolerance=0.01, memory_limit=1 << 16)
    np.testing.assert_allclose(parts.mean, whole.mean, atol=0.04)


def test_several_batches_have_their_own_cohorts():
    model, x = uneven()
    found = md.estimate(model, [x[:9], x[9:]], method="pooled", tolerance=0.02)
    assert found.passes.shape == (ROWS,) and found.cost == pytest.approx(found.passes.mean())
    assert found.mean_stderr.max() <= 0.02
    assert len(np.unique(found.passes[:9])) > 1 and len(np.unique(found.passes[9:])) > 1


# ---------------------------------------------------------------------------------- going on


class Killed(BaseException):
    """Stands for a kill: nothing may be written after it."""


def _killed_again_and_again(model, x, path, monkeypatch, pieces, **arguments):
    for _ in range(300):
        with monkeypatch.context() as patch:
            accept, left = Run.accept, iter(range(pieces))

            def accepting(self, start, states, accept=accept, left=left, patch=patch):
                if next(left, None) is None:
                    patch.setattr(checkpoint.CheckpointStore, "flush", lambda *_: None)
                    raise Killed
                accept(self, start, states)

            patch.setattr(Run, "accept", accepting)
            try:
                return md.estimate(model, x, checkpoint=path, checkpoint_interval=0.0, **arguments)
            except Killed:
                continue
    raise AssertionError("never finished")


@pytest.mark.parametrize("name", METHODS)
def test_killed_again_and_again_the_bits_are_the_same(name, tmp_path, monkeypatch):
    model, x = uneven(10)
    pieces = 12 if name in ("independent", "nested", "adaptive") else 2
    expected = md.estimate(model, x, **goal_of(name))
    found = _killed_again_and_again(model, x, tmp_path / "c", monkeypatch, pieces, **goal_of(name))
    assert digest(found) == digest(expected) and found.notes == expected.notes


def test_a_shared_out_budget_survives_kills(tmp_path, monkeypatch):
    model, x = uneven(10)
    arguments = {"method": "stratified", "budget": 2000, "effort": "adaptive"}
    found = _killed_again_and_again(model, x, tmp_path / "c", monkeypatch, 3, **arguments)
    assert digest(found) == digest(md.estimate(model, x, **arguments))


@pytest.mark.parametrize("name", METHODS)
def test_inputs_that_had_stopped_go_on_to_a_tighter_tolerance(name, tmp_path):
    model, x = uneven()
    goal = goal_of(name)
    loose = md.estimate(model, x, checkpoint=tmp_path / "c", **goal)
    tight = md.estimate(model, x, checkpoint=tmp_path / "c", **{**goal, "tolerance": goal["tolerance"] / 2})
    assert tight.status is Status.TOLERANCE_MET
    assert (tight.passes >= loose.passes).all() and tight.cost > loose.cost
    assert tight.mean_stderr.max() <= goal["tolerance"] / 2
    again = md.estimate(model, x, checkpoint=tmp_path / "c", **{**goal, "tolerance": goal["tolerance"] / 2})
    assert digest(again) == digest(tight)
    relaxed = md.estimate(model, x, checkpoint=tmp_path / "c", **goal)
    assert relaxed.passes.tolist() == tight.passes.tolist()


def test_a_run_of_equal_effort_goes_on_one_by_one_but_not_the_other_way(tmp_path):
    model, x = uneven()
    md.estimate(model, x, method="pooled", budget=500, checkpoint=tmp_path / "c")
    found = md.estimate(model, x, method="pooled", tolerance=0.02, checkpoint=tmp_path / "c")
    assert found.passes.min() == 500 < found.passes.max()
    with pytest.raises(CheckpointError, match="effort='adaptive'"):
        md.estimate(model, x, method="pooled", tolerance=0.02, effort="equal", checkpoint=tmp_path / "c")


def test_interrupted_the_result_says_what_every_input_had():
    model, x = uneven()

    def stop(event):
        if event.settled:
            raise KeyboardInterrupt

    found = md.estimate(model, x, method="pooled", tolerance=0.002, progress=stop)
    assert found.status is Status.STOPPED and found.passes.shape == (ROWS,)
    assert found.cost == pytest.approx(found.passes.mean())


# ------------------------------------------------------------------------------- equal after all


def test_inputs_that_cannot_be_run_apart_get_equal_passes():
    model, x = ZOO["sequence_first"].make()
    quiet = md.estimate(model, x, method="pooled", tolerance=0.05)
    asked = md.estimate(model, x, method="pooled", tolerance=0.05, effort="adaptive")
    assert (quiet.passes == quiet.cost).all() and digest(quiet) == digest(asked)
    assert not any("same passes" in note for note in quiet.notes)
    assert any("same passes" in note for note in asked.notes)


def test_counts_and_quantiles_are_about_all_inputs():
    model, x = small()
    counts = md.estimate(model, x, method="mlmc", ladder=(4, 8), counts=(10, 5), effort="adaptive")
    share = md.estimate(model, x, method="pooled", tolerance=0.01, quantile=0.5, effort="adaptive")
    for result in (counts, share):
        assert (result.passes == result.cost).all() and any("same passes" in note for note in result.notes)
    with pytest.raises(InputError, match="effort is"):
        md.estimate(model, x, budget=100, effort="most")


def test_a_single_input_is_enough():
    model, x = uneven()
    assert md.estimate(model, x[:1], method="pooled", tolerance=0.02).passes.shape == (1,)


# --------------------------------------------------------------------------------------- exports


def test_passes_are_saved_and_exported(tmp_path):
    model, x = uneven()
    found = md.estimate(model, x, method="pooled", tolerance=0.02)
    again = md.load_result(found.save(tmp_path / "run.npz"))
    np.testing.assert_array_equal(again.passes, found.passes)
    assert again.cost == found.cost
    frame = found.to_dataframe()
    assert frame["passes"].tolist() == np.repeat(found.passes, 2).tolist()
    np.testing.assert_array_equal(found.to_xarray()["passes"].values, found.passes)
    arrays = md.Predictor(model, method="pooled", tolerance=0.02).arrays(x)
    np.testing.assert_array_equal(arrays["passes"], found.passes)


@pytest.mark.parametrize("method", ["stratified", "control-variate"])
def test_what_a_budget_leaves_goes_to_inputs_that_have_not_met_the_tolerance(method):
    """All inputs should have a few more passes, which the budget does not allow; some of them need these."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1)]
    model, x = nn.Sequential(*layers, nn.Linear(32, 1)).eval(), 3 * torch.randn(100, 2)
    result = md.estimate(model, x, method=method, tolerance=0.002, budget=200)
    assert result.status is md.Status.TOLERANCE_MET
    assert len(np.unique(result.passes)) > 1
    assert result.cost <= 200


def test_a_missed_tolerance_is_told_by_the_standard_errors_that_are_reported():
    model, x = ZOO["mlp"].make()
    result = md.estimate(model, x, tolerance=1e-5, budget=40)
    assert result.status is md.Status.BUDGET_EXHAUSTED
    (note,) = [note for note in result.notes if "have not met" in note]
    assert f"is {float(result.mean_stderr.max()) / 1e-5:.3g} times the tolerance" in note


def test_a_note_says_where_standard_errors_allow_for_rare_masks():
    words = "allow for rare masks"
    found = md.estimate(TREACHEROUS["gate"]().eval(), inputs(), method="pooled", tolerance=0.02, budget=200)
    assert any(words in note for note in found.notes)
    model, x = small()
    calm = md.estimate(model, x, method="pooled", tolerance=0.01)
    assert not any(words in note for note in calm.notes)
