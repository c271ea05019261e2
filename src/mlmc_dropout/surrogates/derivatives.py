"""Gradients of outputs with respect to masks, or the reason why there are none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mlmc_dropout.errors import ModelError
from mlmc_dropout.sampling.sites import Site

__all__ = ["DerivativeError", "differentiate", "expandable"]

_MANY_OUTPUTS = 3  # from which backward passes are batched
_MOST_NUMBERS = 1 << 22  # in directions of such a batch
_MAX_QUOTED = 120  # characters of an error message
# What torch raises where it cannot differentiate, and what models raise that behave differently with gradients on.
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError, ModelError)
_CHECKPOINTED = "saved tensors hooks, as of torch.utils.checkpoint, run the forward pass again without its masks"


class DerivativeError(ModelError):
    """The outputs have no derivatives with respect to the masks.

    Attributes:
        cause: Why, in a few words.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"method='control-variate' needs derivatives of the outputs in the masks, which do not exist: {cause}; "
            "use method='stratified' or 'auto', or give the model outputs that can be differentiated"
        )
        self.cause = cause

    def __reduce__(self) -> tuple[type[DerivativeError], tuple[str]]:  # workers send it to the main process
        return type(self), (self.cause,)


def expandable(site: Site) -> bool:
    """Whether a site is part of the expansion: it is active and its masks are keep bits, whose moments are known.

    Args:
        site: A dropout site.

    Returns:
        True if it is.
    """
    return site.active and site.expandable


def differentiate(
    forward: Callable[[], Tensor], wanted: Sequence[Tensor], outputs: Sequence[int], cost: float | None = None
) -> tuple[list[tuple[Tensor | None, ...]], float]:
    """Gradients of outputs, and what they cost.

    Args:
        forward: Runs one or several passes; the last axis of its result runs over the outputs.
        wanted: Tensors with respect to which to differentiate.
        outputs: Indices of the outputs to differentiate.
        cost: Their cost, if it is known; operations are counted otherwise.

    Returns:
        Per output, the gradients of its sum, one for each tensor in ``wanted`` (``None`` where the output does not
        depend on it); and the cost, in operations relative to those of ``forward`` alone.

    Raises:
        DerivativeError: If torch cannot differentiate the outputs.
    """
    counters = [FlopCounterMode(display=False) if cost is None else contextlib.nullcontext() for _ in range(2)]
    with torch.inference_mode(False), torch.enable_grad(), _derivative_errors(), counters[0]:
        with counters[1], torch.autograd.graph.disable_saved_tensors_hooks(_CHECKPOINTED):
            out = forward()
        if not out.requires_grad:
            raise DerivativeError(_why_constant(out))
        gradients = _one_by_one(out, wanted, outputs) if cost is None else _together(out, wanted, outputs)
    return gradients, _counted(counters, len(outputs)) if cost is None else cost


def _one_by_one(out: Tensor, wanted: Sequence[Tensor], outputs: Sequence[int]) -> list[tuple[Tensor | None, ...]]:
    last = outputs[-1]
    return [torch.autograd.grad(out[..., k].sum(), wanted, retain_graph=k != last, allow_unused=True) for k in outputs]


def _together(out: Tensor, wanted: Sequence[Tensor], outputs: Sequence[int]) -> list[tuple[Tensor | None, ...]]:
    """All backward passes at once, under vmap, where torch can do that."""
    if len(outputs) < _MANY_OUTPUTS or out.numel() * len(outputs) > _MOST_NUMBERS:
        return _one_by_one(out, wanted, outputs)
    directions = torch.zeros(len(outputs), *out.shape, dtype=out.dtype, device=out.device)
    directions[range(len(outputs)), ..., list(outputs)] = 1.0
    try:
        stacked = torch.autograd.grad(
            out, wanted, directions, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
    except RuntimeError:  # an operation without a batching rule
        return _one_by_one(out, wanted, outputs)
    return [tuple(None if g is None else g[k] for g in stacked) for k in range(len(outputs))]


def _counted(counters: Sequence[Any], outputs: int) -> float:
    """All operations over those of the forward pass."""
    everything, forward = (counter.get_total_flops() for counter in counters)
    return everything / forward if forward else 1.0 + 2.0 * outputs


@contextlib.contextmanager
def _derivative_errors() -> Iterator[None]:
    try:
        yield
    except DerivativeError:
        raise
    except _REFUSALS as error:
        raise DerivativeError(_shortened(error)) from error


def _why_constant(out: Tensor) -> str:
    if not out.is_floating_point():
        return f"the outputs are of type {str(out.dtype).removeprefix('torch.')}"
    return "autograd sees outputs that depend on nothing (argmax, threshold, detach or no_grad)"


def _shortened(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0].strip().rstrip(".")
    text = first if len(first) <= _MAX_QUOTED else first[: _MAX_QUOTED - 1].rsplit(" ", 1)[0] + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
