"""Small charts as SVG text: colours come from the page's style sheet, so light and dark both work.

Every chart is drawn twice, wide and narrow, with text of the same size; the style sheet shows one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from mlmc_dropout.report.formats import tick_label

__all__ = ["NARROW", "WIDE", "Axis", "Chart", "Size", "bars", "bars_with_errors"]

LEFT, RIGHT, TOP, BOTTOM = 62.0, 12.0, 12.0, 44.0  # margins in pixels
LABEL_HEIGHT = 20.0  # of the label above the y axis
MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a chart in pixels of the page.

    Attributes:
        width: Width.
        height: Height.
        name: CSS class: ``"wide"`` or ``"narrow"``.
    """

    width: float
    height: float
    name: str


WIDE, NARROW = Size(760, 340, "wide"), Size(350, 270, "narrow")


@dataclass(frozen=True, slots=True)
class Axis:
    """From data to pixels, linear or logarithmic.

    Attributes:
        low: Lower end.
        high: Upper end.
        label: What it measures.
        log: Whether it is logarithmic.
        marks: Ticks, where round numbers will not do.
    """

    low: float
    high: float
    label: str
    log: bool = False
    marks: tuple[float, ...] = ()  # ticks, where round numbers will not do

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        label: str,
        log: bool = False,
        zero: bool = False,
        marks: Sequence[float] = (),
        within: tuple[float, float] = (-math.inf, math.inf),
    ) -> Axis:
        """An axis that holds values with a little room around them.

        Args:
            values: The values; those that cannot be shown are passed over.
            label: What the axis measures.
            log: Whether it is logarithmic.
            zero: Whether zero has to be on it.
            marks: Ticks, where round numbers will not do.
            within: What it does not exceed, for values that cannot either.

        Returns:
            The axis.
        """
        good = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
        low, high = min(good), max(good)
        if log:
            low, high = low / 1.3, high * 1.3
        else:
            low = min(low, 0.0) if zero else low
            room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
            low, high = (low if zero and low == 0 else low - room), high + room
        return cls(max(low, within[0]), min(high, within[1]), label, log, tuple(marks))

    def place(self, value: float) -> float:
        """Where a value lies on the axis.

        Args:
            value: The value.

        Returns:
            0 at the lower end, 1 at the upper one.
        """
        if self.log:
            return (math.log(max(value, self.low)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """A few round numbers on the axis.

        Args:
            most: About how many.

        Returns:
            The numbers.
        """
        if self.marks:
            return list(self.marks[:: -(-len(self.marks) // most)])
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    if not high > low:
        return [low]
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    if len(decades) >= 2:
        skip = -(-len(decades) // most)
        return [10.0**k for k in decades[::skip]]
    start = math.floor(math.log10(low))
    fine = [m * 10.0**k for k in (start, start + 1) for m in (1, 2, 3, 4, 5, 6, 8)]
    inside = [value for value in fine if low <= value <= high]
    return inside[:: -(-len(inside) // most)] if inside else [low, high]


@dataclass(slots=True)
class Chart:
    """A chart being drawn: axes first, then marks, then :meth:`svg`.

    Attributes:
        size: Its size.
        x: The horizontal axis; its label stands below.
        y: The vertical axis; its label stands above.
        parts: SVG elements drawn so far.
    """

    size: Size
    x: Axis
    y: Axis
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point.

        Args:
            x: Abscissa in data.
            y: Ordinate in data.

        Returns:
            Pixels from the left and from the top.
        """
        top = TOP + (LABEL_HEIGHT if self.y.label else 0.0)
        width, height = self.size.width - LEFT - RIGHT, self.size.height - top - BOTTOM
        return LEFT + width * self.x.place(x), top + height * (1 - self.y.place(y))

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], style: str) -> None:
        """Draw the area between two curves.

        Args:
            xs: Abscissae, increasing.
            low: Lower curve.
            high: Upper curve.
            style: CSS class.
        """
        there = [self.at(x, y) for x, y in zip(xs, high, strict=True)]
        back = [self.at(x, y) for x, y in zip(xs, low, strict=True)][::-1]
        self.parts.append(f'<polygon class="{style}" points="{_points([*there, *back])}"/>')

    def line(self, xs: Sequence[float], ys: Sequence[float], style: str) -> None:
        """Draw a curve.

        Args:
            xs: Abscissae.
            ys: Ordinates.
            style: CSS class.
        """
        self.parts.append(
            f'<polyline class="{style}" points="{_points([self.at(x, y) for x, y in zip(xs, ys, strict=True)])}"/>'
        )

    def dots(self, xs: Sequence[float], ys: Sequence[float], style: str, radius: float = 3.5) -> None:
        """Draw marks.

        Args:
            xs: Abscissae.
            ys: Ordinates.
            style: CSS class.
            radius: Their radius in pixels.
        """
        for x, y in zip(xs, ys, strict=True):
            px, py = self.at(x, y)
            self.parts.append(f'<circle class="{style}" cx="{px:.1f}" cy="{py:.1f}" r="{radius}"/>')

    def whiskers(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], style: str) -> None:
        """Draw vertical error bars.

        Args:
            xs: Abscissae.
            low: Lower ends.
            high: Upper ends.
            style: CSS class.
        """
        for x, a, b in zip(xs, low, high, strict=True):
            (px, ay), (_, by) = self.at(x, a), self.at(x, b)
            self.parts.append(f'<line class="{style}" x1="{px:.1f}" x2="{px:.1f}" y1="{ay:.1f}" y2="{by:.1f}"/>')

    def picture(self, address: str) -> None:
        """Fill the plot with a picture.

        Args:
            address: A ``data:`` address.
        """
        (left, top), (right, bottom) = self.at(self.x.low, self.y.high), self.at(self.x.high, self.y.low)
        self.parts.append(
            f'<image class="pixels" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}" preserveAspectRatio="none" href="{address}"/>'
        )

    def coloured_dot(self, x: float, y: float, fill: str, radius: float = 4.0) -> None:
        """Draw a mark in a colour of its own.

        Args:
            x: Abscissa.
            y: Ordinate.
            fill: The colour, as in ``#440154``.
            radius: Its radius in pixels.
        """
        px, py = self.at(x, y)
        self.parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{radius}" fill="{fill}"/>')

    def columns(self, edges: Sequence[float], heights: Sequence[float], style: str) -> None:
        """Draw the columns of a histogram.

        Args:
            edges: Their edges, one more than columns.
            heights: Their heights.
            style: CSS class.
        """
        for a, b, height in zip(edges[:-1], edges[1:], heights, strict=True):
            (left, top), (right, base) = self.at(a, height), self.at(b, self.y.low)
            self.parts.append(
                f'<rect class="{style}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 1, 0.5):.1f}" '
                f'height="{max(base - top, 0):.1f}"/>'
            )

    def svg(self) -> str:
        """The drawing; a description for screen readers is the caption beside it."""
        return _wrap(self.size, "".join([*self._grid(), *self.parts, *self._frame()]))

    def _grid(self) -> list[str]:
        left, right = LEFT, self.size.width - RIGHT
        return [
            f'<line class="grid" x1="{left}" x2="{right}" y1="{(py := self.at(self.x.low, t)[1]):.1f}" y2="{py:.1f}"/>'
            for t in self.y.ticks(5)
        ]

    def _frame(self) -> list[str]:
        base = self.size.height - BOTTOM
        parts = [f'<line class="axis" x1="{LEFT}" x2="{self.size.width - RIGHT}" y1="{base}" y2="{base}"/>']
        for tick in self.y.ticks(5):
            py = self.at(self.x.low, tick)[1]
            parts.append(
                f'<text class="tick" x="{LEFT - 8}" y="{py + 4:.1f}" text-anchor="end">{tick_label(tick)}</text>'
            )
        for tick in self.x.ticks(7 if self.size is WIDE else 4):
            px = self.at(tick, self.y.low)[0]
            parts.append(f'<line class="axis" x1="{px:.1f}" x2="{px:.1f}" y1="{base}" y2="{base + 4}"/>')
            parts.append(
                f'<text class="tick" x="{px:.1f}" y="{base + 18}" text-anchor="middle">{tick_label(tick)}</text>'
            )
        middle = (LEFT + self.size.width - RIGHT) / 2
        parts.append(
            f'<text class="label" x="{middle:.1f}" y="{base + 37}" text-anchor="middle">{escape(self.x.label)}</text>'
        )
        if self.y.label:  # above the axis and upright: beside it there is room for the numbers only
            parts.append(f'<text class="label" x="0" y="{TOP + 3}">{escape(self.y.label)}</text>')
        return parts


def is_wide(items: Sequence[tuple[str, float, str]]) -> bool:
    """Whether bars of these lengths need a logarithmic scale to be seen.

    Args:
        items: (label, value, text at its end).
    """
    values = [value for _, value, _ in items if math.isfinite(value) and value > 0]
    return bool(values) and max(values) > 300 * min(values)


def _log_length(value: float) -> float:
    return math.log10(max(value, 1.0)) + 0.3


def bars(size: Size, items: Sequence[tuple[str, float, str]], style: str = "bar") -> str:
    """Horizontal bars, the first one highlighted.

    Args:
        size: Width of the drawing; its height follows from the bars.
        items: (label, value, text at its end).
        style: CSS class.

    Returns:
        The SVG text.
    """
    row = 52.0
    scale = _log_length if is_wide(items) else float
    largest = max((scale(value) for _, value, _ in items if math.isfinite(value)), default=1.0) or 1.0
    room = size.width - 2.0
    parts = []
    for index, (label, value, text) in enumerate(items):
        top = index * row
        width = max(2.0, room * scale(value) / largest) if math.isfinite(value) else room
        kind = f"{style} first" if index == 0 else style
        parts.append(f'<text class="label" x="0" y="{top + 15}">{escape(label)}</text>')
        parts.append(f'<text class="value" x="{size.width}" y="{top + 15}" text-anchor="end">{escape(text)}</text>')
        parts.append(f'<rect class="{kind}" x="0" y="{top + 23}" width="{width:.1f}" height="16" rx="3"/>')
    return _wrap(Size(size.width, row * len(items), size.name), "".join(parts))


def bars_with_errors(size: Size, items: Sequence[tuple[str, float, float]], texts: Sequence[str]) -> str:
    """Horizontal bars from 0 to 1 with two standard errors either way, the first one highlighted.

    Args:
        size: Width of the drawing; its height follows from the bars.
        items: (label, value, standard error).
        texts: What is written at the end of each.

    Returns:
        The SVG text.
    """
    row, room, parts = 46.0, size.width - 2.0, []
    most = int((size.width - 130) / 7.5)  # characters of a label beside the text
    for index, ((label, value, error), text) in enumerate(zip(items, texts, strict=True)):
        top = index * row
        label = label if len(label) <= most else label[: most - 1] + "…"
        error = error if math.isfinite(error) else 0.0
        left, right = (room * min(max(value + sign * 2 * error, 0.0), 1.0) for sign in (-1, 1))
        kind = "bar first" if index == 0 else "bar"
        width = max(2.0, room * min(max(value, 0.0), 1.0))
        parts.append(f'<text class="label" x="0" y="{top + 15}">{escape(label)}</text>')
        parts.append(f'<text class="value" x="{size.width}" y="{top + 15}" text-anchor="end">{escape(text)}</text>')
        parts.append(f'<rect class="track" x="0" y="{top + 22}" width="{room:.1f}" height="14" rx="3"/>')
        parts.append(f'<rect class="{kind}" x="0" y="{top + 22}" width="{width:.1f}" height="14" rx="3"/>')
        middle = top + 29
        for a, b, half in ((left, right, 0.0), (left, left, 4.5), (right, right, 4.5)):
            ends = f'x1="{a:.1f}" x2="{b:.1f}" y1="{middle - half}" y2="{middle + half}"'
            parts.append(f'<line class="error" {ends}/>')
    return _wrap(Size(size.width, row * len(items), size.name), "".join(parts))


def _wrap(size: Size, inner: str) -> str:
    return (
        f'<svg class="{size.name}" viewBox="0 0 {size.width:g} {size.height:g}" aria-hidden="true" focusable="false" '
        f'xmlns="http://www.w3.org/2000/svg">{inner}</svg>'
    )


def _points(pixels: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
