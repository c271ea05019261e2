"""Powers of two by which numbers are divided before they are squared.

The squares of outputs below 1e-19, or above 1e19, do not fit single precision, and those that are lost would be missing
in a variance. Division by a power of two is exact, so that squares of other outputs keep their bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["binary_scale", "is_usual", "sum_of_squares"]

_USUAL = 20  # exponents up to which numbers are squared as they are


def binary_scale(size: Tensor) -> Tensor:
    """The power of two below each size; 1 for sizes that can be squared as they are.

    Args:
        size: Sizes, at least 0.

    Returns:
        The powers, of the same shape and type.

    Example:
        >>> binary_scale(torch.tensor([0.0, 0.3, 1e-25, 3e25])).log2().tolist()
        [0.0, 0.0, -84.0, 84.0]
    """
    exponent = torch.frexp(size).exponent - 1
    unusual = (exponent.abs() > _USUAL) & (size > 0) & size.isfinite()
    return torch.ldexp(torch.ones_like(size), torch.where(unusual, exponent, 0))


def is_usual(scale: Tensor) -> bool:
    """Whether nothing has to be divided.

    Args:
        scale: Powers of two.
    """
    return bool((scale == 1).all())


def sum_of_squares(values: Tensor) -> Tensor:
    """Σ v² over the last axis, whatever the size of the numbers.

    Args:
        values: The numbers v.

    Returns:
        The sums, in double precision.

    Example:
        >>> sum_of_squares(torch.tensor([[3e-25, 4e-25], [3.0, 4.0]])).tolist()[1]
        25.0
    """
    scale = binary_scale(values.abs().amax(dim=-1)) if values.shape[-1] else values.new_ones(values.shape[:-1])
    scaled = values if is_usual(scale) else values / scale.unsqueeze(-1)
    return scaled.square().sum(dim=-1).double() * scale.double().square()
