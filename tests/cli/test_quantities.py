"""Quantities from the shell: options, the table of the most uncertain inputs, JSON, and the files of a run."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.cli.quantities import quantity_summary, quantity_tables
from mlmc_dropout.report.predictions import passes_to_settle, predictions

NAMES = ["a quiet night", "alarm", "earthquake"]
CLASSES = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
"""
ASK = ("estimate", "--model", "classes.py:make", "--inputs", "x.npy", "--budget", 60, "--method", "pooled")


@pytest.fixture
def classes(folder: Path) -> Path:
    (folder / "classes.py").write_text(CLASSES, encoding="utf-8")
    (folder / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_classes_by_name_in_table_files_and_page(call, classes):
    called = call(*ASK, "--outputs", "logits", "--class-names", "names.txt", "--out", "run")
    assert "± per input: the standard error of the numbers of one input, on average." in called.out
    assert called.code == 0, called.err
    assert "inputs, the most uncertain first" in called.out
    assert any(name in called.out.split("most uncertain")[1] for name in NAMES)
    assert max(map(len, called.out.split("Results are")[0].splitlines())) <= 110
    result = md.load_result(classes / "run" / "result.npz")
    table = rows_of(classes / "run" / "quantities.csv")
    assert [row["label_name"] for row in table] == [NAMES[i] for i in result["label"].value]
    np.testing.assert_array_equal([float(row["entropy"]) for row in table], result["entropy"].value)
    np.testing.assert_array_equal([float(row["label_confidence"]) for row in table], result["label"].confidence)
    components = rows_of(classes / "run" / "result.csv")
    assert [row["name"] for row in components[:3]] == NAMES and len(components) == 7 * 3
    np.testing.assert_array_equal([float(row["votes"]) for row in components], result["votes"].value.ravel())
    asked = json.loads((classes / "run" / "run.json").read_text(encoding="utf-8"))["asked"]
    assert asked["outputs"] == "logits" and asked["class_names"] == "names.txt"
    page = (classes / "run" / "report.html").read_text(encoding="utf-8")
    assert "How sure the predictions are" in page and NAMES[0] in page and "class 0" not in page


def test_named_quantities_only(call, classes):
    asked = "entropy,mutual_information,quantile_0.95,above_0.3"
    called = call(*ASK, "--outputs", "logits", "--quantities", asked, "--out", "run", "--json")
    assert called.code == 0, called.err
    printed = json.loads(called.out)
    assert set(printed["quantities"]) == set(asked.split(",")) and "labels" not in printed
    assert printed["most_uncertain"][0]["label"].startswith("class ")
    columns = set(rows_of(classes / "run" / "result.csv")[0])
    assert {"quantile_0.95", "quantile_0.95_stderr", "above_0.3", "entropy"} <= columns
    run = json.loads((classes / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["asked"]["quantities"] == asked.split(",")


def test_json_has_the_most_uncertain_inputs_in_order(call, classes):
    called = call(*ASK, "--outputs", "logits", "--class-names", "names.txt", "--out", "run", "--json")
    printed = json.loads(called.out)
    entropies = [one["entropy"] for one in printed["most_uncertain"]]
    assert entropies == sorted(entropies, reverse=True) and len(entropies) == 7
    assert printed["labels"]["count"] == 7 and 0 <= printed["labels"]["unsettled"] <= 7
    assert all(one["label"] in NAMES for one in printed["most_uncertain"])


def test_values_with_quantiles_and_without_classes(call, classes):
    called = call(*ASK, "--quantities", "std,quantile_0.5,above_0.1", "--out", "run")
    assert called.code == 0, called.err
    assert "quantile_0.5" in called.out and "most uncertain" not in called.out
    assert not (classes / "run" / "quantities.csv").exists()
    assert "Above 0.1" in (classes / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--outputs", "logit"), "unknown outputs 'logit'"),
        (("--outputs", "logits", "--quantities", "entropie"), "unknown quantity 'entropie'"),
        (("--quantities", "entropy"), "it is one of --outputs logits"),
        (("--quantities", ","), "--quantities takes names separated by commas"),
        (("--quantities", "quantile_high"), "quantile_ is followed by a number"),
        (("--quantities", "quantile_2"), "between 0 and 1"),
        (("--outputs", "logits", "--transform", "softmax"), "leave out --transform"),
    ],
)
def test_mistakes_are_refused_before_the_model_is_read(call, classes, options, words):
    called = call(*ASK[:2], "net.py:make", *ASK[3:], *options, "--out", "run")
    assert called.code == 2 and words in called.err, called.err
    assert not (classes / "executed").exists() and not (classes / "run").exists()


def test_names_that_do_not_fit_are_left_out_with_a_warning(call, classes):
    (classes / "few.txt").write_text("one\ntwo\n", encoding="utf-8")
    called = call(*ASK, "--outputs", "logits", "--class-names", "few.txt", "--out", "run")
    assert called.code == 0 and "2 class names for 3" in called.err


# ------------------------------------------------------------------------------- without files


def net(outputs: int, inputs: int = 4) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, outputs)).eval()


