"""Gradients of outputs in masks, and a named reason where there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mlmc_dropout.errors import ModelError
from mlmc_dropout.sampling.sites import Site

__all__ = ["DerivativeError", "differentiate", "expandable", "mean_mask"]

_LONGEST = 120  # characters of an error that are quoted
# What torch raises where it cannot differentiate, and models that run in another way once gradients are recorded.
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError, ModelError)
_CHECKPOINTED = "saved tensors hooks, as of torch.utils.checkpoint, run the forward pass again without its masks"


class DerivativeError(ModelError):
    """The outputs have no derivatives in the masks; ``cause`` says why, in a few words."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"method='control-variate' needs derivatives of the outputs in the masks, which do not exist: {cause}; "
            "use method='stratified' or 'auto', or give the model outputs that can be differentiated"
        )
        self.cause = cause

    def __reduce__(self) -> tuple[type[DerivativeError], tuple[str]]:  # it may have to travel home from a worker
        return type(self), (self.cause,)


def expandable(site: Site) -> bool:
    """Whether a site is part of the expansion: its masks are keep bits, with the moments that are said to be known."""
    return site.active and getattr(site, "law", "bernoulli") == "bernoulli"


def mean_mask(site: Site) -> float:
    """Where a site's masks sit at the expansion point."""
    return float(getattr(site, "mean", 1.0 - site.p))


def differentiate(
    forward: Callable[[], Tensor], wanted: Sequence[Tensor], outputs: Sequence[int]
) -> tuple[list[tuple[Tensor | None, ...]], float]:
    """Gradients of some outputs (the last axis of what ``forward`` gives), and their cost: operations over its own.

    Args:
        forward: a pass, or several, whose last axis runs over the outputs.
        wanted: the tensors to differentiate with respect to; ``None`` comes back where an output ignores one.
        outputs: which outputs.

    Raises:
        DerivativeError: if torch cannot differentiate the outputs.
    """
    once, whole = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.inference_mode(False), torch.enable_grad(), _named_refusals(), whole:
        with once, torch.autograd.graph.disable_saved_tensors_hooks(_CHECKPOINTED):
            out = forward()
        if not out.requires_grad:
            raise DerivativeError(_constant(out))
        gradients: list[tuple[Tensor | None, ...]] = [
            torch.autograd.grad(out[..., k].sum(), wanted, retain_graph=k != outputs[-1], allow_unused=True)
            for k in outputs
        ]
    flops = once.get_total_flops()
    return gradients, whole.get_total_flops() / flops if flops else 1.0 + 2.0 * len(outputs)


@contextmanager
def _named_refusals() -> Iterator[None]:
    try:
        yield
    except DerivativeError:
        raise
    except _REFUSALS as error:
        raise DerivativeError(_in_short(error)) from error


def _constant(out: Tensor) -> str:
    if not out.is_floating_point():
        return f"the outputs are of type {str(out.dtype).removeprefix('torch.')}"
    return "autograd sees outputs that depend on nothing (argmax, threshold, detach or no_grad)"


def _in_short(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0].strip().rstrip(".")
    text = first if len(first) <= _LONGEST else first[: _LONGEST - 1].rsplit(" ", 1)[0] + " …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
