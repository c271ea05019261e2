"""Labels that more passes may change are in the standard errors of metrics that jump."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout.evaluation.features import FeatureMap, halves_joined
from mlmc_dropout.evaluation.levels import LevelState
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.evaluation.statistics import Statistics
from mlmc_dropout.evaluation.unsettled import unsettled_squares

ROWS = 60


class Coin(nn.Module):
    """Two classes; the logits of an input x are ± (x + noise of mean 0): at x = 0 a coin decides."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.signs = torch.tensor([1.0, -1.0] * 4)

    def forward(self, x: Tensor) -> Tensor:
        noise = (self.drop(torch.ones(len(x), 8)) * self.signs).sum(dim=1) / 2
        return torch.stack([x[:, 0] + noise, -x[:, 0] - noise], dim=1)


def inputs(tossed: int) -> Tensor:
    x = torch.full((ROWS, 1), 8.0)
    x[:tossed] = 0.0
    return x


SETTINGS = ({"method": "plug-in", "passes": 256}, {"method": "plug-in", "passes": 16}, {"budget": 300.0})


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_label_that_a_coin_decides_is_never_without_error(settings: dict[str, object]) -> None:
    runs = [md.evaluate(Coin(), inputs(1), np.zeros(ROWS), metrics=("accuracy",), seed=s, **settings) for s in range(8)]
    errors = np.array([one["accuracy"].error for one in runs])
    assert (errors > 0).all(), errors
    assert 0.3 / ROWS < np.sqrt(np.mean(errors**2)) < 3.0 / ROWS, errors  # one input is worth 1/ROWS


def test_labels_that_are_settled_are_without_error() -> None:
    found = md.evaluate(
        Coin(), inputs(0), np.zeros(ROWS), metrics=("accuracy", "entropy"), method="plug-in", passes=256
    )
    assert found["accuracy"].value == 1.0 and found["accuracy"].error == 0.0


def test_few_inputs_that_agree_do_not_speak_for_all() -> None:
    found = md.evaluate(Coin(), inputs(0), np.zeros(ROWS), metrics=("accuracy",), method="plug-in", passes=8, budget=2)
    assert found.cost < 4 and found["accuracy"].stderr > 0.02


@pytest.mark.parametrize("unsettled", [0.0, 1e-9, 1e-4])
def test_samples_that_are_all_hits_do_not_speak_for_all_however_settled(unsettled: float) -> None:
    """Twenty hits: as if one input of 22 were a miss, whether or not a pass of them could have jumped."""
    hits, nothing = np.ones((20, 1)), np.zeros((20, 1))
    state = LevelState.of(hits, nothing, nothing, nothing, np.zeros((20, 2)), unsettled + nothing)
    found = Statistics([state], select_metrics(("accuracy",), "logits", True), rows=10**6)
    np.testing.assert_allclose(found.covariance_of_mean(0)[0, 0], 1 / 22 / 20, rtol=0.01)


def test_a_mean_near_the_edge_may_jump_and_one_far_away_may_not() -> None:
    features = FeatureMap("logits", select_metrics(("accuracy", "entropy"), "logits", True))
    gaps = np.array([0.0, 1.0, 2.0, 30.0])  # of two classes, in standard errors of their mean over 8 parts
    noise = np.random.default_rng(0).normal(size=(8, 4))
    noise = (noise - noise.mean(axis=0)) / noise.std(axis=0, ddof=1) * 0.01 * np.sqrt(8)
    first = 0.5 + 0.01 * gaps / 2 + noise / 2
    parts = {"probabilities": np.stack([first, 1 - first], axis=-1)}
    whole = halves_joined(halves_joined(halves_joined(parts)))
    found = unsettled_squares(features, parts, whole, np.zeros(4, dtype=int))
    assert (np.diff(found[:3, 0]) < 0).all() and found[2, 0] > 0
    assert found[3, 0] == 0 and (found[:, 1] == 0).all()
