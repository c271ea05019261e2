"""Second-order Taylor propagation: (u, u', u'') through layers and dropout masks.

A jet of a function ``h`` of one scalar ``x`` is the triple ``(h, h', h'')`` at given points.
Each layer maps the jet of its input to the jet of its output by the chain rule, so one forward
sweep yields the derivatives that a differential equation needs, and one ordinary backward sweep
yields the gradients of a loss made of them. Nested reverse-mode differentiation needs three
sweeps for the same numbers.

Rules, with ``z`` the input of a layer:

====================  ==========================================================
affine ``Wz + b``     ``(Wz + b, Wz', Wz'')``
activation ``a(z)``   ``(a(z), a'(z) z', a''(z) z'^2 + a'(z) z'')``
mask ``m``            ``(mz, mz', mz'') / (1 - p)``
product ``gz``        ``(gz, g'z + gz', g''z + 2 g'z' + gz'')``
====================  ==========================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlmc_dropout.errors import InputError
from mlmc_dropout.pinn.networks import Sine

__all__ = ["Jet", "derivatives", "jet", "multiply", "value"]


class Jet(NamedTuple):
    """The value and the first two derivatives of a function of ``x``, elementwise.

    Attributes:
        value: ``h``.
        first: ``h'``.
        second: ``h''``.
    """

    value: Tensor
    first: Tensor
    second: Tensor


class Affine(NamedTuple):
    """An affine map ``z -> z W^T + b``: one linear layer, or several with nothing between them.

    Attributes:
        weight: ``W``, (outputs, inputs).
        bias: ``b``, (outputs,), or None for zero.
    """

    weight: Tensor
    bias: Tensor | None

    def __call__(self, z: Tensor) -> Tensor:
        return functional.linear(z, self.weight, self.bias)


class Masked(NamedTuple):
    """A dropout layer under a known mask: ``z -> z * mask / (1 - p)``.

    Attributes:
        mask: 1 keeps a unit, 0 drops it.
        p: Dropout rate.
    """

    mask: Tensor
    p: float

    def __call__(self, z: Tensor) -> Tensor:
        return z * self.factor(z.dtype)

    def factor(self, dtype: torch.dtype) -> Tensor:
        """``mask / (1 - p)``; at ``p = 1`` every unit is dropped and nothing remains to be scaled.

        Args:
            dtype: Type of the factor.

        Returns:
            What the units are multiplied by, in the shape of the mask.
        """
        return self.mask.to(dtype) * (1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0)


Step = Affine | Masked | nn.Module


def jet(layers: Iterable[nn.Module], x: Tensor | Jet, masks: Sequence[Tensor]) -> Jet:
    """The jet of ``layers`` at the points ``x``, one mask per ``nn.Dropout`` in order.

    What comes before the first mask is computed once, whatever the number of passes.

    Args:
        layers: Linear layers, activations and dropout layers, in order.
        x: Points ``(N, 1)``, or the jet of what comes before.
        masks: 1 keeps a unit, 0 drops it; each broadcasts with ``(passes, N, units)``.

    Returns:
        The jet of the last layer's output.

    Raises:
        InputError: If the number of masks is not that of the dropout layers, or a layer has no known derivatives.

    Examples:
        >>> layer = nn.Linear(1, 1, dtype=torch.float64)
        >>> u = jet([layer, nn.Tanh()], torch.zeros(3, 1, dtype=torch.float64), masks=[])
        >>> bool((u.first == layer.weight * (1 - u.value**2)).all())
        True
    """
    state = x if isinstance(x, Jet) else Jet(x, torch.ones_like(x), torch.zeros_like(x))
    at_input = not isinstance(x, Jet)
    for step in fold(layers, masks):
        match step:
            case Affine():
                state = _affine_input(step, state.value) if at_input else _affine(step, state)
            case Masked():
                factor = step.factor(state.value.dtype)
                state = Jet(state.value * factor, state.first * factor, state.second * factor)
            case _:
                state = _activation(step, state)
        at_input = False
    return state


def value(layers: Iterable[nn.Module], z: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """The output of ``layers`` under ``masks``: the first component of :func:`jet` alone.

    Args:
        layers: Linear layers, activations and dropout layers, in order.
        z: Inputs ``(..., N, units)``.
        masks: One per dropout layer, as for :func:`jet`.

    Returns:
        The output of the last layer.

    Raises:
        InputError: If the number of masks is not that of the dropout layers.
    """
    for step in fold(layers, masks):
        z = step(z)
    return z


def multiply(g: Jet, z: Jet) -> Jet:
    """The jet of the product ``g z``.

    Args:
        g: Jet of a factor.
        z: Jet of the other factor; shapes broadcast.

    Returns:
        The jet of the product.

    Examples:
        >>> x = torch.tensor(3.0)
        >>> line = Jet(x, torch.tensor(1.0), torch.tensor(0.0))
        >>> [float(part) for part in multiply(line, line)]
        [9.0, 6.0, 2.0]
    """
    first = g.first * z.value + g.value * z.first
    second = g.second * z.value + 2.0 * (g.first * z.first) + g.value * z.second
    return Jet(g.value * z.value, first, second)


def fold(layers: Iterable[nn.Module], masks: Sequence[Tensor]) -> Iterator[Step]:
    """``layers`` with their masks, every run of linear layers composed into one affine map.

    Where two linear layers meet without an activation, ``W2 (W1 z + b1) + b2`` costs less as ``(W2 W1) z + (W2 b1 +
    b2)``, because there are far more rows ``z`` than units.

    Args:
        layers: Linear layers, activations and dropout layers, in order.
        masks: One per dropout layer.

    Yields:
        Affine maps, masked dropout layers and activations, in order.

    Raises:
        InputError: If the number of masks is not that of the dropout layers.
    """
    pending: Affine | None = None
    for layer in _masked(list(layers), masks):
        if isinstance(layer, nn.Linear):
            nxt = Affine(layer.weight, layer.bias)
            pending = nxt if pending is None else _compose(nxt, pending)
            continue
        if pending is not None:
            yield pending
            pending = None
        yield layer
    if pending is not None:
        yield pending


def _masked(layers: list[nn.Module], masks: Sequence[Tensor]) -> Iterator[nn.Module | Masked]:
    count = sum(isinstance(layer, nn.Dropout) for layer in layers)
    if count != len(masks):
        raise InputError(f"{count} dropout layers need {count} masks: got {len(masks)}")
    remaining = iter(masks)
    for layer in layers:
        yield Masked(next(remaining), layer.p) if isinstance(layer, nn.Dropout) else layer


def _compose(outer: Affine, inner: Affine) -> Affine:
    bias = outer.bias
    if inner.bias is not None:
        moved = outer.weight @ inner.bias
        bias = moved if bias is None else moved + bias
    return Affine(outer.weight @ inner.weight, bias)


def _affine(step: Affine, z: Jet) -> Jet:
    return Jet(step(z.value), functional.linear(z.first, step.weight), functional.linear(z.second, step.weight))


def _affine_input(step: Affine, x: Tensor) -> Jet:
    """The first layer: ``x' = 1`` and ``x'' = 0``, so nothing has to be multiplied."""
    first = step.weight.sum(dim=1).expand(*x.shape[:-1], -1)
    return Jet(step(x), first, torch.zeros_like(first))


