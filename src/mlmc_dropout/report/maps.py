"""Maps: estimates over inputs of two numbers, and outputs that are images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report.blocks import Figure
from mlmc_dropout.report.colours import CLASS_COLOURS, class_png, colour, png
from mlmc_dropout.report.formats import percent, short
from mlmc_dropout.report.names import place_words
from mlmc_dropout.report.predictions import Predictions
from mlmc_dropout.report.svg import NARROW, WIDE, Axis, Chart, Size
from mlmc_dropout.result import Result
from mlmc_dropout.result.arrays import leaves

__all__ = ["image_channels", "image_maps", "surfaces"]

Array = NDArray[np.float64]
MIN_SIDE = 8  # pixels of an output that is taken for an image
MAX_SIDE = 192  # pixels of a picture; larger images are thinned out
MAX_IMAGES = 3
MAX_DOTS = 1500
OTHERS = len(CLASS_COLOURS) - 1  # the colour of classes that are not among the most frequent


def surfaces(x: Array, mean: Array, std: Array, label: str, names: Sequence[str]) -> list[Figure]:
    """Mean and spread of an output over inputs of two numbers each.

    Args:
        x: Inputs, (inputs, 2).
        mean: Mean of the output, (inputs,).
        std: Standard deviation of a pass, (inputs,).
        label: What the output is called, as in ``output 3``.
        names: Names of the two numbers.

    Returns:
        Two figures; a picture for points on a grid, coloured dots for others.
    """
    return [
        _surface(x, mean, f"Mean of the {label}", names),
        _surface(x, std, f"Standard deviation of the {label} between passes", names),
    ]


def _surface(x: Array, values: Array, what: str, names: Sequence[str]) -> Figure:
    low, high = float(values.min()), float(values.max())
    grid = _grid(x, values)
    thin = np.unique(np.linspace(0, len(x) - 1, min(len(x), MAX_DOTS)).round().astype(int))

    def draw(size: Size) -> str:
        axes = [Axis.of(x[:, i].tolist(), names[i]) for i in (0, 1)]
        if grid is not None:
            axes = [Axis(float(x[:, i].min()), float(x[:, i].max()), names[i]) for i in (0, 1)]
        chart = Chart(size, axes[0], axes[1])
        if grid is not None:
            chart.picture(png(grid, low, high))
        else:
            for i in thin:
                chart.coloured_dot(float(x[i, 0]), float(x[i, 1]), colour(float(values[i]), low, high))
        return chart.svg()

    top = x[int(np.argmax(values))]
    return Figure(
        [draw(size) for size in (WIDE, NARROW)],
        f"{what}, over {names[0]} and {names[1]}.",
        f"{what}: from {short(low)} to {short(high)}, largest at {names[0]} {short(float(top[0]))}, {names[1]} "
        f"{short(float(top[1]))}.",
        (("ramp", f"{short(low)} (dark) to {short(high)} (light)"),),
    )


def _grid(x: Array, values: Array) -> Array | None:
    """The values as a matrix, its first row on top, if the inputs are all points of a regular grid."""
    first, second = np.unique(x[:, 0]), np.unique(x[:, 1])
    if min(len(first), len(second)) < 2 or len(first) * len(second) != len(x) or len({*map(tuple, x)}) != len(x):
        return None
    for axis in (first, second):  # rounded in the file, perhaps: a tenth of a step is not seen
        even = np.linspace(axis[0], axis[-1], len(axis))
        if np.abs(axis - even).max() > 0.1 * (even[1] - even[0]):
            return None
    matrix = np.empty((len(second), len(first)))
    matrix[np.searchsorted(second, x[:, 1]), np.searchsorted(first, x[:, 0])] = values
    return matrix[::-1]


def image_maps(
    result: Result,
    rows: Sequence[int],
    class_names: Sequence[str] = (),
    found: Predictions | None = None,
    labels: NDArray[Any] | None = None,
) -> list[Figure]:
    """Mean and spread of outputs that are images, for some inputs; where pixels have classes, these and how uncertain.

    Args:
        result: The estimate.
        rows: Which inputs.
        class_names: Names of the classes, if known.
        found: Predictions, where outputs are classes.
        labels: True labels, if known.

    Returns:
        Figures for each input; none if no output is an image.
    """
    for (name, shape), mean, std in zip(result.structure.names(), leaves(result.mean), leaves(result.std), strict=True):
        axes = _image_axes(shape)
        if axes is not None:
            sides = shape[axes[0]], shape[axes[1]]
            fits = found is not None and found.unit == "pixel" and len(found.label) == len(mean) * sides[0] * sides[1]
            pixels = found if fits else None  # classes along another axis: what has a class is no pixel of the image
            return [
                figure
                for i in rows[:MAX_IMAGES]
                for figure in (
                    *([] if pixels is None else [_pixels(pixels, labels, i, sides)]),
                    _images(mean[i], std[i], axes, name, i, class_names),
                )
            ]
    return []


def _pixels(found: Predictions, labels: NDArray[Any] | None, row: int, sides: tuple[int, int]) -> Figure:
    """Predicted and true classes of the pixels of an input, and what is known of their uncertainty."""
    of_row = found.rows == row
    classes = {"predicted classes": found.label[of_row]}
    true = found.true_classes(labels)
    if true is not None:
        classes["true labels"] = true[of_row]
    slots = _slots(np.concatenate([*classes.values()]))
    tiles = [_class_tile(what, values.reshape(sides), slots) for what, values in classes.items()]
    measures = {name.replace("_", " "): found.shown(name)[of_row].reshape(sides) for name in found.entropies}
    measures.pop("expected entropy", None)  # what the two others leave
    tiles += [_ramp_tile(what, values) for what, values in measures.items()]
    where = f"Pixels of input {row}"
    right = ""
    if len(classes) > 1:
        share = float((classes["predicted classes"] == classes["true labels"]).mean())
        right = f" {percent(share, 3)} of them are predicted right."
    return Figure(
        [_side_by_side(tiles)],
        f"{where}: {', '.join((*classes, *measures))}.{right}",
        f"{where}: {_shares(found, classes)}; {', '.join(_range(what, v) for what, v in measures.items())}.{right}",
        [(f"class{slot}", found.names[number]) for number, slot in slots.items()]
        + ([(f"class{OTHERS}", "other classes")] if len(found.names) > OTHERS == len(slots) else []),
    )


def _slots(classes: NDArray[Any]) -> dict[int, int]:
    """Places in the palette of classes: the most frequent ones have a colour each."""
    numbers, counts = np.unique(classes, return_counts=True)
    common = sorted(int(number) for number in numbers[np.argsort(-counts, kind="stable")][:OTHERS])
    return {number: slot for slot, number in enumerate(common)}


def _shares(found: Predictions, classes: Mapping[str, NDArray[Any]]) -> str:
    """How much of the input every class has, in words."""
    texts = []
    for what, values in classes.items():
        numbers, counts = np.unique(values, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:OTHERS]
        shares = (f"{found.names[int(numbers[i])]} {percent(counts[i] / values.size)}" for i in order)
        texts.append(f"{what} {', '.join(shares)}")
    return "; ".join(texts)


def _range(what: str, values: Array) -> str:
    return f"{what} from {short(float(values.min()), 4)} to {short(float(values.max()), 4)}"


def _class_tile(what: str, classes: NDArray[Any], slots: Mapping[int, int]) -> str:
    step = _step(classes.shape)
    places = np.vectorize(lambda number: slots.get(int(number), OTHERS), otypes=[np.int64])(classes[::step, ::step])
    return _tile(class_png(places), classes.shape, what)


def _ramp_tile(what: str, values: Array) -> str:
    step, low, high = _step(values.shape), float(values.min()), float(values.max())
    words = f"{what}: {short(low, 4)} (dark) to {short(high, 4)} (light)"
    return _tile(png(values[::step, ::step], low, high), values.shape, words)


def _step(shape: tuple[int, ...]) -> int:
    return -(-max(shape) // MAX_SIDE)


def _tile(picture: str, shape: tuple[int, ...], words: str) -> str:
    return (
        f'<div class="map"><img src="{picture}" alt="" width="{shape[1]}" height="{shape[0]}">'
        f"<p>{escape(words)}</p></div>"
    )


def _side_by_side(tiles: Sequence[str]) -> str:
    return f'<div class="maps">{"".join(tiles)}</div>'


def _image_axes(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Which axes of an output are height and width: (H, W), (channels, H, W) or (H, W, channels)."""
    long = [axis for axis, size in enumerate(shape) if size >= MIN_SIDE]
    if len(shape) == 2 and len(long) == 2:
        return 0, 1
    if len(shape) == 3 and {1, 2} <= {*long} and shape[0] <= min(shape[1:]):
        return 1, 2
    if len(shape) == 3 and {0, 1} <= {*long} and shape[2] <= min(shape[:2]):
        return 0, 1
    return None


