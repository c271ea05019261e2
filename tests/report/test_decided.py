"""Decisions on the page: the question, the answers, what is open and why, and what settling it would cost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.report import write_page
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.decided import Question, open_items, question
from mlmc_dropout.report.folder import Folder, write_folder
from mlmc_dropout.report.predictions import predictions

pytest.importorskip("jinja2")
NAMES = ["cat", "dog", "fish"]
X = np.random.default_rng(0).normal(size=(30, 3))


def net(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, outputs)).eval()


def page(path: Path, result: md.Result, decision: str, names: list[str] | None = None) -> str:
    asked = {"decision": decision, "confidence": 0.99, "budget": 200.0, "method": "auto"}
    write_folder(path, result, {"asked": asked, "seconds": 1.0}, PageData.of(class_names=names or ()))
    return write_page(path).read_text(encoding="utf-8")


def section(text: str, anchor: str) -> str:
    return re.search(rf'<section id="{anchor}".*?</section>', text, re.S)[0]


def rows(text: str, caption: str) -> list[list[str]]:
    table = re.search(rf"<caption>{re.escape(caption)}</caption>.*?</table>", text, re.S)[0]
    found = re.findall(r'<tr role="row">(.*?)</tr>', table, re.S)[1:]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in found]


def with_decision(result: md.Result, value: Any = None, settled: Any = None) -> md.Result:
    """The same result, decided otherwise."""
    old = result["decision"]
    new = replace(old, value=old.value if value is None else value, settled=old.settled if settled is None else settled)
    return replace(result, quantities={**result.quantities, "decision": new})


@pytest.fixture(scope="module")
def labels() -> md.Result:
    return md.estimate(net(3), X, outputs="logits", decision="label", budget=200, method="pooled")


@pytest.fixture(scope="module")
def top() -> md.Result:
    return md.estimate(net(3), X, outputs="logits", decision=md.TopK(4, by="entropy"), budget=200, method="pooled")


@pytest.fixture(scope="module")
def above() -> md.Result:
    return md.estimate(net(1), X, decision=md.Above(0.1), budget=200, method="pooled")


def test_labels_are_counted_by_class(labels, tmp_path):
    settled = np.ones(30, dtype=bool)
    settled[[4, 9]] = False
    text = page(tmp_path, with_decision(labels, settled=settled), "label", NAMES)
    decided = section(text, "decisions")
    assert "Which class has the largest mean probability?" in decided and "2 of 30 decisions are open" in decided
    counts = np.bincount(labels["decision"].value, minlength=3)
    assert [row[:2] for row in rows(decided, "The answers")] == [[NAMES[c], str(counts[c])] for c in range(3)]
    assert sum(int(row[2]) for row in rows(decided, "The answers")) == 2
    opened = rows(decided, "Not settled")
    assert [row[0] for row in opened] == ["input\u00a04", "input\u00a09"]
    assert all(re.match(r"too close: \w+ [\d.]+.*against \w+ [\d.]+", row[2]) for row in opened)


def test_the_chosen_inputs_are_listed_largest_first(top, tmp_path):
    decided = section(page(tmp_path, top, "top:4:entropy"), "decisions")
    assert "Which 4 of the 30 inputs have the largest entropy?" in decided
    entropy = top["entropy"].value
    best = [f"input {i}" for i in np.argsort(-entropy)[:4]]
    assert [row[0] for row in rows(decided, "The answer: the 4 inputs chosen")] == best
    settled = top["decision"].settled
    assert not settled.all() and len(rows(decided, "Not settled")) == min(int((~settled).sum()), 20)


def test_yes_and_no_are_counted(above, tmp_path):
    value = above["decision"].value
    settled = np.ones(30, dtype=bool)
    closest = int(np.argmin(np.abs(above.mean[:, 0] - 0.1)))
    settled[closest] = False
    decided = section(page(tmp_path, with_decision(above, settled=settled), "above:0.1"), "decisions")
    assert "Is the mean above 0.1?" in decided
    answers = rows(decided, "The answers")
    assert [row[1] for row in answers] == [str(int(value.sum())), str(int((~value).sum()))]
    (opened,) = rows(decided, "Not settled")
    assert opened[0] == f"input {closest}" and "standard errors from 0.1" in opened[3]


def test_what_is_clear_lacks_passes(above, tmp_path):
    settled = np.ones(30, dtype=bool)
    farthest = int(np.argmax(np.abs(above.mean[:, 0] - 0.1) / above.mean_stderr[:, 0]))
    settled[farthest] = False
    decided = section(page(tmp_path, with_decision(above, settled=settled), "above:0.1"), "decisions")
    assert "too few passes" in rows(decided, "Not settled")[0][3] and "too close" not in decided


def test_several_outputs_have_an_answer_each(tmp_path):
    result = md.estimate(net(3), X, outputs="logits", decision=md.Above(0.3), budget=100, method="pooled")
    decided = section(page(tmp_path, result, "above:0.3", NAMES), "decisions")
    assert "Is the mean probability above 0.3?" in decided
    counts = result["decision"].value.sum(axis=0)
    found = rows(decided, "The answers: inputs for each class")
    assert [row[:2] for row in found] == [[NAMES[c], str(counts[c])] for c in range(3)]


def test_what_next_is_about_settling(labels, above, tmp_path):
    settled = np.ones(30, dtype=bool)
    settled[:3] = False
    text = section(page(tmp_path, with_decision(labels, settled=settled), "label"), "next")
    assert "Decisions are open for 3 of 30 inputs" in text and "Half the largest error" not in text
    assert "method auto can draw" not in text
    done = section(page(tmp_path, with_decision(above, settled=np.ones(30, dtype=bool)), "above:0.1"), "next")
    assert "Every decision is settled" in done and "Half" not in done


def test_passes_follow_the_distance_and_not_the_scatter(above, tmp_path):
    assert np.ptp(above.passes) > 0
    effort = section(page(tmp_path, above, "above:0.1"), "effort")
    assert "one whose mean is far from 0.1 needs fewer" in effort and "scatter" not in effort


def told(result: md.Result, **decision: str) -> Question | None:
    """The question that a page reads from a result with this record of it."""
    facts = {name: value for name, value in result.metadata.items() if name != "decision"}
    return question(Folder(Path(), replace(result, metadata={**facts, **decision}), {}, PageData()))


def test_results_know_their_question(above):
    found = question(Folder(Path(), above, {}, PageData()))
    assert (found.kind, found.threshold) == ("above", 0.1)
    top = md.estimate(net(3), X, outputs="logits", decision=md.TopK(4, by="entropy"), confidence=0.9, budget=100)
    assert top.metadata["decision"] == "top:4:entropy"


def test_without_a_record_of_the_question_nothing_is_made_up(above):
    assert told(above).kind == "choice"
    assert told(above, decision="above:x").kind == "choice"
    asked = told(above, decision="top:7")
    assert (asked.kind, asked.k, asked.by) == ("top", 7, "mutual_information")


def test_marks_in_charts_are_those_of_the_decisions(labels):
    settled = np.ones(30, dtype=bool)
    settled[[2, 8]] = False
    result = with_decision(labels, settled=settled)
    found = predictions(result)
    assert found is not None
    assert open_items(Folder(Path(), result, {}, PageData()), found).tolist() == [2, 8]


def test_auto_is_recommended_for_small_budgets_only(tmp_path):
    result = md.estimate(net(1), X, budget=20, method="auto")
    pooled = replace(result, method="pooled", metadata={**result.metadata, "asked": "auto"})
    for budget, shown in ((20.0, True), (500.0, False)):
        write_folder(tmp_path, pooled, {"asked": {"budget": budget, "method": "auto"}})
        assert ("method auto can draw" in write_page(tmp_path).read_text(encoding="utf-8")) == shown
