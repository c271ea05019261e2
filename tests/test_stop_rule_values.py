"""Stop rules and chunks that are no such thing are refused before the model is called."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlmc_dropout import MLMCDropoutError, estimate


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", "100"),
        ("budget", True),
        ("budget", float("nan")),
        ("tolerance", "x"),
        ("tolerance", 0),
        ("tolerance_variance", -1.0),
        ("quantile", 0),
        ("quantile", "all"),
        ("chunk", 0),
        ("chunk", -1),
        ("chunk", 2.5),
    ],
)
def test_refused_with_the_value(name, value):
    class Silent(nn.Module):
        def forward(self, x):
            raise AssertionError("the model was called")

    arguments = {"budget": 100, name: value}
    with pytest.raises(MLMCDropoutError, match=name) as error:
        estimate(Silent(), torch.zeros(2, 1), **arguments)
    assert repr(value) in str(error.value)
