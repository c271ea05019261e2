"""The page of an evaluation: names for people, and sentences that the levels bear out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.evaluation.result import Evaluation
from mlmc_dropout.report import write_page
from mlmc_dropout.report.evaluation import write_evaluation_folder

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def found() -> Evaluation:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3)).eval()
    draw = np.random.default_rng(0)
    return md.evaluate(model, draw.normal(size=(80, 3)), draw.integers(0, 3, 80), outputs="logits", budget=40)


def page(path: Path, found: Evaluation) -> str:
    asked = {"relative": "True", "budget": "40.0", "labels": "y.npy"}
    write_evaluation_folder(path, found, {"asked": asked})
    return write_page(path).read_text(encoding="utf-8")


def test_accuracy_has_the_first_card_and_metrics_have_names(found, tmp_path):
    text = page(tmp_path, found)
    cards = re.findall(r'<span class="label">(.*?)</span> <strong>(.*?)</strong>', text)
    assert cards[0] == ("Accuracy", f"{100 * found['accuracy'].value:.3g}\xa0%") and len(cards) == 4
    assert cards[1][0] == "Negative log-likelihood"
    for name in ("Expected calibration error", "Brier score", "Expected entropy", "Mutual information"):
        assert f'role="rowheader">{name}</th>' in text
    assert not re.search(r">(nll|ece|brier|expected_entropy|mutual_information)<", text)


def test_settings_are_readable(found, tmp_path):
    text = page(tmp_path, found)
    assert "<dt>Relative</dt><dd>yes</dd>" in text and "<dt>Budget</dt><dd>40</dd>" in text
    assert "<dt>True labels</dt><dd>y.npy</dd>" in text


def test_rates_are_explained(found, tmp_path):
    text = page(tmp_path, found)
    assert "α says how fast the bias" in text and "β says how fast the variance" in text


def test_few_and_many_passes_only_where_levels_say_so(found, tmp_path):
    first, *others = found.levels
    ladder = [replace(first, used="value"), *(replace(level, used="difference") for level in others)]
    single = [replace(first, used="value and difference"), *(replace(level, used="pilot") for level in others)]
    several = page(tmp_path / "a", replace(found, method="mlmc", levels=tuple(ladder)))
    one = page(tmp_path / "b", replace(found, method="mlmc", levels=tuple(single)))
    assert len(others) > 0 and "some get many" in several and "some get many" not in one
    assert f"Every input that is used gets {first.fidelity} passes" in one


def test_notes_and_the_command_are_those_of_the_shell(found, tmp_path):
    told = {"notes": ["to leave it out, give --metrics nll,brier."], "command": "mlmc-dropout evaluate --seed 3 -q"}
    write_evaluation_folder(tmp_path, replace(found, notes=("give metrics=('nll', 'brier').",)), told)
    text = write_page(tmp_path).read_text(encoding="utf-8")
    assert "give --metrics nll,brier." in text and "metrics=(" not in text
    assert "mlmc-dropout evaluate \\\n    --seed 3 \\\n    -q" in text  # no option is broken in two


def test_numbers_have_a_true_minus_sign(found, tmp_path):
    one = found["nll"]
    steep = replace(one, rates={**one.rates, "alpha": replace(one.rates["alpha"], value=-0.5, stderr=0.1)})
    text = page(tmp_path, replace(found, estimates={**found.estimates, "nll": steep}))
    assert "−0.50\xa0±\xa0" in text and ">-0.50" not in text
