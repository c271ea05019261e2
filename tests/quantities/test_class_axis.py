"""Classes on an axis other than the last."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md

X = torch.linspace(-1, 1, 2 * 3 * 5 * 6).reshape(2, 3, 5, 6)


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(8, 4, 1)).eval()


@pytest.mark.parametrize("method", ["pooled", "auto"])
def test_classes_first_are_those_of_a_network_that_has_them_last(net: nn.Module, method: str) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).movedim(1, -1)

    first = md.estimate(net, X, outputs="logits", class_axis=1, budget=100, method=method)
    last = md.estimate(Last().eval(), X, outputs="logits", class_axis=-1, budget=100, method=method)
    assert first.mean.shape == (2, 5, 6, 4)
    np.testing.assert_allclose(first.mean.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_allclose(first.mean, last.mean, atol=1e-6)
    np.testing.assert_array_equal(first["label"].value, last["label"].value)


def test_images_are_warned_of_unless_the_axis_is_given(net: nn.Module) -> None:
    with pytest.warns(md.ModelWarning, match=r"class_axis=1"):
        md.estimate(net, X, outputs="logits", budget=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for axis in (1, -1):
            md.estimate(net, X, outputs="logits", class_axis=axis, budget=20)
        md.estimate(net, X, budget=20)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"outputs": "logits", "class_axis": 0}, "axis 0 are the inputs"),
        ({"outputs": "logits", "class_axis": 1.0}, "got 1.0"),
        ({"outputs": "logits", "class_axis": 4}, "its axes behind the inputs are 1 to 3"),
        ({"outputs": "values", "class_axis": 1}, "got outputs='values'"),
        ({"decision": "label"}, "needs a classifier"),
    ],
)
def test_what_cannot_be_is_refused(net: nn.Module, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(md.MLMCDropoutError, match=words):
        md.estimate(net, X, budget=20, **arguments)


def test_a_checkpoint_of_another_axis_is_not_continued(net: nn.Module, tmp_path) -> None:
    arguments = {"outputs": "logits", "budget": 50, "checkpoint": tmp_path / "run.ckpt", "method": "pooled"}
    md.estimate(net, X[..., :4, :4], class_axis=1, **arguments)
    with pytest.raises(md.CheckpointError):
        md.estimate(net, X[..., :4, :4], class_axis=-1, **arguments)
