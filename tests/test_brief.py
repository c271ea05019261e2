"""What a prompt shows of values with large arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.brief import brief


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        (0.1 + 0.2, "0.3"),
        (np.array([1, 2]), "[1, 2]"),
        (np.array([True, False]), "[ True, False]"),
        (np.array([0.0, np.nan, 1.0, 2.0, 3.0]), "<5 numbers from 0 to 3, 1 not finite>"),
        (np.full(9, np.nan), "<9 numbers, none of them finite>"),
        (np.zeros((0, 3)), "[]"),
        ((np.zeros(2),), "([0., 0.],)"),
        (np.array(["a"] * 9), "<9 values of type <U1>"),
    ],
)
def test_values_in_a_few_words(value, words):
    assert brief(value) == words


def test_estimates_and_levels_of_many_inputs_take_one_line():
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3))
    result = md.estimate(model, torch.linspace(0, 1, 300)[:, None], outputs="logits", budget=100)
    for value in (result["label"], result["entropy"], *result.levels):
        assert "\n" not in repr(value) and len(repr(value)) < 1000
    assert "confidence=<300 numbers from" in repr(result["label"])
    assert "stderr" not in repr(result["label"])  # labels have none
