"""The page: numbers come from the result, everything is inside the file, hostile names stay text."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout import theory
from mlmc_dropout.errors import InputError, RunDirectoryError
from mlmc_dropout.report import write_page, write_result_page
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.folder import write_folder
from mlmc_dropout.report.formats import ratio, short
from mlmc_dropout.report.numbers import compare
from mlmc_dropout.result.text import TO_TOLERANCE

pytest.importorskip("jinja2")

ALWAYS = ["found", "next", "bands", "asked", "again"]
SECTIONS = {  # those that apply, in order
    "pooled": ALWAYS,
    "mlmc": ["found", "next", "bands", "cost", "levels", "allocation", "notes", "asked", "again"],
    "stratified": ["found", "next", "bands", "cost", "notes", "asked", "again"],
    "control-variate": ["found", "next", "bands", "cost", "notes", "asked", "again"],
}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 2)).eval()


def _page(path: Path, result: md.Result, x=None, **info) -> str:
    write_folder(path, result, {"title": "A model", "command": "mlmc-dropout estimate …", "seconds": 1.0, **info}, x)
    return write_page(path).read_text(encoding="utf-8")


class _Outline(HTMLParser):
    """Headings, anchors, and whatever would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.ids += [attributes["id"]] if attributes.get("id") else []
        for name in ("src", "href"):
            if attributes.get(name) and not attributes[name].startswith(("#", "data:")):
                self.fetched.append(attributes[name])


def test_inputs_with_different_passes_get_a_section(model, tmp_path):
    x = np.linspace(0, 1, 9)[:, None]
    whole = md.estimate(model, 30 * x**3, method="pooled", tolerance=0.0015)
    result = md.estimate(model, 30 * x**3, method="pooled", tolerance=0.0015, budget=0.7 * whole.cost)
    text = _page(tmp_path, result, x, asked={"tolerance": 0.0015, "budget": 0.7 * whole.cost})
    assert "Passes of each input" in text and "passes on average for each of 9 inputs" in text
    unmet = int((result.mean_stderr > 0.0015).any(axis=1).sum())
    assert 0 < unmet < 9 and f"{unmet} of 9 inputs have not met the tolerance" in text


@pytest.mark.parametrize("method", SECTIONS)
def test_every_method_gets_the_sections_that_apply(method, model, tmp_path):
    result = md.estimate(model, np.linspace(0, 1, 9)[:, None], method=method, budget=3000)
    outline = _Outline(_page(tmp_path, result, np.linspace(0, 1, 9)[:, None]))
    anchors = [anchor for anchor in outline.ids if f"{anchor}-title" in outline.ids]
    assert [anchor for anchor in anchors if anchor != "warnings"] == SECTIONS[method]
    assert outline.headings[0] == 1 and set(outline.headings[1:]) == {2}
    assert len(set(outline.ids)) == len(outline.ids)
    assert outline.fetched == [] and "script" not in outline.tags


def test_bands_for_one_dimensional_inputs_and_ranks_for_others(model, tmp_path):
    x = np.linspace(0, 1, 9)[:, None]
    result = md.estimate(model, x, method="pooled", budget=200)
    assert "Prediction and spread" in _page(tmp_path / "a", result, x)
    ranked = _page(tmp_path / "b", result)
    assert "Uncertainty, sorted" in ranked
    most = int(np.argmax(result.variance.mean(axis=1)))
    assert f'<th scope="row" role="rowheader">input {most}</th>' in ranked


def test_passes_of_plain_averaging_are_those_of_the_result(model):
    x = torch.linspace(0, 1, 9)[:, None]
    assert compare(md.estimate(model, x, method="pooled", budget=500)).gain_mean == 1
    nested = md.estimate(model, x, method="mlmc", ladder=(4, 8, 16), counts=(103, 73, 37))
    comparison = compare(nested)
    assert (comparison.plain_mean, comparison.plain_variance) == nested.plain_passes
    assert 0.2 < comparison.gain_mean < 0.9  # theory says 1/2.19; a quarter to double that is noise here


@pytest.mark.parametrize(
    ("levels", "cost_model", "statement"),
    [
        ("nested", "coupled", "Nested levels share passes, so S² overstates."),
        ("independent", "uncoupled", "Independent levels share no passes, so this is the squared error."),
    ],
)
def test_allocation_and_S2_are_explained_for_the_levels_that_were_run(levels, cost_model, statement, model, tmp_path):
    x = np.linspace(0, 1, 5)[:, None]
    result = md.estimate(model, x, method="mlmc", ladder=(4, 8, 16), counts=(103, 73, 37), levels=levels)
    text = _page(tmp_path, result, x)
    assert f"Optima for the {cost_model} cost" in text and statement in text
    assert ("overstates" in text) == (levels == "nested")
    cost = theory.cost_per_replicate((4, 8, 16), cost_model)
    budget = float(cost @ np.array([103, 73, 37]))
    best = theory.optimal_counts(theory.level_variances_mean((4, 8, 16)), cost, budget)
    for used, optimum in zip((103, 73, 37), best, strict=True):
        row = (
            rf'data-label="Used">{used}</td><td role="cell" data-label="Optimum for the mean">{short(optimum, 4)}</td>'
        )
        assert row in text


