"""What a terminal says about labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.cli.running import beside_labels
from mlmc_dropout.report.data import PageData

X = np.random.default_rng(0).normal(size=(20, 3))


def net(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, outputs)).eval()


def test_accuracy_is_the_share_of_right_labels():
    result = md.estimate(net(4), X, outputs="logits", budget=32)
    labels = result["label"].value.astype(np.int64)
    labels[:5] = (labels[:5] + 1) % 4
    sentence = beside_labels(result, PageData.of(X, labels))
    assert sentence == "Accuracy of the mean prediction: 75 % of 20 true labels."


def test_the_error_of_values_is_its_root_mean_square():
    result = md.estimate(net(1), X, budget=32)
    sentence = beside_labels(result, PageData.of(X, result.mean[:, 0] + 0.5))
    assert sentence == "Root mean square error of the mean, by the true values of 20 inputs: 0.5."


def test_outputs_of_different_size_have_errors_of_their_own():
    result = md.estimate(net(2), X, budget=32)
    sentence = beside_labels(result, PageData.of(X, result.mean + np.array([3.0, 0.04])))
    assert sentence.endswith("of 20 inputs: 2.12; of single outputs 3, 0.04.")


@pytest.mark.parametrize("data", [None, PageData()])
def test_nothing_is_said_without_labels(data):
    assert beside_labels(md.estimate(net(1), X, budget=32), data) == ""
