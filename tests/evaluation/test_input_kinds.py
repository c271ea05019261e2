"""The inputs that people have, given to ``evaluate``: understood as by ``estimate``, or refused by name."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest

import mlmc_dropout as md
from tests.sampling.test_input_table import LABELS, NET, REFUSED, UNDERSTOOD, X

SETTINGS: dict[str, Any] = {"metrics": ("entropy",), "budget": 32}
LABELLED = ("list of batches with labels", "loader of pairs", "loader of float64", "dataset of pairs", "TensorDataset")


def evaluated(model: Any, x: Any, **options: Any) -> md.Evaluation:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        x = x() if isinstance(x, types.FunctionType) else x
        return md.evaluate(model, x, **{**SETTINGS, **options})


@pytest.mark.parametrize("name", [name for name in UNDERSTOOD if name not in (*LABELLED, "Subset")])
def test_understood(name: str) -> None:
    found, once = evaluated(NET, UNDERSTOOD[name]), name == "generator of float64 arrays"
    expected = evaluated(NET, iter([X]) if once else X)
    assert found["entropy"].value == pytest.approx(expected["entropy"].value, rel=1e-5)


@pytest.mark.parametrize("name", [*LABELLED, "Subset"])
def test_labels_of_samples_are_read(name: str) -> None:
    """They run from 0 to 5, and the network has two classes."""
    with pytest.raises(md.InputError, match=r"class numbers from 0 to 1: got [2-5]"):
        evaluated(NET, UNDERSTOOD[name])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    model, x, options, _ = REFUSED[name]
    with pytest.raises(md.MLMCDropoutError):
        evaluated(model, x, **options)


@pytest.mark.parametrize("y", [LABELS % 2, (LABELS % 2).numpy(), (LABELS % 2).tolist()])
def test_labels_of_one_column(y: Any) -> None:
    """A number per input is enough where a network has one output column."""
    net = md.evaluate
    one = lambda out: out[:, :1]  # noqa: E731
    flat, column = (
        net(NET, X, labels, outputs="values", transform=one, metrics=("rmse",), budget=64)["rmse"].value
        for labels in (y, [[value] for value in (LABELS % 2).tolist()])
    )
    assert flat == column


def test_class_numbers_that_were_stored_as_floats() -> None:
    whole, floats = (
        md.evaluate(NET, X, y, metrics=("accuracy", "nll"), budget=64) for y in (LABELS % 2, (LABELS % 2).double())
    )
    assert [whole[name].value for name in ("accuracy", "nll")] == [floats[name].value for name in ("accuracy", "nll")]


def test_labels_of_values_are_no_class_numbers() -> None:
    with pytest.raises(md.InputError, match="class numbers from 0 to 1, and these are no whole numbers"):
        md.evaluate(NET, X, LABELS % 2 + 0.5, metrics=("nll",), budget=64)
