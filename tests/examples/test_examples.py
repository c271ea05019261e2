"""The examples run, and show what they say they show."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "examples"


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_spread_grows_away_from_the_training_data(capsys):
    pytest.importorskip("sklearn")
    found = _example("regression_ood").main()
    assert found["far out"] > 1.2 * found["trained on"]
    assert "median spread" in capsys.readouterr().out


def test_rejecting_uncertain_digits_lowers_the_error(capsys):
    pytest.importorskip("sklearn")
    curve = dict(_example("digits_rejection").main())
    assert curve[0.3] < 0.5 * curve[0.0]


def test_most_labels_are_settled_at_once(capsys):
    pytest.importorskip("sklearn")
    curve = _example("label_or_abstain").main(cap=300).curve
    assert curve[0.2] < 0.5 * curve[0.0]
    assert "labels are settled" in capsys.readouterr().out


def test_labels_are_chosen_with_few_passes(capsys):
    pytest.importorskip("sklearn")
    (only,) = _example("label_next").main(rounds=1, compare=False)
    assert only.passes < 0.5 * 1000


@pytest.mark.filterwarnings("default::mlmc_dropout.FallbackWarning")
def test_forecasts_with_an_lstm(capsys):
    found = _example("lstm_series").main()
    assert found["largest standard error of a forecast"] < found["median spread of a pass"]
    assert found["root mean square error"] < 0.5


def test_every_example_is_tested():
    source = Path(__file__).read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        assert f'_example("{path.stem}")' in source, path
