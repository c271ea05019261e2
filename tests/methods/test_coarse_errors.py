"""Errors of two levels apart: what they say about each other, and what the next round adds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlmc_dropout.methods import coarse_level
from mlmc_dropout.methods.coarse_errors import LevelErrors, next_counts
from mlmc_dropout.methods.coarse_fit import Fitted, level_errors
from mlmc_dropout.methods.coarse_level import CoarseLevel
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.stopping.rows import SETTLING, Needs, aimed_at
from testing.exact_quantities import INPUT, small_net
from testing.oracles import one_row_many_times, source_of, state_of


@pytest.mark.parametrize("masks", ["independent", "shared"])
def test_errors_of_both_levels_are_the_scatter_of_estimates(masks, monkeypatch):
    """400 estimates of the same input: their variance is the sum of both parts, within what chance allows."""
    monkeypatch.setattr(coarse_level, "coarse_cost", lambda source, outputs=None: 0.02)
    rows = 400 if masks == "independent" else 1
    found = []
    for seed in range(1 if masks == "independent" else 150):
        x = one_row_many_times(INPUT, rows) if rows > 1 else INPUT
        source = source_of(small_net(3), x, seed, questions=questions_for("logits", ("mean",)), masks=masks)
        bound = CoarseLevel(ratio=3.0).bind(source)
        state, done = state_of(bound, source, 200)
        errors = level_errors(state, Fitted.of(state))
        assert errors is not None
        found.append((bound.summarise(state, done).mean, errors.fine + errors.coarse, errors.counted))
    means, squares, freedom = (np.concatenate(each) for each in zip(*found, strict=True))
    ratio = means.var(axis=0, ddof=1) / squares.mean(axis=0)
    assert np.abs(ratio - 1).max() < 4.5 * np.sqrt(2 / len(means))
    assert freedom.min() > 20


def errors_of(fine, coarse):
    shape = np.shape(fine)
    return LevelErrors(np.asarray(fine), np.broadcast_to(coarse, shape).astype(float), *np.full((2, *shape), 100.0))


def needs_of(precision, least):
    precision, least = np.asarray(precision, dtype=float), np.asarray(least, dtype=float)
    return Needs(np.maximum(precision, least), precision, least)


def test_only_the_level_that_lacks_samples_gets_more():
    """What the coarse level leaves is too much, passes are enough: no pass is added, and the other way round."""
    needs = needs_of([2.0], [0.3])
    fine, designs = next_counts(errors_of([[1e-4]], 1.0), 300, 40, needs, (1.0, 0.1))
    assert fine <= 310 and 80 <= designs <= 100
    needs = needs_of([0.001], [2.0])
    fine, designs = next_counts(errors_of([[1e-4]], 1.0), 300, 40, needs, (1.0, 0.1))
    assert 600 < fine <= 700 and designs == 40


def test_the_counts_meet_what_is_needed_at_little_cost():
    """Against a search over all counts."""
    prices = (1.0, 0.5)
    a, b, v = 300 * 2.0, 40 * 1.0, 3.0 / 3.5
    fine, designs = next_counts(errors_of([[2.0]], 1.0), 300, 40, needs_of([3.5], [0.01]), prices)
    assert a / fine + b / designs <= 1.01 * v
    counts = np.arange(300, 3000)
    others = np.maximum(b / np.maximum(v - a / counts, 1e-9), 40)
    assert fine * prices[0] + designs * prices[1] <= 1.05 * (counts * prices[0] + others * prices[1]).min()


def test_rounds_always_grow():
    for precision, least in ((1.0001, 1.0001), (0.5, 1.00001), (1e6, 1e6)):
        fine, designs = next_counts(errors_of([[1.0]], 1.0), 300, 40, needs_of([precision], [least]), (1.04, 1.28))
        assert fine > 305 or designs > 40
        assert fine <= 8 * 300 + 1 and designs <= 8 * 40 + 1


def test_the_easiest_inputs_are_aimed_at():
    needs = needs_of(np.linspace(1.1, 5.0, 20), np.zeros(20))
    assert np.flatnonzero(aimed_at(needs)).tolist() == list(range(round(20 * SETTLING)))
    assert aimed_at(needs_of(torch.ones(4).numpy(), np.ones(4))).all()
