"""Whether an output is affine in a tensor: read off the graph that autograd recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

__all__ = ["only_linear"]

# Backward nodes of operations that are linear in any one of their arguments.
_LINEAR = re.compile(
    r"(Add|Sub|Rsub|Neg|Mul|Div|Mm|Bmm|Addmm|Baddbmm|Addbmm|Dot|Mv|Linear|Convolution|T|Transpose|Permute|View|UnsafeView|"
    r"ReshapeAlias|Squeeze|Unsqueeze|Expand|Slice|Select|Split|SplitWithSizes|Unbind|Cat|Stack|Sum|Mean|Clone|Copy|ToCopy|"
    r"Alias|Index|IndexSelect|Gather|Repeat|ConstantPadNd|AvgPool[123]D|AdaptiveAvgPool[123]D|MkldnnLinear)Backwards?\d*$"
)
_PRODUCTS = re.compile(r"(Mul|Div|Mm|Bmm|Addmm|Baddbmm|Addbmm|Dot|Mv|Linear|Convolution|MkldnnLinear)Backward")


def only_linear(output: Tensor, source: Tensor) -> bool:
    """Whether nothing but linear operations leads from ``source``, a leaf of autograd's graph, to ``output``."""
    reaches: dict[Any, bool] = {None: False}  # which nodes depend on the source
    waiting = [output.grad_fn]
    while waiting:
        node = waiting[-1]
        inputs = [edge[0] for edge in node.next_functions] if node is not None else []
        missing = [before for before in inputs if before not in reaches]
        if node in reaches or missing:
            waiting = waiting[:-1] if node in reaches else waiting + missing
            continue
        through = [reaches[before] for before in inputs]
        reaches[node] = any(through) or getattr(node, "variable", None) is source
        if any(through) and not _linear_in(type(node).__name__, through):
            return False
    return True


def _linear_in(name: str, through: Sequence[bool]) -> bool:
    """Whether an operation is linear in those of its arguments that ``through`` marks."""
    if not _LINEAR.match(name):
        return False
    factors = through[1:] if name.startswith(("Add", "Badd")) and len(through) == 3 else through  # a sum and a product
    if name.startswith("Div"):
        return not any(through[1:])
    return sum(factors) <= 1 if _PRODUCTS.match(name) else True
