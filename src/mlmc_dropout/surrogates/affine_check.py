"""Whether an output is affine in a tensor, according to the graph that autograd recorded."""

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
    """Whether only linear operations lead from one tensor to another, according to autograd's graph.

    Args:
        output: A tensor computed with gradients enabled.
        source: A leaf of autograd's graph.

    Returns:
        True if ``output`` is affine in ``source``, or does not depend on it.
    """
    depends: dict[Any, bool] = {None: False}  # which nodes depend on the source
    stack = [output.grad_fn]
    while stack:
        node = stack[-1]
        inputs = [edge[0] for edge in node.next_functions] if node is not None else []
        unvisited = [before for before in inputs if before not in depends]
        if node in depends or unvisited:
            stack = stack[:-1] if node in depends else stack + unvisited
            continue
        dependent = [depends[before] for before in inputs]
        depends[node] = any(dependent) or getattr(node, "variable", None) is source
        if any(dependent) and not _linear_in(type(node).__name__, dependent):
            return False
    return True


def _linear_in(name: str, dependent: Sequence[bool]) -> bool:
    """Whether an operation is linear in those of its arguments that ``dependent`` marks."""
    if not _LINEAR.match(name):
        return False
    is_sum_and_product = name.startswith(("Add", "Badd")) and len(dependent) == 3
    factors = dependent[1:] if is_sum_and_product else dependent
    if name.startswith("Div"):
        return not any(dependent[1:])
    return sum(factors) <= 1 if _PRODUCTS.match(name) else True
