"""Accuracies of pixels: those of one image are not independent."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.report import write_result_page
from mlmc_dropout.report.truth import Verdict, _wilson, effective_size

pytest.importorskip("jinja2")


class Pixels(nn.Module):
    """Logits of three classes at every pixel, classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Conv2d(1, 6, 3, padding=1), nn.Dropout2d(0.3), nn.Conv2d(6, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x)))).movedim(1, -1)


def pixels(wrong: np.ndarray) -> Verdict:
    """Right and wrong pixels, (images, pixels)."""
    rows = np.repeat(np.arange(len(wrong)), wrong.shape[1])
    return Verdict(wrong.reshape(-1).astype(float), np.zeros(wrong.size), True, "entropy", "pixel", rows)


def test_images_that_are_right_or_wrong_as_a_whole_count_once_each() -> None:
    whole = np.repeat(np.arange(200) % 4 == 0, 64).reshape(200, 64)
    assert effective_size(pixels(whole)) == pytest.approx(200, rel=0.05)


def test_independent_pixels_count_in_full() -> None:
    noise = np.random.default_rng(0).random((400, 64)) < 0.2
    assert effective_size(pixels(noise)) == pytest.approx(noise.size, rel=0.2)


def test_intervals_cover_the_accuracy_of_new_images() -> None:
    """In 95 of 100 data sets of 12 images, whose accuracies differ, as an interval of single pixels does not."""
    draw = np.random.default_rng(1)
    clustered = single = 0
    for _ in range(400):
        share = draw.beta(4, 1, size=12)
        verdict = pixels(draw.random((12, 100)) >= share[:, None])
        size = effective_size(verdict)
        assert size is not None
        for count in (size, 1200.0):
            low, high = _wilson(1 - verdict.error(), count)
            clustered += (low <= 0.8 <= high) * (count == size)
            single += (low <= 0.8 <= high) * (count != size)
    assert clustered / 400 > 0.90  # three standard errors below 0.95 are 0.917; Wilson's interval is short for few
    assert single / 400 < 0.6


def test_a_single_image_tells_nothing() -> None:
    assert effective_size(pixels(np.zeros((1, 50)))) is None
    assert effective_size(pixels(np.zeros((7, 50)))) == 7


def test_curves_need_errors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = md.estimate(Pixels().eval(), torch.rand(3, 1, 9, 10), outputs="logits", budget=16, method="pooled")
    right = result["label"].value
    wrong = np.where(np.arange(270).reshape(3, 9, 10) == 7, (right + 1) % 3, right)
    for labels, shown in ((right, False), (wrong, True)):
        text = write_result_page(result, tmp_path / "page.html", labels=labels).read_text(encoding="utf-8")
        assert ("Rejection curve" in text) == shown


def test_labels_of_images_are_no_labels_of_pixels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = md.estimate(Pixels().eval(), torch.rand(3, 1, 9, 10), outputs="logits", budget=16, method="pooled")
    with pytest.raises(md.InputError, match="90 predictions of a class"):
        write_result_page(result, tmp_path / "page.html", labels=[0, 1, 2])


def test_the_page_speaks_of_pixels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = md.estimate(Pixels().eval(), torch.rand(3, 1, 9, 10), outputs="logits", budget=16, method="pooled")
    labels = np.random.default_rng(0).integers(0, 3, (3, 9, 10))
    text = write_result_page(result, tmp_path / "page.html", labels=labels).read_text(encoding="utf-8")
    beside = re.search(r'<section id="labels".*?</section>', text, re.S)[0]
    assert "one per pixel of 3 inputs" in beside and 'data-label="Pixels">54<' in beside
    assert "pixels of an input as one sample" in beside and 'data-label="Inputs"' not in beside
    assert re.search(r"input\u00a0\d, row \d, column \d</th>", text)


def test_values_are_no_labels_and_each_output_has_its_error(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    result = md.estimate(net, np.random.default_rng(0).normal(size=(30, 2)), budget=32)
    truth, names = result.mean + np.array([3.0, 0.04]), ("load", "wave")
    text = write_result_page(result, tmp_path / "p.html", labels=truth, class_names=names).read_text(encoding="utf-8")
    assert "Beside the true values" in text and "rue labels" not in text
    text = " ".join(re.sub(r"<[^>]+>", " ", text).split())
    assert "Errors of single outputs Output Root mean square error load 3 wave 0.04" in text
