"""Sections about quantities: those that apply, names instead of numbers, bars to scale."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.errors import InputError
from mlmc_dropout.report import write_page, write_result_page
from mlmc_dropout.report.charts import class_bars, scatter_with_errors
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.folder import write_folder
from mlmc_dropout.report.formats import with_error
from mlmc_dropout.report.names import component_names
from mlmc_dropout.report.numbers import matrices
from mlmc_dropout.report.predictions import passes_to_settle, predictions
from mlmc_dropout.report.svg import WIDE, bars_with_errors
from mlmc_dropout.report.truth import judge

pytest.importorskip("jinja2")
NAMES = ["cat", "dog", "<b>bird</b>", "fish"]
X = np.random.default_rng(0).normal(size=(24, 3))


def net(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, outputs)).eval()


@pytest.fixture(scope="module")
def classes() -> md.Result:
    return md.estimate(net(4), X, outputs="logits", budget=64, method="pooled")


def anchors(text: str) -> set[str]:
    return set(re.findall(r'<section[^>]*id="([\w-]+)"', text))


def page(path: Path, result: md.Result, **data) -> str:
    return write_result_page(result, path / "page.html", **data).read_text(encoding="utf-8")


def test_sections_that_apply(classes, tmp_path):
    text = page(tmp_path, classes, class_names=NAMES)
    assert {"classes", "unsettled"} <= anchors(text) and not {"parts", "quantities"} & anchors(text)
    pair = md.estimate(net(2), X, outputs="mean-log-variance", budget=64, method="pooled")
    assert anchors(page(tmp_path, pair)) & {"classes", "unsettled", "parts", "quantities"} == {"parts"}
    values = md.estimate(net(2), X, quantities=("quantile_0.9", md.Above(0.1)), budget=64, method="pooled")
    text = page(tmp_path, values)
    assert anchors(text) & {"classes", "unsettled", "parts", "quantities"} == {"quantities"}
    assert "90\u00a0% quantile" in text and "Above 0.1" in text
    plain = page(tmp_path, md.estimate(net(2), X, budget=64, method="pooled"))
    assert not {"classes", "unsettled", "parts", "quantities"} & anchors(plain)
    entropy_only = md.estimate(net(4), X, outputs="logits", quantities="entropy", budget=64, method="pooled")
    assert anchors(page(tmp_path, entropy_only)) & {"classes", "unsettled"} == {"classes"}


def test_class_names_everywhere_and_as_text(classes, tmp_path):
    text = page(tmp_path, classes, class_names=NAMES, labels=np.arange(24) % 4)
    assert "&lt;b&gt;bird&lt;/b&gt;" in text and "<b>bird" not in text
    most = int(np.argmax(classes["entropy"].value))
    name = NAMES[int(classes["label"].value[most])]
    row = re.search(rf'<th scope="row" role="rowheader">input\u00a0{most}</th>(.*?)</tr>', text, re.S)
    assert row is not None and name.replace("<", "&lt;").replace(">", "&gt;") in row[1]
    assert not re.search(r'data-label="(Predicted|True label|Output)"[^>]*>\d', text)


def test_numbers_are_those_of_the_result(classes, tmp_path):
    text = page(tmp_path, classes)
    most = int(np.argmax(classes["entropy"].value))
    for name in ("entropy", "expected_entropy", "mutual_information"):
        assert with_error(float(classes[name].value[most]), float(classes[name].stderr[most])) in text
    unsettled = int((classes["label"].confidence < 0.99).sum())
    assert f"{unsettled} of 24 predicted classes have a confidence below" in text
    least = float(classes["label"].confidence.min())
    assert f"about {float(f'{passes_to_settle(least, 64):.2g}'):.0f}" in text


def test_settled_labels_are_said_to_be(tmp_path):
    with torch.no_grad():
        sure = net(3)
        sure[-1].bias.copy_(torch.tensor([9.0, 0.0, -9.0]))
    result = md.estimate(sure, X, outputs="logits", budget=64, method="pooled")
    text = page(tmp_path, result)
    assert "of 24: more passes would not change them" in text and "classes that are not settled" not in text
    assert result["label"].reliable.all()  # although their probabilities are not
    assert "</span>not settled</li>" not in text and "</span>an input</li>" in text  # no key to what is not there


def test_the_key_of_what_is_not_settled(classes, tmp_path):
    assert "</span>not settled</li>" in page(tmp_path, classes)


def test_probabilities_are_not_rounded_to_1(tmp_path):
    with torch.no_grad():
        sure = net(3)
        sure[-1].bias.copy_(torch.tensor([19.0, 0.0, -9.0]))
    text = page(tmp_path, md.estimate(sure, X, outputs="logits", budget=64, method="pooled"))
    assert "predicted class is over\u00a00.999 in the median" in text


def test_points_that_are_left_out_are_counted():
    found = scatter_with_errors(
        (np.arange(1000.0), np.ones(1000)), np.ones(1000), ("a", "b"), np.arange(1000), None, "pixel"
    )
    assert "Of 1000 pixels, the 200 with the largest sum of both are shown, and every 4th" in found.caption
    few = scatter_with_errors((np.arange(10.0), np.ones(10)), np.ones(10), ("a", "b"), np.arange(10))
    assert "shown" not in few.caption


def test_the_rejection_curve_follows_the_entropy(classes, tmp_path):
    labels = np.arange(24) % 4
    verdict = judge(matrices(classes), labels, predictions(classes))
    np.testing.assert_array_equal(verdict.spread, classes["entropy"].value)
    np.testing.assert_array_equal(verdict.wrong, classes["label"].value != labels)
    assert "uncertainty (entropy)" in page(tmp_path, classes, labels=labels)


def test_entropies_are_shown_within_their_limits(classes, tmp_path):
    """Estimates without bias may lie beyond the logarithm of the number of classes."""
    entropy = classes["entropy"]
    value = entropy.value.copy()
    value[5] = np.log(4) + 0.02
    beyond = replace(classes, quantities={**classes.quantities, "entropy": replace(entropy, value=value)})
    found = predictions(beyond)
    assert found is not None and found.exceeds_limits and found.order[0] == 5
    assert found.score.max() == found.score[5] == np.log(4)
    text, shown = page(tmp_path, beyond), with_error(np.log(4), float(entropy.stderr[5]))
    assert f'data-label="Entropy">{shown}<' in text and "can exceed these limits by their error" in text
    assert with_error(value[5], float(entropy.stderr[5])) not in text
    assert "can exceed these limits" not in page(tmp_path, classes)


def test_one_largest_error(classes, tmp_path):
    """Findings and outlook state the same error: that of predicted classes, although others have larger ones."""
    stderr = classes.mean_stderr.copy()
    label = classes["label"].value
    stderr[3, (label[3] + 1) % 4] = 0.9
    stderr[4, label[4]] = 0.2
    text = page(tmp_path, replace(classes, mean_stderr=stderr))
    assert "<strong>0.2</strong>" in text and "to within 0.2 or better everywhere" in text
    assert "largest error of the probability of a predicted class (0.1 instead of 0.2)" in text


def test_bars_have_error_bars_to_scale():
    drawing = bars_with_errors(WIDE, [("a", 0.5, 0.1), ("b", 0.9, 0.2)], ["x", "y"])
    widths = [float(w) for w in re.findall(r'class="bar[^"]*" x="0" y="[\d.]+" width="([\d.]+)"', drawing)]
    assert widths[1] / widths[0] == pytest.approx(1.8, rel=1e-3)
    ends = [(float(a), float(b)) for a, b in re.findall(r'class="error" x1="([\d.]+)" x2="([\d.]+)"', drawing)]
    assert ends[0] == pytest.approx((0.3 * 758, 0.7 * 758), abs=0.1)
    assert ends[3][1] == pytest.approx(758, abs=0.1)  # probabilities end at 1


def test_the_other_classes_are_put_together():
    result = md.estimate(net(9), X, outputs="logits", budget=64, method="pooled")
    found = predictions(result)
    assert found is not None
    figure = class_bars(found, 0, "input 0")
    first = int(np.argmax(result.mean[0]))
    assert "The other 5 classes have" in figure.caption and figure.summary.count("class ") == 4
    assert with_error(float(result.mean[0, first]), float(result.mean_stderr[0, first])) in figure.summary


def test_pixels_have_classes_and_maps(tmp_path):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop = nn.Conv2d(1, 6, 3, padding=1), nn.Dropout2d(0.3)
            self.last = nn.Conv2d(6, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.drop(torch.relu(self.first(x)))).movedim(1, -1)

    torch.manual_seed(0)
    result = md.estimate(Net().eval(), torch.rand(2, 1, 9, 10), outputs="logits", budget=16, method="pooled")
    names = ["road", "sky", "tree"]
    assert component_names(result, names)[:4] == [
        "road at row 0, column 0",
        "sky at row 0, column 0",
        "tree at row 0, column 0",
        "road at row 0, column 1",
    ]
    text = page(tmp_path, result, class_names=names, labels=np.zeros((2, 9, 10), dtype=int))
    assert "predicted classes, true labels, entropy, mutual information." in text
    right = 100 * float((result["label"].value[0] == 0).mean())
    assert f"{float(f'{right:.3g}'):g}\xa0% of them are predicted right" in text
    assert "true labels" not in page(tmp_path, result, class_names=names)
    assert "channel 0" not in text
    write_folder(tmp_path / "run", result, {}, PageData.of(class_names=names))
    assert write_page(tmp_path / "run").is_file() and not (tmp_path / "run" / "quantities.csv").exists()


def test_names_and_labels_have_to_fit(classes, tmp_path):
    with pytest.raises(InputError, match="3 class names for 4"):
        page(tmp_path, classes, class_names=["a", "b", "c"])
    with pytest.raises(InputError, match="the label 7 is no class: the model has 4 classes"):
        page(tmp_path, classes, labels=np.full(24, 7))


def test_a_page_about_a_result_in_memory_names_no_files_that_were_never_written(classes, tmp_path):
    alone = write_result_page(classes, tmp_path / "page.html", X).read_text(encoding="utf-8")
    assert "quantities.csv" not in alone and "by plain averaging." in alone
    write_folder(tmp_path / "run", classes, {"title": "t"}, X)
    assert "quantities.csv" in write_page(tmp_path / "run").read_text(encoding="utf-8")
