"""Jets against nested autograd, in float64: values, derivatives, and gradients of losses made of them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from mlmc_dropout.errors import InputError
from mlmc_dropout.pinn.jets import Jet, derivatives, jet, multiply, value
from mlmc_dropout.pinn.networks import ACTIVATIONS, initialized, mlp
from testing.pinn_reference import given_masks, gradient

PASSES, POINTS, WIDTH, P = 3, 7, 10, 0.3


def patterns(depth: int, kind: str) -> list[Tensor]:
    shape = (PASSES, POINTS, WIDTH)
    if kind == "all kept":
        return [torch.ones(shape, dtype=torch.uint8)] * depth
    if kind == "all dropped":
        return [torch.zeros(shape, dtype=torch.uint8)] * depth
    if kind == "one kept":
        return [(torch.arange(WIDTH) == level % WIDTH).to(torch.uint8).expand(shape) for level in range(depth)]
    bits = torch.Generator().manual_seed(depth)
    return [(torch.rand(shape, generator=bits) >= P).to(torch.uint8) for _ in range(depth)]


def network(activation: str, depth: int) -> nn.Sequential:
    model = initialized(lambda: mlp(WIDTH, depth, activation, P), "xavier", seed=depth, dtype=torch.float64)
    assert isinstance(model, nn.Sequential)
    return model.eval()


def nested(model: nn.Module, x: Tensor, masks: list[Tensor]) -> Jet:
    prepare = given_masks(model, masks)
    parts = []
    for number in range(PASSES):
        prepare(number, slice(None))
        at = x.clone().requires_grad_()
        u = model(at)
        first = gradient(u, at)
        parts.append((u, first, gradient(first, at)))
    return Jet(*(torch.stack(part) for part in zip(*parts, strict=True)))


def loss(u: Jet) -> Tensor:
    """A loss in which every component matters, linear and squared."""
    return (u.value - 0.3 * u.second + 0.1).square().mean() + (u.first * u.second).mean() + u.first.sum()


def gradients(model: nn.Module, u: Jet) -> list[Tensor]:
    grads = torch.autograd.grad(loss(u), list(model.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(grads, model.parameters(), strict=True)]


CASES = list(itertools.product(ACTIVATIONS, (1, 2, 3, 5), ("random", "all kept", "all dropped", "one kept")))


@pytest.mark.parametrize(("activation", "depth", "kind"), CASES)
def test_jet_equals_nested_autograd(activation: str, depth: int, kind: str) -> None:
    model, masks = network(activation, depth), patterns(depth, kind)
    x = torch.linspace(-1.0, 2.0, POINTS, dtype=torch.float64)[:, None]
    ours, theirs = jet(model, x, masks), nested(model, x, masks)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
    for mine, other in zip(gradients(model, ours), gradients(model, theirs), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)


def test_other_masks_give_other_jets() -> None:
    model, x = network("silu", 2), torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64)[:, None]
    masks = patterns(2, "random")
    masks[1] = masks[1].clone()
    masks[1][0, 0, 0] ^= 1
    difference = (jet(model, x, masks).second - nested(model, x, patterns(2, "random")).second).abs()
    assert difference[0, 0] > 1e-6
    assert (difference > 1e-10).sum() == 1


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives_stay_right_far_from_zero(activation: str) -> None:
    layer = ACTIVATIONS[activation]()
    z = torch.tensor(
        [-800.0, -50.0, -19.0, 0.0, 1e-9, 19.0, 20.5, 50.0, 800.0], dtype=torch.float64, requires_grad=True
    )
    a = layer(z)
    first = gradient(a, z)
    second = gradient(first, z)
    for mine, other in zip(derivatives(layer, z.detach()), (a, first, second), strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=1e-10, atol=1e-10)


def test_softplus_keeps_its_sharpness() -> None:
    layer = nn.Softplus(beta=3.0)
    z = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64, requires_grad=True)
    first = gradient(layer(z), z)
    torch.testing.assert_close(derivatives(layer, z.detach())[2], gradient(first, z).detach(), rtol=1e-10, atol=1e-10)


def test_linear_layers_in_a_row_are_composed() -> None:
    layers = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 6), nn.Linear(6, 5, bias=False), nn.Linear(5, 1))
    layers = layers.double()
    x = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64)[:, None].requires_grad_()
    u = jet(layers, x, [])
    torch.testing.assert_close(u.value, layers(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(u.first, gradient(layers(x), x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(value(layers, x, []), layers(x), rtol=1e-12, atol=1e-12)


def test_product_rule() -> None:
    x = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64)[:, None].requires_grad_()
    wave = Jet(torch.sin(x), torch.cos(x), -torch.sin(x))
    edge = Jet(x * (1 - x), 1 - 2 * x, torch.full_like(x, -2.0))
    product = multiply(edge, wave)
    first = gradient(x * (1 - x) * torch.sin(x), x)
    torch.testing.assert_close(product.first, first)
    torch.testing.assert_close(product.second, gradient(first, x))


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.GELU(approximate="tanh"), nn.BatchNorm1d(3)])
def test_layers_without_a_rule_are_refused_by_name(layer: nn.Module) -> None:
    with pytest.raises(InputError, match=type(layer).__name__):
        jet([nn.Linear(1, 3), layer], torch.zeros(2, 1), [])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_dropout_layer_needs_its_mask(count: int) -> None:
    masks = patterns(count, "random")
    with pytest.raises(InputError, match=f"2 dropout layers need 2 masks: got {count}"):
        jet(network("tanh", 2), torch.zeros(POINTS, 1, dtype=torch.float64), masks)