def image_channels(result: Result) -> NDArray[np.int64] | None:
    """The channel of each component, where outputs are images.

    Args:
        result: The estimate.

    Returns:
        Channel numbers (components,), all 0 without channels; ``None`` if the output is no image.
    """
    leaves_of_output = result.structure.names()
    shape = leaves_of_output[0][1]
    axes = _image_axes(shape)
    if len(leaves_of_output) > 1 or axes is None:
        return None
    channel_axis = [axis for axis in range(len(shape)) if axis not in axes]
    places = np.indices(shape).reshape(len(shape), -1)
    return np.asarray(places[channel_axis[0]] if channel_axis else np.zeros_like(places[0]))


def _images(
    mean: Array, std: Array, axes: tuple[int, int], name: str, row: int, class_names: Sequence[str] = ()
) -> Figure:
    """The channel with the largest spread, mean and spread side by side."""
    channel_axis = next((axis for axis in range(mean.ndim) if axis not in axes), None)
    channel, of_channel = 0, ""
    if channel_axis is not None:
        channels = mean.shape[channel_axis]
        channel = int(np.argmax(np.square(std).sum(axis=axes)))
        mean, std = np.take(mean, channel, axis=channel_axis), np.take(std, channel, axis=channel_axis)
        named = class_names[channel] if len(class_names) == channels else f"channel {channel}"
        of_channel = f", {named}, the one with the largest spread"
    where = f"{name or 'Output'} of input {row}{of_channel}"
    largest = np.unravel_index(int(np.argmax(std)), std.shape)
    size = f"{mean.shape[0]} × {mean.shape[1]}"
    return Figure(
        [_side_by_side([_ramp_tile("mean", mean), _ramp_tile("spread", std)])],
        f"{where}: mean of a pass on the left, standard deviation on the right, {size} pixels.",
        f"{where}, {size} pixels. Mean from {short(float(mean.min()))} to {short(float(mean.max()))}; standard "
        f"deviation from {short(float(std.min()))} to {short(float(std.max()))}, largest at "
        f"{place_words([int(i) for i in largest])}.",
    )
