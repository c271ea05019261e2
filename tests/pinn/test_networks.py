"""Networks, draws and exact solutions: the facts of both benchmarks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mlmc_dropout.errors import InputError
from mlmc_dropout.pinn import BoundaryLayer, Poisson, SourceInference
from mlmc_dropout.pinn.draws import LAG, TRAINING
from mlmc_dropout.pinn.networks import SharedTrunk, dropout_layers, mlp
from mlmc_dropout.pinn.problem import Problem
from mlmc_dropout.pinn.runs import new_model
from mlmc_dropout.pinn.training import new_drawer
from testing.pinn_reference import gradient

X = torch.linspace(0.0, 1.0, 21, dtype=torch.float64)[:, None]


def test_forward_network() -> None:
    model = new_model(BoundaryLayer.profile("paper"))
    sizes = [(layer.in_features, layer.out_features) for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert sizes == [(1, 64), (64, 64), (64, 64), (64, 1)]
    assert [layer.p for layer in dropout_layers(model)] == [0.1] * 3
    assert sum(isinstance(layer, nn.SiLU) for layer in model.modules()) == 3


def test_inverse_network() -> None:
    model = new_model(SourceInference.profile("paper"))
    sizes = [(layer.in_features, layer.out_features) for layer in model.modules() if isinstance(layer, nn.Linear)]
    trunk = [(1, 128), (128, 128), (128, 128), (128, 128)]
    assert sizes == [*trunk, (128, 1), (128, 128), (128, 1)]
    assert [layer.p for layer in dropout_layers(model)] == [0.2] * 4
    assert isinstance(model, SharedTrunk)
    assert isinstance(model.trunk[-1], nn.Linear)


def test_inverse_network_starts_as_glorot() -> None:
    for layer in new_model(SourceInference.profile("paper")).modules():
        if isinstance(layer, nn.Linear):
            bound = 5.0 / 3.0 * math.sqrt(6.0 / (layer.in_features + layer.out_features))
            assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound * (1 + 1e-6)
            assert not layer.bias.any()


def test_both_outputs_vanish_at_the_ends_in_every_pass() -> None:
    model = new_model(SourceInference.profile("paper")).train()
    out = model(torch.tensor([[0.0], [1.0]]))
    assert not out["u"].any()
    assert not out["f"].any()


def test_weights_follow_from_the_seed() -> None:
    paper = BoundaryLayer.profile("quick")
    one, again = new_model(paper).state_dict(), new_model(paper).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_unknown_activation() -> None:
    with pytest.raises(InputError, match="unknown activation 'relu'; use one of silu"):
        mlp(4, 1, "relu", 0.1)


def test_draws_do_not_depend_on_blocks() -> None:
    config = SourceInference.profile("quick")
    drawer = new_drawer(config, new_model(config))
    block = drawer.block(TRAINING, 3, 5, 2)
    (alone,) = drawer.block(TRAINING, 6, 1, 2)
    (lag,) = drawer.block(LAG, 6, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(block[3].masks, alone.masks, strict=True))
    assert torch.equal(block[3].noise, alone.noise)
    assert not torch.equal(lag.noise, alone.noise)
    assert not torch.equal(block[2].noise, alone.noise)
    assert not torch.equal(alone.masks[0], alone.masks[1])


def test_draws_have_the_stated_law() -> None:
    """Means within five standard errors; the noise is uniform, the masks keep with probability 1 - p."""
    config = SourceInference.profile("quick")
    drawer = new_drawer(config, new_model(config))
    draws = drawer.block(TRAINING, 0, 500, 5)
    noise = torch.stack([draw.noise for draw in draws]).double()
    kept = torch.stack([draw.masks[1] for draw in draws]).double()
    assert abs(float(noise.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / noise.numel())
    assert abs(float(noise.var()) - 1 / 12) < 5 * math.sqrt(1 / 180 / noise.numel())
    assert abs(float(kept.mean()) - 0.8) < 5 * math.sqrt(0.16 / kept.numel())


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 1e-3])
def test_exact_boundary_layer_solves_its_equation(epsilon: float) -> None:
    problem, x = BoundaryLayer(epsilon=epsilon), X.clone().requires_grad_()
    u = problem.exact_mean(x)["u"]
    second = gradient(gradient(u, x), x)
    torch.testing.assert_close(u - epsilon**2 * second, torch.ones_like(u), rtol=0, atol=1e-9)
    assert float(u.detach()[[0, -1]].abs().max()) < 1e-12
    printed = 1 - (torch.exp(X / 1.0) + torch.exp(1.0 - X)) / (1 + math.e)
    torch.testing.assert_close(BoundaryLayer().exact_mean(X)["u"], printed)


def test_exact_source_solves_its_equation() -> None:
    problem, x = SourceInference(), X.clone().requires_grad_()
    exact = problem.exact_mean(x)
    torch.testing.assert_close(-gradient(gradient(exact["u"], x), x), exact["f"])
    # omega has variance delta^2 / 12 and multiplies both
    spread = problem.exact_variance(X)
    torch.testing.assert_close(spread["u"], 0.025**2 / 12 * exact["u"].detach() ** 2)
    torch.testing.assert_close(spread["f"], 0.025**2 / 12 * exact["f"].detach() ** 2)


@pytest.mark.parametrize("problem", [BoundaryLayer(), Poisson()])
def test_forward_problems_have_no_exact_variance(problem: Problem) -> None:
    assert not problem.exact_variance(X)["u"].any()
    assert problem.exact_mean(X)["u"].shape == X.shape
