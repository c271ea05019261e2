"""Pictures of a page: maps over two numbers, images as images, passes as histograms, labels as curves."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.errors import InputError
from mlmc_dropout.report import write_page, write_result_page
from mlmc_dropout.report.charts import histogram
from mlmc_dropout.report.colours import ANCHORS, CLASS_COLOURS, class_png, png
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.folder import write_folder
from mlmc_dropout.report.maps import _grid, _image_axes
from mlmc_dropout.report.numbers import matrices
from mlmc_dropout.report.passes import passes_of, telling_rows
from mlmc_dropout.report.svg import Axis
from mlmc_dropout.report.truth import judge

pytest.importorskip("jinja2")


def net(inputs: int, outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Linear(inputs, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, outputs))
        return nn.Sequential(*layers).eval()


def page(path: Path, result: md.Result, x: object = None, **data: object) -> str:
    return write_result_page(result, path / "page.html", x, **data).read_text(encoding="utf-8")


def test_a_png_holds_the_numbers() -> None:
    image = pytest.importorskip("PIL.Image")
    address = png(np.array([[0.0, 1.0], [0.5, 0.25]]), 0.0, 1.0)
    with image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as opened:
        pixels = opened.convert("RGB").load()
        found = [pixels[column, row] for row in (0, 1) for column in (0, 1)]
    wanted = [ANCHORS[0], ANCHORS[4], ANCHORS[2], ANCHORS[1]]
    assert np.abs(np.array(found) - np.array(wanted)).max() <= 3


def test_a_picture_of_classes_has_a_colour_for_each() -> None:
    image = pytest.importorskip("PIL.Image")
    address = class_png(np.array([[0, 1], [8, 2]]))
    with image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as opened:
        pixels = opened.convert("RGB").load()
        found = ["#" + bytes(pixels[column, row]).hex() for row in (0, 1) for column in (0, 1)]
    assert found == [CLASS_COLOURS[i] for i in (0, 1, 8, 2)]


def test_grids_are_recognised_whatever_their_order() -> None:
    x = np.stack(np.meshgrid(np.linspace(0, 1, 4), np.linspace(-1, 1, 3)), -1).reshape(-1, 2)
    values = 10 * x[:, 0] + x[:, 1]
    order = np.random.default_rng(0).permutation(len(x))
    expected = 10 * np.linspace(0, 1, 4)[None] + np.linspace(1, -1, 3)[:, None]  # the largest ordinate on top
    np.testing.assert_allclose(_grid(x[order], values[order]), expected)
    assert _grid(x[1:], values[1:]) is None  # a point is missing
    assert _grid(x**3, values) is None  # not regular
    assert _grid(np.repeat(x[:6], 2, axis=0), values) is None  # points twice


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((32, 48), (0, 1)),
        ((3, 32, 32), (1, 2)),
        ((32, 32, 3), (0, 1)),
        ((10,), None),
        ((4, 4), None),
        ((12, 3), None),
        ((2, 2, 2), None),
        ((), None),
    ],
)
def test_outputs_that_are_images(shape: tuple[int, ...], axes: tuple[int, int] | None) -> None:
    assert _image_axes(shape) == axes


def test_two_numbers_become_maps_with_their_names(tmp_path: Path) -> None:
    x = np.stack(np.meshgrid(np.linspace(0, 1, 6), np.linspace(0, 1, 5)), -1).reshape(-1, 2)
    result = md.estimate(net(2, 1), x, method="pooled", budget=64)
    grid = page(tmp_path, result, pd.DataFrame(x, columns=["voltage", "pressure"]))
    assert grid.count("<image class=") == 4 and "over voltage and pressure" in grid  # mean and spread, wide and narrow
    scattered = x + np.random.default_rng(0).normal(size=x.shape) * 0.01
    dots = page(tmp_path, md.estimate(net(2, 1), scattered, method="pooled", budget=64), scattered)
    assert "<image" not in dots and dots.count("<circle cx=") == 4 * len(x)
    most = int(np.argmax(result.variance[:, 0]))
    assert f"input {most} (voltage " in grid


def test_images_are_drawn_as_images(tmp_path: Path) -> None:
    class Segment(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.drop = nn.Conv2d(1, 3, 3, padding=1), nn.Dropout2d(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.conv(x))

    result = md.estimate(Segment().eval(), torch.rand(4, 1, 12, 10), method="pooled", budget=32)
    text = page(tmp_path, result)
    assert text.count('<img src="data:image/png;base64,') == 2 * 3 and "12 × 10 pixels" in text
    assert "Uncertainty, sorted" not in text


def test_histograms_show_passes_of_the_same_law(tmp_path: Path) -> None:
    model, x = net(3, 2), torch.rand(40, 3)
    result = md.estimate(model, x, method="pooled", budget=4000)
    rows = telling_rows(result)
    shown = passes_of(md.DropoutSampler(model), x, rows, result.seed)
    assert list(shown) == rows and len(rows) == 3
    for row, passes in shown.items():
        z = (passes.mean(axis=0) - result.mean[row]) / np.sqrt(passes.var(axis=0) / len(passes))
        assert np.abs(z).max() < 4.5  # six comparisons, error rate below 1e-4
    text = page(tmp_path, result, x, passes=shown)
    pattern = r"<figcaption>400 single passes of (input \d+)[^<]*, the one with (.*?) standard deviation of a pass"
    captions = re.findall(pattern, text)
    assert [f"input {row}" for row in rows] == [name for name, _ in captions]
    assert [standing for _, standing in captions] == ["the largest", "a median", "the smallest"]


def test_histograms_of_probabilities_end_at_0_and_1() -> None:
    """And say whose probability it is."""
    draw = np.random.default_rng(0).beta(0.5, 0.05, size=400)
    figure = histogram(draw, 0.9, 0.2, "input 3", "probability of draw", (0.0, 1.0))
    free = histogram(draw, 0.9, 0.2, "input 3", "output")
    assert "probability of draw" in figure.drawings[0] and figure.caption.endswith("probability of draw.")
    assert figure.drawings[0].count('class="theory"') == 1 and free.drawings[0].count('class="theory"') == 2
    assert Axis.of([0.0, 1.0], "", within=(0.0, 1.0)).high == 1.0 < Axis.of([0.0, 1.0], "").high
    gaps = []
    for drawing in (figure.drawings[0], free.drawings[0]):
        bars = re.findall(r'class="bar" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawing)
        ends = [float(x) for x in re.findall(r'x2="([\d.]+)"', drawing)]
        gaps.append(max(ends) - max(float(x) + float(width) for x, width in bars))
    assert gaps[0] < 2 < 20 < gaps[1]  # bars reach the end of the axis, which has no room behind 1


def test_a_single_output_has_no_number(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 9)[:, None]
    text = page(tmp_path, md.estimate(net(1, 1), x, method="pooled", budget=64), x)
    assert "Output over the inputs" in text and "output 0" not in text.lower()
    assert "Output 1 over the inputs" in page(tmp_path, md.estimate(net(1, 2), x, method="pooled", budget=64), x)


def test_labels_class_names_and_features_are_shown(tmp_path: Path) -> None:
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=["age", "dose", "mass"])
    result = md.estimate(net(3, 2), x.to_numpy(), method="pooled", budget=64, transform="softmax")
    labels = np.random.default_rng(1).integers(0, 2, 60)
    text = page(tmp_path, result, x, labels=labels, class_names=["benign <b>", "malign"])
    right = (result.mean.argmax(axis=1) == labels).mean()
    assert f"<strong>{100 * right:.3g}\xa0%</strong>" in text and "Rejection curve" in text
    assert "benign &lt;b&gt;" in text and "benign <b>" not in text
    assert re.search(r"input \d+ \(age [−.\de]+, dose [−.\de]+, mass", text)


def test_spread_that_knows_where_the_model_is_wrong() -> None:
    """The rejection curve falls for a spread that follows the error, and stays for one that does not."""
    result = md.estimate(net(1, 1), torch.linspace(-3, 3, 200)[:, None], method="pooled", budget=64)
    m = matrices(result)
    noise = np.random.default_rng(0).normal(size=m.mean.shape)
    knowing = judge(m, m.mean + m.std * noise)
    assert not knowing.classes and knowing.rejection()[30] < 0.8 * knowing.error()
    ignorant = judge(m, m.mean + noise)
    assert 0.8 < ignorant.rejection()[20] / ignorant.error() < 1.25


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"labels": np.zeros(3, int)}, "3 labels for 5 results"),
        ({"labels": np.array([0, 1, 2, 1, 7])}, "label 7"),
        ({"labels": np.zeros((5, 2))}, "labels of shape"),
        ({"labels": ["a"] * 5}, "labels are names, as 'a'"),
        ({"labels": ["a"] * 5, "class_names": ["b", "c", "d"]}, "'a' is none of the class names"),
        ({"labels": [None] * 5}, "labels are numbers or names"),
        ({"class_names": ["a", "b"]}, "2 class names for 3"),
    ],
)
def test_what_does_not_belong_to_the_result_is_refused(data: dict[str, object], shown: str, tmp_path: Path) -> None:
    result = md.estimate(net(1, 3), torch.zeros(5, 1), method="pooled", budget=32)
    with pytest.raises(InputError, match=shown):
        page(tmp_path, result, **data)


def test_everything_survives_the_folder(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    result = md.estimate(net(2, 3), x, method="pooled", budget=32)
    data = PageData.of(x, np.arange(30) % 3, ("a", "b", "c"), ("u", "v"), {4: np.ones((7, 3)), 2: np.zeros((7, 3))})
    write_folder(tmp_path, result, {"title": "t"}, data)
    again = PageData.load(tmp_path / "page.npz")
    for name in ("x", "labels", "passes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(data, name))
    assert (again.feature_names, again.class_names, again.pass_rows) == (("u", "v"), ("a", "b", "c"), (2, 4))
    assert "Beside the true labels" in write_page(tmp_path).read_text(encoding="utf-8")


def test_passes_that_agree_have_a_column_that_can_be_seen() -> None:
    """The estimate has met rare passes that the picture has not: its axis is far wider than what was drawn."""
    draw = np.random.default_rng(0).uniform(0.0, 0.001, 400)
    figure = histogram(draw, 0.02, 0.13, "input 3", "probability of draw", (0.0, 1.0))
    widths = [float(w) for w in re.findall(r'<rect class="bar"[^>]* width="([0-9.]+)"', figure.drawings[0])]
    assert widths and max(widths) > 10


def test_classes_along_the_wrong_axis_are_no_picture_but_no_end_either(tmp_path: Path) -> None:
    pixels = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(0.2), nn.Conv2d(4, 3, 1))
    with pytest.warns(md.ModelWarning, match="class_axis=1"):
        result = md.estimate(pixels, np.random.default_rng(0).normal(size=(2, 1, 8, 8)), outputs="logits", budget=32)
    found = page(tmp_path, result)
    assert "predicted classes, entropy" not in found
    assert "Images" in found
