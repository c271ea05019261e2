"""Decisions and averages on the screen: the question, the answers, how many are open; one line per class of pixels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.cli.averages import Averages
from mlmc_dropout.cli.decisions import decision_report
from mlmc_dropout.cli.quantities import quantity_tables
from mlmc_dropout.cli.running import overview
from mlmc_dropout.report import write_result_page

NAMES = ("cat", "dog", "bird")
X = np.random.default_rng(0).normal(size=(30, 4))


def net(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, outputs)).eval()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").replace(".", " ").split() if word.isdigit()]


def test_labels_are_counted_by_class():
    result = md.estimate(net(3), X, outputs="logits", decision="label", budget=200)
    table, (said,) = decision_report(result, {"decision": "label", "confidence": 0.99}, NAMES)
    assert table is not None and table.caption == "Which class has the largest mean probability?"
    assert list(table.columns) == ["predicted class", "inputs", "of these open"]
    counts = np.bincount(result["decision"].value, minlength=3)
    assert [(row[0], int(row[1])) for row in table.rows] == list(zip(NAMES, counts, strict=True))
    open_ones = np.flatnonzero(~result["decision"].settled)
    assert sum(int(row[2]) for row in table.rows) == len(open_ones)
    assert f"{len(open_ones)} of 30 decisions" in said and "at 99 % confidence" in said
    named, _, others = said.partition("input")[2].partition(" and ")
    first = numbers(named)
    assert first == open_ones[: len(first)].tolist()
    assert numbers(others) == [len(open_ones) - len(first)] * (len(first) < len(open_ones))
    assert np.ptp(result.passes) > 0 and "passes per input on average" in overview(result, NAMES).caption


def test_sides_of_a_threshold_are_counted():
    result = md.estimate(net(1), X, decision=md.Above(0.1), budget=200)
    table, _ = decision_report(result, {"decision": "above:0.1"})
    above = result["decision"].value
    assert table is not None and table.caption == "Is the mean above 0.1?"
    assert [row[:2] for row in table.rows] == [("yes", str(above.sum())), ("no", str((~above).sum()))]
    several = md.estimate(net(3), X, outputs="logits", decision=md.Above(0.5), budget=200)
    table, _ = decision_report(several, {"decision": "above:0.5"}, NAMES)
    assert table is not None and table.caption == "Is the mean probability above 0.5?"  # as on the page
    assert [(row[0], int(row[1])) for row in table.rows] == [
        (name, int(several["decision"].value[:, i].sum())) for i, name in enumerate(NAMES)
    ]


def test_the_inputs_chosen_are_listed_largest_first():
    result = md.estimate(net(3), X, outputs="logits", decision=md.TopK(4, by="entropy"), budget=200)
    table, (question, answer, _) = decision_report(result, {"decision": "top:4:entropy"})
    assert table is None and question == "Which 4 of the 30 inputs have the largest entropy?"
    chosen = np.flatnonzero(result["decision"].value)
    expected = chosen[np.argsort(-result["entropy"].value[chosen], kind="stable")]
    assert numbers(answer) == expected.tolist() and "the largest first" in answer


def test_the_command_prints_them(call, folder: Path):
    command = ("estimate", "--model", "net.py:make", "--weights", "w.pt", "--inputs", "x.npy", "--outputs", "logits")
    called = call(*command, "--decision", "top:2:entropy", "--budget", 100, "--out", "run")
    assert called.code in (0, 1), called.err
    assert "Which 2 of the 7 inputs have the largest entropy?" in called.out
    called = call(*command, "--decision", "label", "--budget", 100, "--out", "run", "--overwrite", "--json")
    assert json.loads(called.out)["status"] in ("DECIDED", "UNSETTLED")


# ------------------------------------------------------------------------------------ averages


@pytest.fixture(scope="module")
def images() -> md.Result:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(4, 3, 1))
        x = torch.randn(5, 1, 4, 6)
    return md.estimate(model, x, outputs="logits", class_axis=1, budget=40, quantities=("entropy", "quantile_0.5"))


def test_pixels_are_averaged_one_line_per_class(images: md.Result):
    table = overview(images, NAMES)
    assert [row[0] for row in table.rows] == list(NAMES)
    assert [float(row[1]) for row in table.rows] == pytest.approx(images.mean.mean(axis=(0, 1, 2)), rel=1e-3)
    assert "5 inputs and 24 pixels of each" in table.caption and table.columns[2] == "± per pixel"


def test_standard_errors_are_said_to_be_those_of_one_input():
    result = md.estimate(net(2), X, budget=40, method="pooled")
    assert overview(result).columns == ("output", "mean", "± per input", "variance", "± per input")
    single = md.estimate(net(2), X[:1], budget=40, method="pooled")
    assert overview(single).columns[2] == "± stderr" and "1 input," in overview(single).caption
    assert Averages.of(result).over == "30 inputs"


def test_channels_of_images_are_averaged_over_pixels():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(4, 2, 1))
        result = md.estimate(model, torch.randn(3, 1, 8, 9), budget=20, method="pooled")
    table = overview(result)
    assert [row[0] for row in table.rows] == ["channel 0", "channel 1"] and "72 pixels of each" in table.caption
    assert [float(row[1]) for row in table.rows] == pytest.approx(result.mean.mean(axis=(0, 2, 3)), rel=1e-3, abs=1e-9)


def test_what_a_table_leaves_out_is_counted_and_can_be_found():
    result = md.estimate(net(50), X, budget=20, method="pooled")
    rows = overview(result).rows
    assert len(rows) == 21 and rows[-1][0] == "… 30 more in result.csv"
    assert len(overview(md.estimate(net(20), X, budget=20, method="pooled")).rows) == 20


@pytest.mark.parametrize(("outputs", "names"), [(3, ["class 0", "class 1", "class 2"]), (1, ["yes"])])
def test_classes_without_names_have_one_form(outputs, names, tmp_path):
    kind = "logits" if outputs > 1 else "binary-logits"
    result = md.estimate(net(outputs), X, outputs=kind, budget=20, method="pooled")
    assert [row[0] for row in overview(result).rows] == names
    page = write_result_page(result, tmp_path / "page.html", X).read_text(encoding="utf-8")
    assert any(f">{name}<" in page for name in names)
    assert {row[1] for row in next(iter(quantity_tables(result)))[0].rows} <= {*names, "no"}
