"""Linear maps whose result for a row does not depend on the rows beside it, by oneDNN where that pays.

Passes are computed in chunks of any size; equal bits for every row make results the same whatever the chunks are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["linear_map", "suits_onednn"]

_HAS_ONEDNN_LINEAR = hasattr(torch.ops.mkldnn, "_linear_pointwise")  # what torch.compile calls for linear maps
_WIDE = 8  # inputs and outputs below which a product is no work for oneDNN
_DEEP = 8192  # inputs up to which its threads do not share the sum of a row (seen above 16384), which changes bits
_BROAD = 1 << 15  # outputs: the weights of more are read once per few passes, and arranging them takes longer
_ROWS = 16  # linear maps are computed for multiples of so many rows


def linear_map(func: Callable[..., Any], input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear map whose result for a row has the same bits however many rows there are.

    BLAS chooses its kernels by the shape. With the rows filled up to a multiple of 16 the choice does
    not change the order of summation within a row (seen with MKL; elsewhere it does no harm).

    Args:
        func: Torch's own function, where oneDNN is not used.
        input: The rows, (*lead, inputs).
        weight: The weights, (outputs, inputs).
        bias: What is added to every row alike, or ``None``.

    Returns:
        The rows of outputs, (*lead, outputs).
    """
    *lead, width = input.shape
    count = math.prod(lead)
    missing = -count % _ROWS if input.device.type == "cpu" else 0
    rows = input.reshape(count, width)  # two axes: a fused product and sum
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, width)])
    function = _by_onednn if _onednn_pays(input, weight, bias) else func
    return function(rows, weight, bias)[:count].view(*lead, len(weight))


def suits_onednn(x: Tensor) -> bool:
    """Whether oneDNN can compute functions of a tensor.

    Args:
        x: The tensor.
    """
    plain = x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided
    return plain and x.numel() > 0 and not torch.is_grad_enabled() and torch.backends.mkldnn.is_available()


def _onednn_pays(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN computes a linear map; the number of rows does not count, so that all parts are computed alike.

    It reads as many numbers from the bias as there are outputs, one after the other, whatever its shape and strides.
    """
    if bias is not None and not (bias.shape == weight.shape[:1] and bias.is_contiguous()):
        return False
    given = [weight] if bias is None else [weight, bias]
    plain = all(type(t) in (Tensor, nn.Parameter) and t.dtype == torch.float32 for t in given)
    plain = plain and not torch.is_autocast_enabled("cpu")  # which would compute torch's own in half precision
    plain = plain and len(weight) <= _BROAD
    return (
        plain and min(weight.shape) >= _WIDE and weight.shape[1] <= _DEEP and suits_onednn(input) and _HAS_ONEDNN_LINEAR
    )


def _by_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear map by oneDNN, which uses wide vectors on processors where torch's own library does not.

    The weights are arranged for it in a call of its own, which a recording does not repeat.
    """
    arranged = torch.ops.mkldnn._reorder_linear_weight(weight, len(input))
    return torch.ops.mkldnn._linear_pointwise(input, arranged, bias, "none", [], "")  # type: ignore[no-any-return]
