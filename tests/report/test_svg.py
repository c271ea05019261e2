"""Charts: axes, their labels, and text that stays text."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from mlmc_dropout.report.svg import NARROW, TOP, WIDE, Axis, Chart, Size, bars

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawing: str, style: str) -> dict[str, ElementTree.Element]:
    """Text elements of a CSS class, by their text."""
    return {e.text or "": e for e in ElementTree.fromstring(drawing).iter(f"{SVG}text") if e.get("class") == style}


def chart(size: Size, label: str) -> Chart:
    drawn = Chart(size, Axis.of([0.0, 1.0], "input"), Axis.of([2.0, 3.0], label))
    drawn.line([0.0, 1.0], [2.0, 3.0], "line")
    return drawn


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_both_axes_have_their_labels(size: Size) -> None:
    labels = texts(chart(size, "u <of> x").svg(), "label")
    assert set(labels) == {"input", "u <of> x"}
    assert float(labels["u <of> x"].get("y", "nan")) < chart(size, "u <of> x").at(0.0, 3.04)[1], "above the plot"


def test_without_a_label_the_plot_takes_the_room() -> None:
    assert set(texts(chart(WIDE, "").svg(), "label")) == {"input"}
    top = Axis.of([2.0, 3.0], "").high
    assert chart(WIDE, "").at(0.0, top)[1] == TOP
    assert chart(WIDE, "u").at(0.0, top)[1] > TOP


@pytest.mark.parametrize("axis", [Axis.of([0.013, 0.9], ""), Axis.of([1e-9, 3e-2], "", log=True), Axis.of([7.0], "")])
def test_ticks_lie_on_the_axis(axis: Axis) -> None:
    ticks = axis.ticks(5)
    assert 1 <= len(ticks) <= 8
    assert all(-1e-9 <= axis.place(tick) <= 1 + 1e-9 for tick in ticks)


def test_bars_are_to_scale() -> None:
    drawing = bars(WIDE, [("ours", 50.0, "50"), ("plain", 100.0, "100")])
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', drawing)]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.1)