def _activation(layer: nn.Module, z: Jet) -> Jet:
    a, a1, a2 = derivatives(layer, z.value)
    return Jet(a, a1 * z.first, a2 * z.first.square() + a1 * z.second)


def derivatives(layer: nn.Module, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``a(z), a'(z), a''(z)`` of an activation layer.

    Args:
        layer: SiLU, Tanh, Sine, GELU (erf) or Softplus.
        z: Where, any shape.

    Returns:
        Value, first and second derivative, in the shape of ``z``.

    Raises:
        InputError: For any other layer.

    Examples:
        >>> [float(part) for part in derivatives(nn.Tanh(), torch.tensor(0.0))]
        [0.0, 1.0, -0.0]
    """
    match layer:
        case nn.SiLU():
            s = torch.sigmoid(z)
            return z * s, s * (1.0 + z * (1.0 - s)), s * (1.0 - s) * (2.0 + z * (1.0 - 2.0 * s))
        case nn.Tanh():
            t = torch.tanh(z)
            slope = 1.0 - t * t
            return t, slope, -2.0 * t * slope
        case Sine():
            wave = torch.sin(z)
            return wave, torch.cos(z), -wave
        case nn.GELU(approximate="none"):
            density = torch.exp(-0.5 * z * z) * (1.0 / math.sqrt(2.0 * math.pi))
            cumulative = 0.5 * (1.0 + torch.erf(z * math.sqrt(0.5)))
            return z * cumulative, cumulative + z * density, density * (2.0 - z * z)
        case nn.Softplus():
            # torch continues softplus by a straight line beyond a threshold; so do its derivatives.
            s = torch.sigmoid(layer.beta * z).masked_fill(layer.beta * z > layer.threshold, 1.0)
            return functional.softplus(z, layer.beta, layer.threshold), s, layer.beta * s * (1.0 - s)
        case _:
            supported = "SiLU, Tanh, Sine, GELU (erf), Softplus"
            raise InputError(f"no second derivative is known for the layer {layer!r}; use one of {supported}")
