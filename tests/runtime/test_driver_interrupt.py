"""Ctrl-C returns what there is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.errors import NonFiniteOutputError
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.run import Run
from testing.runs import METHODS, small


@pytest.mark.parametrize("name", sorted(METHODS))
def test_ctrl_c_in_the_middle_of_a_round_returns_the_passes_so_far(name, interrupt_after):
    model, x = small()
    interrupt_after(8)
    result = md.estimate(model, x, budget=4000, **METHODS[name])
    assert result.status is Status.STOPPED
    assert 0 < result.cost < 4000
    assert np.isfinite(result.mean_stderr).all() and np.isfinite(result.variance_stderr).all()
    truth = md.estimate(model, x, method="pooled", budget=8000, seed=1)
    assert (np.abs(result.mean - truth.mean) < 6 * np.hypot(result.mean_stderr, truth.mean_stderr)).all()
    assert not any("covers the first" in note for note in result.notes)  # it covers all of them


def test_the_passes_so_far_are_counted_exactly(interrupt_after):
    model, x = small()
    interrupt_after(3)
    result = md.estimate(model, x, method="pooled", budget=1000)
    assert result.cost == result.levels[0].count == 3 * 128
    same = md.estimate(model, x, method="pooled", budget=3 * 128)
    np.testing.assert_array_equal(result.mean, same.mean)


def test_batches_that_were_not_begun_are_left_out_and_the_note_says_so(interrupt_after):
    model, x = small(rows=9)
    interrupt_after(6)
    result = md.estimate(model, [x[:3], x[3:6], x[6:]], method="pooled", budget=400)
    assert result.status is Status.STOPPED and len(result.mean) == 6
    assert "The result covers the first 6 inputs." in result.notes


def test_an_interrupt_between_batches_is_still_an_interrupt(interrupt_after):
    model, x = small(rows=6)
    interrupt_after(4)
    result = md.estimate(model, [x[:3], x[3:]], method="pooled", budget=512)
    assert result.status is Status.STOPPED and len(result.mean) == 3


def test_with_nothing_to_return_the_interrupt_goes_on(monkeypatch):
    model, x = small()

    def interrupted(self, start, states):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "accept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        md.estimate(model, x, method="pooled", budget=1000)


def test_infinite_outputs_in_mid_run_name_the_rows_and_carry_what_there_was():
    torch.manual_seed(0)
    weight = torch.randn(1, 64)

    def model(x):
        kept = torch.nn.functional.dropout(torch.ones(len(x), 64), 0.5, True)
        few = (kept > 0).sum(1, keepdim=True) < 20  # happens in one pass of about five hundred
        return torch.where(few & (x[:, :1] > 0), torch.inf, x[:, :1] + (kept * weight).sum(1, keepdim=True))

    x = torch.tensor([[-1.0], [-2.0], [3.0]])
    with pytest.raises(NonFiniteOutputError) as caught:
        md.estimate(model, x, method="pooled", budget=20_000)
    assert caught.value.rows.tolist() == [2]
    partial = caught.value.partial
    assert partial is None or partial.status is Status.FAILED
