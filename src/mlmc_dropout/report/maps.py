"""Maps: estimates over inputs of two numbers, and outputs that are images."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report.blocks import Figure
from mlmc_dropout.report.colours import colour, png
from mlmc_dropout.report.formats import short
from mlmc_dropout.report.svg import NARROW, WIDE, Axis, Chart, Size
from mlmc_dropout.result import Result, leaves

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


def image_maps(result: Result, rows: Sequence[int]) -> list[Figure]:
    """Mean and spread of outputs that are images, for some inputs.

    Args:
        result: The estimate.
        rows: Which inputs.

    Returns:
        A figure per input; none if no output is an image.
    """
    for (name, shape), mean, std in zip(result.structure.names(), leaves(result.mean), leaves(result.std), strict=True):
        axes = _image_axes(shape)
        if axes is not None:
            return [_images(mean[i], std[i], axes, name, i) for i in rows[:MAX_IMAGES]]
    return []


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


def _images(mean: Array, std: Array, axes: tuple[int, int], name: str, row: int) -> Figure:
    """The channel with the largest spread, mean and spread side by side."""
    channel_axis = next((axis for axis in range(mean.ndim) if axis not in axes), None)
    channel, of_channel = 0, ""
    if channel_axis is not None:
        channel = int(np.argmax(np.square(std).sum(axis=axes)))
        mean, std = np.take(mean, channel, axis=channel_axis), np.take(std, channel, axis=channel_axis)
        of_channel = f", channel {channel}, the one with the largest spread"
    step = -(-max(mean.shape) // MAX_SIDE)
    parts = []
    for what, values in (("mean", mean), ("spread", std)):
        low, high = float(values.min()), float(values.max())
        picture = png(values[::step, ::step], low, high)
        words = escape(f"{what}: {short(low)} (dark) to {short(high)} (light)")
        parts.append(
            f'<div class="map"><img src="{picture}" alt="" width="{values.shape[1]}" height="{values.shape[0]}">'
            f"<p>{words}</p></div>"
        )
    where = f"{name or 'Output'} of input {row}{of_channel}"
    size = f"{mean.shape[0]} × {mean.shape[1]}"
    return Figure(
        [f'<div class="maps">{"".join(parts)}</div>'],
        f"{where}: mean of a pass on the left, standard deviation on the right, {size} pixels.",
        f"{where}, {size} pixels. Mean from {short(float(mean.min()))} to {short(float(mean.max()))}; standard "
        f"deviation from {short(float(std.min()))} to {short(float(std.max()))}, largest at pixel "
        f"{tuple(int(i) for i in np.unravel_index(int(np.argmax(std)), std.shape))}.",
    )