def test_warnings_are_words(model, tmp_path):
    x = np.linspace(0, 1, 5)[:, None]
    short_of = md.estimate(model, x, method="pooled", tolerance=1e-9, budget=100)
    assert md.Status.BUDGET_EXHAUSTED.value in _page(tmp_path / "a", short_of, x)
    fine = md.estimate(model, x, method="pooled", budget=3000)
    assert 'id="warnings"' not in _page(tmp_path / "b", fine, x)
    assert "took the slow road" in _page(tmp_path / "c", fine, x, warnings=["took the slow road"])


def test_notes_are_no_warnings(model, tmp_path):
    x = np.linspace(0, 1, 5)[:, None]
    text = _page(tmp_path, md.estimate(model, x, method="auto", budget=3000), x)
    notes = text[text.index('id="notes"') : text.index('id="asked"')]
    assert "auto chose" in notes and "Warning" not in notes


def test_counts_are_exact_integers(model, tmp_path):
    x = np.linspace(0, 1, 5)[:, None]
    text = _page(tmp_path, md.estimate(model, x, method="pooled", budget=1024), x)
    assert "1024 passes for each of 5 inputs" in text and "1020" not in text
    assert "4096 passes per input" in text  # what next: half the error


def test_one_gain_everywhere(model, tmp_path):
    x = np.linspace(0, 1, 9)[:, None]
    result = md.estimate(model, x, method="mlmc", budget=1000)
    comparison, text = compare(result), _page(tmp_path, result, x)
    assert f"<strong>{ratio(comparison.gain_mean)}</strong>" in text
    assert f"with {short(comparison.plain_mean)} passes per input instead of 1000" in text
    assert f"as good as {comparison.plain_mean:.3g} passes" in str(result)
    for method in ("stratified", "control-variate", "auto"):
        assert not any("times" in note for note in md.estimate(model, x, method=method, budget=400).notes)


def test_a_missed_tolerance_says_what_would_meet_it(model, tmp_path):
    x = np.linspace(0, 1, 5)[:, None]
    result = md.estimate(model, x, method="pooled", tolerance=1e-3, budget=400)
    text = _page(tmp_path, result, x, asked={"tolerance": 1e-3, "quantile": 1.0})
    (note,) = [note for note in result.notes if TO_TOLERANCE in note]
    assert text.count(TO_TOLERANCE) == 1 and note in text[text.index('id="next"') : text.index('id="bands"')]


def test_a_policy_allows_nothing_but_the_style_and_pictures_inside(model, tmp_path):
    text = _page(tmp_path, md.estimate(model, np.zeros((3, 1)), method="pooled", budget=64))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1].replace("&#39;", "'")
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'") and f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy and 'style="' not in text


def test_the_hash_of_the_weights_is_shown(model, tmp_path):
    text = _page(tmp_path, md.estimate(model, np.zeros((3, 1)), method="pooled", budget=64), weights="abc123")
    assert "<dt>Hash of the weights</dt><dd>abc123</dd>" in text


def test_a_command_has_a_line_for_each_option_and_can_be_pasted(model, tmp_path):
    command = "mlmc-dropout estimate --model net.py:make --inputs 'my data.npy' --relative"
    result = md.estimate(model, np.zeros((3, 1)), method="pooled", budget=64)
    shown = html.unescape(re.search(r"<code>(.*?)</code>", _page(tmp_path, result, command=command), re.S)[1])
    assert shown.splitlines()[1] == "    --model net.py:make \\" and len(shown.splitlines()) == 4
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(command)


def test_what_was_asked_names_the_method_that_auto_chose(model, tmp_path):
    text = _page(tmp_path, md.estimate(model, np.zeros((3, 1)), budget=64))
    assert re.search(r"<dt>Method</dt><dd>auto, which chose [a-z-]+: ", text) and "Method asked for" not in text


def test_settings_have_names_and_stand_once(model, tmp_path):
    x = np.linspace(0, 1, 5)[:, None]
    result = md.estimate(model, x, method="control-variate", budget=300)
    text = _page(tmp_path / "a", result, x, asked={"labels": "y.npy", "relative": True})
    for name in ("Passes of a design", "True labels"):
        assert f"<dt>{name}</dt>" in text
    assert "Masks at which gradients were taken" not in text  # none were
    assert "<dt>Relative</dt><dd>yes</dd>" in text and "<dt>Design</dt>" not in text
    classes = md.estimate(model, x, method="pooled", budget=64, outputs="logits")
    for asked in ({}, {"outputs": "logits"}):
        assert _page(tmp_path / "b", classes, x, asked=asked).count("<dt>Outputs</dt>") == 1


