"""Warnings: of what was measured, in words that say what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.report import write_result_page
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.doubts import warnings
from mlmc_dropout.report.folder import Folder
from mlmc_dropout.report.numbers import matrices
from mlmc_dropout.result import Status

X = np.random.default_rng(0).normal(size=(12, 3))


def net(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, outputs)).eval()


class Saturated(nn.Module):
    """Passes that differ in the last digits: of a probability near 1, or of a value."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.shift = 12.0 * torch.eye(outputs)[0]

    def forward(self, x):
        return torch.exp(self.drop(torch.ones_like(x)).sum(1, keepdim=True) ** 3) * 1e-30 + self.shift


@pytest.fixture(scope="module")
def values() -> md.Result:
    return md.estimate(net(1), X, method="control-variate", budget=200)


@pytest.fixture(scope="module")
def classes() -> md.Result:
    return md.estimate(net(3), X, outputs="logits", method="pooled", budget=64)


def said(result: md.Result) -> list[str]:
    return [*warnings(Folder(Path(), result, {}, PageData()), matrices(result))]


def with_kurtosis(result: md.Result, **kurtosis: float) -> md.Result:
    """The same result, its last level with other tails."""
    last = result.levels[-1]
    shape = np.shape(last.kurtosis)
    level = replace(last, **{name: np.full(shape, value) for name, value in kurtosis.items()})
    return replace(result, levels=(*result.levels[:-1], level))


def test_heavy_tails_are_those_of_passes_and_not_of_what_a_surrogate_leaves(values):
    assert not any("tails" in text for text in said(with_kurtosis(values, kurtosis=40.0, kurtosis_V=3.1)))
    heavy = said(with_kurtosis(values, kurtosis=3.0, kurtosis_V=12.3))
    assert any("Passes have heavy tails (kurtosis 12.3" in text for text in heavy)


def test_tails_of_a_ladder_are_those_of_its_first_level():
    ladder = md.estimate(net(1), X, method="mlmc", ladder=(4, 8), counts=(40, 20))
    first, last = ladder.levels
    heavy = replace(first, kurtosis=np.full_like(first.kurtosis, 30.0))
    assert any("Means of 4 passes have heavy tails" in text for text in said(replace(ladder, levels=(heavy, last))))
    heavy = replace(last, kurtosis=np.full_like(last.kurtosis, 30.0))
    assert not any("tails" in text for text in said(replace(ladder, levels=(first, heavy))))


def test_predicted_classes_are_counted_first(classes):
    flags = np.ones((12, 3), dtype=bool)
    label = classes["label"].value
    flags[np.arange(12), (label + 1) % 3] = False  # nothing that is predicted
    others = replace(classes, mean_reliable=flags, variance_reliable=np.ones_like(flags))
    assert not any("few passes carry" in text for text in said(others))
    flags = flags.copy()
    flags[:5, :] = False
    some = next(text for text in said(replace(others, mean_reliable=flags)) if "few passes carry" in text)
    assert some.startswith("For 5 of 12 predicted classes") and "Spend more passes" in some
    assert not any("quarter of itself" in text for text in said(classes))  # no page shows variances of probabilities


@pytest.mark.parametrize("outputs", [1, 3])
def test_terminal_and_page_count_alike_and_the_page_says_it_once(outputs, tmp_path):
    asked = {"outputs": "logits"} if outputs > 1 else {}
    found = md.estimate(Saturated(outputs), X, method="pooled", budget=64, **asked)
    (note,) = [text for text in found.notes if "few passes carry" in text]
    what = "predicted classes" if outputs > 1 else "outputs"
    assert re.match(rf"For \d+ of 12 {what} few passes", note)
    assert note in said(found) and note in str(found)
    page = write_result_page(found, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("few passes carry most of the variance") == 1


def test_a_settled_run_is_no_warning(values, tmp_path):
    decided = replace(values, status=Status.DECIDED)
    assert Status.DECIDED.value not in said(decided) and Status.UNSETTLED.value in said(
        replace(values, status=Status.UNSETTLED)
    )
    assert write_result_page(decided, tmp_path / "page.html").is_file()
