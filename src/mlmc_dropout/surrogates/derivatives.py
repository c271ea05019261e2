"""Gradients of outputs with respect to masks, or the reason why there are none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mlmc_dropout.errors import ModelError
from mlmc_dropout.sampling.sites import Site

__all__ = [
    "DerivativeError",
    "Gradients",
    "count_cost",
    "count_second",
    "differentiate",
    "differentiate_twice",
    "expandable",
]

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


Gradients = list[tuple[Tensor | None, ...]]


def differentiate(forward: Callable[[], Tensor], wanted: Sequence[Tensor], outputs: Sequence[int]) -> Gradients:
    """Gradients of outputs.

    Args:
        forward: Runs one or several passes; the last axis of its result runs over the outputs.
        wanted: Tensors with respect to which to differentiate.
        outputs: Indices of the outputs to differentiate.

    Returns:
        Per output, the gradients of its sum, one for each tensor in ``wanted`` (``None`` where the output does not
        depend on it).

    Raises:
        DerivativeError: If torch cannot differentiate the outputs.
    """
    with torch.inference_mode(False), torch.enable_grad(), _derivative_errors():
        return _gradients(_outputs_of(forward), wanted, outputs)


def count_cost(forward: Callable[[], Tensor], wanted: Sequence[Tensor], outputs: Sequence[int]) -> float:
    """What gradients cost.

    Counting makes torch take other kernels, with other roundings, so the gradients themselves are not used.

    Args:
        forward: As for :func:`differentiate`.
        wanted: As for :func:`differentiate`.
        outputs: As for :func:`differentiate`.

    Returns:
        Operations of gradients, with the forward pass, over those of the forward pass alone.

    Raises:
        DerivativeError: If torch cannot differentiate the outputs.
    """
    everything, forward_only = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.inference_mode(False), torch.enable_grad(), _derivative_errors(), everything:
        with forward_only:
            out = _outputs_of(forward)
        _gradients(out, wanted, outputs)
    flops = forward_only.get_total_flops()
    return everything.get_total_flops() / flops if flops else 1.0 + 2.0 * len(outputs)


def differentiate_twice(
    forward: Callable[[], Tensor],
    wanted: Sequence[Tensor],
    rows_first: Callable[[Sequence[Tensor]], Tensor],
    at_once: int,
) -> tuple[Tensor, Tensor]:
    """Gradients and second derivatives of all outputs.

    Args:
        forward: Runs one pass, (rows, width).
        wanted: Tensors with respect to which to differentiate.
        rows_first: Lays out derivatives with respect to these, with a leading axis each, as (n, rows, units).
        at_once: Products with the second derivatives that are computed together.

    Returns:
        The gradients, (rows, width, units), and second derivatives, (units, rows, width, units), at least in single
        precision.

    Raises:
        DerivativeError: If torch cannot differentiate the outputs twice.
    """
    gradients, matrices = [], []
    with torch.inference_mode(False), torch.enable_grad(), _derivative_errors():
        out = _outputs_of(forward)
        for k in range(out.shape[-1]):
            slopes = rows_first([slope[None] for slope in _slopes(out, k, wanted)])[0]
            rows, units = slopes.shape
            directions = torch.eye(units, dtype=slopes.dtype, device=slopes.device)[:, None].expand(-1, rows, -1)
            products = [rows_first(_products(slopes, wanted, few)) for few in directions.split(at_once)]
            gradients.append(slopes.detach())
            matrices.append(torch.cat(products).detach())
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    matrix = matrices[0][:, :, None] if len(matrices) == 1 else torch.stack(matrices, dim=2)
    return torch.stack(gradients, dim=1).to(dtype), matrix.to(dtype)


def count_second(forward: Callable[[], Tensor], wanted: Sequence[Tensor]) -> float:
    """What one product of a vector with the second derivatives of an output costs.

    Args:
        forward: As for :func:`differentiate_twice`.
        wanted: As for :func:`differentiate_twice`.

    Returns:
        Its operations over those of the forward pass.

    Raises:
        DerivativeError: If torch cannot differentiate the outputs twice.
    """
    forward_only, product = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.inference_mode(False), torch.enable_grad(), _derivative_errors():
        with forward_only:
            out = _outputs_of(forward)
        slopes = torch.cat([slope.flatten() for slope in _slopes(out, 0, wanted)])
        with product:
            _products(slopes, wanted, torch.ones_like(slopes)[None])
    flops = forward_only.get_total_flops()
    return product.get_total_flops() / flops if flops else 2.0


def _slopes(out: Tensor, output: int, wanted: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of an output's sum, to be differentiated again."""
    found = torch.autograd.grad(out[..., output].sum(), wanted, create_graph=True, allow_unused=True)
    return [torch.zeros_like(w) if slope is None else slope for w, slope in zip(wanted, found, strict=True)]


def _products(slopes: Tensor, wanted: Sequence[Tensor], directions: Tensor) -> list[Tensor]:
    """Derivatives of slopes along directions, (directions, *mask) each; 0 where slopes are constant."""
    found: Sequence[Tensor | None] = [None] * len(wanted)
    if slopes.requires_grad:
        found = torch.autograd.grad(
            slopes, wanted, directions, is_grads_batched=True, retain_graph=True, allow_unused=True
        )
    return [w.new_zeros(len(directions), *w.shape) if d is None else d for w, d in zip(wanted, found, strict=True)]


def _outputs_of(forward: Callable[[], Tensor]) -> Tensor:
    with torch.autograd.graph.disable_saved_tensors_hooks(_CHECKPOINTED):
        out = forward()
    if not out.requires_grad:
        raise DerivativeError(_why_constant(out))
    return out


def _gradients(out: Tensor, wanted: Sequence[Tensor], outputs: Sequence[int]) -> Gradients:
    last = outputs[-1]
    return [torch.autograd.grad(out[..., k].sum(), wanted, retain_graph=k != last, allow_unused=True) for k in outputs]


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