def test_hostile_titles_and_settings_stay_text(model, tmp_path):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    result = md.estimate(model, np.zeros((3, 1)), method="pooled", budget=64)
    text = _page(tmp_path, result, None, asked={"model": evil, evil: evil}, warnings=[evil], **{"title": evil})
    outline = _Outline(text)
    assert "script" not in outline.tags and "img" not in outline.tags


def test_a_result_in_memory_gets_a_page_too(model, tmp_path):
    x = torch.linspace(0, 1, 9)[:, None]
    page = write_result_page(md.estimate(model, x, budget=300), tmp_path / "page.html", x, title="From memory")
    assert "<h1>From memory</h1>" in page.read_text(encoding="utf-8")


def test_single_inputs_constant_inputs_and_many_outputs_do_not_break_the_page(tmp_path):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        wide = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 12)).eval()
    for name, x in (
        ("one", np.zeros((1, 3))),
        ("same", np.ones((4, 3))),
        ("abbreviate", np.random.default_rng(0).random((30, 3))),
    ):
        assert "<h1>" in _page(tmp_path / name, md.estimate(wide, x, method="pooled", budget=64), x)


@pytest.fixture
def reproduction(tmp_path: Path) -> Path:
    """Experiments as the contract has them."""
    for name in ("F2", "F4"):
        folder = tmp_path / "out" / name
        folder.mkdir(parents=True)
        (folder / "figure.png").write_bytes(PIXEL)
        verdict = {
            "id": name,
            "title": "Slopes",
            "claim": "Variances fall with slope −1.",
            "paper": [{"quantity": "slope", "value": -1.0, "low": -1.1, "high": -0.9}],
            "ours": [
                {"quantity": "slope", "value": -1.01, "low": -1.03, "high": -0.99},
                {"quantity": "R²", "value": 0.99},
            ],
            "verdict": "confirmed",
            "reason": "The interval holds −1.",
            "tables": [{"caption": "Fits", "columns": ["norm", "slope"], "rows": [["Y", -1.0], ["V", None]]}],
            "settings": {"T": [10, 100], "M": 10},
            "seconds": 12.3,
        }
        (folder / "verdict.json").write_text(json.dumps(verdict))
    summary = {
        "ids": ["F2", "F4"],
        "profile": "quick",
        "command": "mlmc-dropout reproduce F2 F4",
        "versions": {"torch": "2"},
    }
    (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
    return tmp_path / "out"


def test_a_reproduction_is_recognised_by_its_content(reproduction):
    text = write_page(reproduction).read_text(encoding="utf-8")
    outline = _Outline(text)
    assert {"overview", "experiment-f2", "experiment-f4", "again"} <= set(outline.ids)
    assert "−1 (−1.1 to −0.9)" in text and "mlmc-dropout reproduce F2 F4" in text
    assert outline.fetched == []


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="neither an estimate"):
        write_page(tmp_path)
    (tmp_path / "run.json").write_text("[")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        write_page(tmp_path)


def test_where_the_passes_tell_too_little_no_worth_is_stated(model, tmp_path):
    x = np.linspace(0, 1, 9)[:, None]
    result = md.estimate(model, x, method="control-variate", budget=10)
    text = _page(tmp_path, result, x)
    assert compare(result).unknown
    assert "not known: the passes tell too little" in text and "too rare events" in text
    assert "exact up to rounding" not in text
    half = dataclasses.replace(result, plain_passes=(200.0, float("nan")))
    text = _page(tmp_path / "half", half, x)
    assert "not known for the variance" in text and "for the variance an unknown number of passes (not known)" in text
    assert "as good as 200 passes of plain Monte Carlo for the mean; for the variance" in str(half)


def test_files_keep_the_passes_of_plain_averaging(model, tmp_path):
    x = np.linspace(0, 1, 9)[:, None]
    for budget in (10, 300):
        result = md.estimate(model, x, method="control-variate", budget=budget)
        again = md.load_result(result.save(tmp_path / f"{budget}.npz"))
        np.testing.assert_equal(again.plain_passes, result.plain_passes)


@pytest.mark.parametrize("width", [1, 40])
def test_inputs_of_another_number_are_refused_shown_or_not(model, tmp_path, width):
    result = md.estimate(model, np.linspace(0, 1, 9)[:, None], method="pooled", budget=50)
    with pytest.raises(InputError, match="there are 7 inputs for 9 results"):
        write_result_page(result, tmp_path / "page.html", np.zeros((7, width)))


def test_inputs_of_another_number_are_refused_when_they_were_kept_in_a_file(model, tmp_path):
    result = md.estimate(model, np.linspace(0, 1, 9)[:, None], method="pooled", budget=50)
    PageData.of(np.zeros((7, 1))).save(tmp_path / "page.npz")
    with pytest.raises(InputError, match="there are 7 inputs for 9 results"):
        PageData.load(tmp_path / "page.npz").check(result)
