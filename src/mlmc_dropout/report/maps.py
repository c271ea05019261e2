"""Maps: estimates over inputs of two numbers, and outputs that are images."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report.blocks import Figure
from mlmc_dropout.report.colours import colour, png
from mlmc_dropout.report.formats import short
from mlmc_dropout.report.names import is_classes
from mlmc_dropout.report.svg import NARROW, WIDE, Axis, Chart, Size
from mlmc_dropout.result import Result
from mlmc_dropout.result.arrays import leaves

__all__ = ["image_maps", "surfaces"]

Array = NDArray[np.float64]
MIN_SIDE = 8  # pixels of an output that is taken for an image
MAX_SIDE = 192  # pixels of a picture; larger images are thinned out
MAX_IMAGES = 3
MAX_DOTS = 1500


def surfaces(x: Array, mean: Array, std: Array, label: str, names: Sequence[str]) -> list[Figure]:
    """Mean and spread of an output over inputs of two numbers each.

    Args:
        x: Inputs, (inputs, 2).
        mean: Mean of the output, (inputs,).
        std: Standard deviation of a pass, (inputs,).
        label: Name of the output.
        names: Names of the two numbers.

    Returns:
        Two figures; a picture for points on a grid, coloured dots for others.
    """
    return [
        _surface(x, mean, f"Mean of output {label}", names),
        _surface(x, std, f"Standard deviation of a pass of output {label}", names),
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
        f"{what} over {names[0]} and {names[1]}.",
        f"{what}: from {short(low)} to {short(high)}, largest at {names[0]} {short(float(top[0]))}, {names[1]} "
        f"{short(float(top[1]))}.",
        (("ramp", f"{short(low)} (dark) to {short(high)} (light)"),),
    )


def _grid(x: Array, values: Array) -> Array | None:
    """The values as a matrix, its first row on top, if the inputs are all points of a regular grid."""
    first, second = np.unique(x[:, 0]), np.unique(x[:, 1])
    if min(len(first), len(second)) < 2 or len(first) * len(second) != len(x) or len({*map(tuple, x)}) != len(x):
        return None
    if any(not np.allclose(np.diff(axis), axis[1] - axis[0], rtol=1e-3) for axis in (first, second)):
        return None
    matrix = np.empty((len(second), len(first)))
    matrix[np.searchsorted(second, x[:, 1]), np.searchsorted(first, x[:, 0])] = values
    return matrix[::-1]


def image_maps(result: Result, rows: Sequence[int], class_names: Sequence[str] = ()) -> list[Figure]:
    """Mean and spread of outputs that are images, for some inputs; where pixels have classes, their entropies as well.

    Args:
        result: The estimate.
        rows: Which inputs.
        class_names: Names of the classes, if known.

    Returns:
        Figures for each input; none if no output is an image.
    """
    for (name, shape), mean, std in zip(result.structure.names(), leaves(result.mean), leaves(result.std), strict=True):
        axes = _image_axes(shape)
        if axes is not None:
            return [
                figure
                for i in rows[:MAX_IMAGES]
                for figure in (*_entropy_maps(result, i), _images(mean[i], std[i], axes, name, i, class_names))
            ]
    return []


def _entropy_maps(result: Result, row: int) -> list[Figure]:
    """Entropy and mutual information of every pixel of an input, side by side."""
    asked = [result.quantities.get(name) for name in ("entropy", "mutual_information")]
    if not is_classes(result) or any(one is None or one.value.ndim != 3 for one in asked):
        return []
    total, model = (one.value[row] for one in asked if one is not None)
    where = f"Pixels of input {row}"
    return [
        Figure(
            [_side_by_side((("entropy", total), ("mutual information", model)))],
            f"{where}: entropy on the left, all uncertainty; mutual information on the right, the model's part.",
            f"{where}: entropy from {short(float(total.min()))} to {short(float(total.max()))}, mutual information "
            f"from {short(float(model.min()))} to {short(float(model.max()))}.",
        )
    ]


def _side_by_side(maps: Sequence[tuple[str, Array]]) -> str:
    step = -(-max(maps[0][1].shape) // MAX_SIDE)
    parts = []
    for what, values in maps:
        low, high = float(values.min()), float(values.max())
        picture = png(values[::step, ::step], low, high)
        words = escape(f"{what}: {short(low)} (dark) to {short(high)} (light)")
        parts.append(
            f'<div class="map"><img src="{picture}" alt="" width="{values.shape[1]}" height="{values.shape[0]}">'
            f"<p>{words}</p></div>"
        )
    return f'<div class="maps">{"".join(parts)}</div>'


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
    size = f"{mean.shape[0]} × {mean.shape[1]}"
    return Figure(
        [_side_by_side((("mean", mean), ("spread", std)))],
        f"{where}: mean of a pass on the left, standard deviation on the right, {size} pixels.",
        f"{where}, {size} pixels. Mean from {short(float(mean.min()))} to {short(float(mean.max()))}; standard "
        f"deviation from {short(float(std.min()))} to {short(float(std.max()))}, largest at pixel "
        f"{tuple(int(i) for i in np.unravel_index(int(np.argmax(std)), std.shape))}.",
    )