X = np.random.default_rng(0).normal(size=(30, 4))


@pytest.mark.parametrize("names", [[f"class {i}" for i in range(5)], ["Iris-versicolor-2"] * 5, ()])
def test_the_table_fits_a_terminal_of_80_columns(names, monkeypatch):
    result = md.estimate(net(5), X, outputs="logits", budget=60, method="pooled")
    ((table, sentence),) = quantity_tables(result, names)
    assert len(table.fitted(80)) == 1 and max(map(len, table.plain().splitlines())) <= 80
    assert "predicted classes" in sentence
    order = np.argsort(-result["entropy"].value)[:8]
    assert [int(row[0]) for row in table.rows] == order.tolist()


def test_a_terminal_shows_it_in_80_columns(monkeypatch, capsys):
    from mlmc_dropout.cli.console import Output

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    result = md.estimate(net(5), X, outputs="logits", budget=60, method="pooled")
    for table, _ in quantity_tables(result, [f"kind {i}" for i in range(5)]):
        Output().table(table)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert lines and max(map(len, lines)) <= 80 and any("kind" in line for line in lines)


def test_single_probabilities_have_two_classes():
    result = md.estimate(net(1), X, outputs="binary-logits", budget=60, method="pooled")
    found = predictions(result, ["healthy", "ill"])
    assert found is not None and found.p.shape == (30, 2)
    np.testing.assert_allclose(found.p[:, 1], result.mean[:, 0])
    np.testing.assert_array_equal(found.label, (result.mean[:, 0] > 0.5).astype(int))
    most = quantity_summary(result, ["healthy", "ill"])["most_uncertain"][0]
    assert most["label"] in ("healthy", "ill") and 0.5 <= most["probability"] < 1


def test_several_probabilities_are_items_of_their_own():
    result = md.estimate(net(3), X, outputs="binary-logits", budget=60, method="pooled")
    found = predictions(result, ["cat", "dog", "bird"])
    assert found is not None and len(found.label) == 90
    assert list(found.names) == ["no", "yes"] and list(found.where[:4]) == ["cat", "dog", "bird", "cat"]


def test_a_quantity_that_is_missing_says_what_to_ask_for():
    plain = md.estimate(net(3), X, budget=20, method="pooled")
    with pytest.raises(KeyError, match="quantities= and outputs= 'logits' or 'binary-logits' or 'probabilities'"):
        plain["entropy"]
    with pytest.raises(KeyError, match=r"ask for it with quantities=\W*$"):
        plain["quantile_0.5"]
    logits = md.estimate(net(3), X, budget=20, method="pooled", outputs="logits", quantities=("label",))
    with pytest.raises(KeyError, match=r"ask for it with quantities=\W*$"):
        logits["entropy"]
    asked = md.estimate(net(3), X, budget=20, method="pooled", outputs="logits", quantities=("entropy",))
    assert asked["entropy"].value.shape == (30,)


def test_passes_that_settle_a_label_follow_the_square_root():
    assert passes_to_settle(0.99, 50) == pytest.approx(50)
    assert passes_to_settle(0.5, 50) == float("inf")
    half = float(torch.distributions.Normal(0, 1).cdf(torch.tensor(2.3263 / 2)))
    assert passes_to_settle(half, 50) == pytest.approx(200, rel=1e-3)
