"""Optimisation steps of both benchmarks against the plain reference, with the same masks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from mlmc_dropout.errors import ConfigError
from mlmc_dropout.pinn import BoundaryLayer, Config, SourceInference
from mlmc_dropout.pinn.draws import LAG, TRAINING
from mlmc_dropout.pinn.problem import Draw, Problem
from mlmc_dropout.pinn.training import TrainingState, evaluator, new_drawer, new_state, step
from testing import pinn_reference as reference

STARTS = [0, 49]  # from 49, the second of three steps updates the multiplier; from 0, the first


def setting(problem: type[Problem], dtype: str = "float64") -> Config:
    """The paper's networks and constants; a learning rate that changes within the steps."""
    paper = problem.profile("paper")
    optimizer = replace(paper.optimizer, decay=0.5, decay_every=51)
    return replace(paper, dtype=dtype, points=40, compile=False, optimizer=optimizer)


def plain_loss(config: Config, model: nn.Module, draw: Draw, multiplier: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.linspace(0.0, 1.0, config.points, dtype=torch.float64).to(config.torch_dtype)[:, None]
    prepare = reference.given_masks(model.eval(), draw.masks)
    if isinstance(config.equation, BoundaryLayer):
        return reference.boundary_layer(model, x, multiplier, config.repeats, prepare)
    return reference.source_inference(model, x, multiplier, draw.noise, prepare)


def plain_steps(config: Config, first: int, count: int, multiplier: Tensor) -> tuple[list[Tensor], Tensor]:
    """``count`` epochs from the start weights as the equations say; weights and multiplier afterwards."""
    model = new_state(config).model
    drawer = new_drawer(config, model)
    optimizer = torch.optim.Adam(model.parameters(), fused=False, foreach=False)
    for epoch in range(first, first + count):
        optimizer.param_groups[0]["lr"] = 1e-3 * 0.5 ** (epoch // 51)
        optimizer.zero_grad()
        (draw,) = drawer.block(TRAINING, epoch, 1, 5)
        loss, constraint = plain_loss(config, model, draw, multiplier)
        loss.backward()
        if epoch % 50 == 0:
            if isinstance(config.equation, SourceInference):
                (lag,) = drawer.block(LAG, epoch, 1, 20)
                constraint = plain_loss(config, model, lag, multiplier)[1]
            multiplier = multiplier + {40: 2.5e-5, 2: 0.01}[len(multiplier)] * constraint
        optimizer.step()
    return [p.detach() for p in model.parameters()], multiplier


def our_steps(config: Config, first: int, count: int, multiplier: Tensor) -> TrainingState:
    state = new_state(config)
    state.epoch, state.multiplier = first, multiplier
    drawer, evaluate = new_drawer(config, state.model), evaluator(config, state.model)
    for epoch in range(first, first + count):
        (draw,) = drawer.block(TRAINING, epoch, 1, config.repeats)
        step(config, state, evaluate, drawer, draw)
    return state


def start_multiplier(config: Config) -> Tensor:
    shape = config.equation.multiplier(config.points).shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(config.torch_dtype)


@pytest.mark.parametrize("first", STARTS)
@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference])
def test_steps_equal_the_plain_reference(problem: type[Problem], first: int) -> None:
    config = setting(problem)
    multiplier = start_multiplier(config)
    weights, moved = plain_steps(config, first, 3, multiplier)
    state = our_steps(config, first, 3, multiplier)
    assert state.epoch == first + 3
    assert not torch.equal(moved, multiplier)
    torch.testing.assert_close(state.multiplier, moved, rtol=1e-11, atol=1e-13)
    for ours, theirs in zip(state.model.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference])
def test_single_precision_step_equals_the_plain_reference(problem: type[Problem]) -> None:
    config = setting(problem, "float32")
    multiplier = start_multiplier(config)
    weights, moved = plain_steps(config, 0, 1, multiplier)
    state = our_steps(config, 0, 1, multiplier)
    torch.testing.assert_close(state.multiplier, moved, rtol=1e-4, atol=1e-6)
    moves = [(a.detach() - b).abs().max() for a, b in zip(state.model.parameters(), weights, strict=True)]
    # Adam's first step has size 1e-3 in every weight; a gradient of rounding size may choose the other sign.
    assert float(torch.stack(moves).median()) < 1e-6


@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference])
def test_other_passes_give_another_step(problem: type[Problem]) -> None:
    """The comparison above can fail: with the passes of the next epoch it does."""
    config = setting(problem)
    multiplier = start_multiplier(config)
    weights, _ = plain_steps(config, 1, 1, multiplier)
    other = our_steps(config, 2, 1, multiplier)
    pairs = zip(other.model.parameters(), weights, strict=True)
    assert any(float((a.detach() - b).abs().max()) > 1e-5 for a, b in pairs)


@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference])
def test_losses_average_over_passes_as_stated(problem: type[Problem]) -> None:
    """Forward residuals are averaged before squaring, inverse losses after: splitting the passes tells them apart."""
    config = setting(problem)
    model = new_state(config).model
    drawer, evaluate = new_drawer(config, model), evaluator(config, model)
    (draw,) = drawer.block(TRAINING, 0, 1, 4)
    multiplier = start_multiplier(config)
    whole = evaluate(draw, multiplier)[1].sum()
    halves = [Draw(tuple(mask[part] for mask in draw.masks), draw.noise[part]) for part in (slice(0, 2), slice(2, 4))]
    split = torch.stack([evaluate(half, multiplier)[1].sum() for half in halves]).mean()
    if problem is BoundaryLayer:
        assert float(split - whole) > 1e-4
    else:
        torch.testing.assert_close(split, whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler has some of its own
@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference])
def test_compiled_loss_equals_eager(problem: type[Problem]) -> None:
    config = setting(problem)
    state = new_state(config)
    drawer, evaluate = new_drawer(config, state.model), evaluator(config, state.model)
    (draw,) = drawer.block(TRAINING, 0, 1, config.repeats)
    results = []
    for function in (evaluate, torch.compile(evaluate, dynamic=False)):
        state.optimizer.zero_grad()
        total, _, constraint = function(draw, start_multiplier(config))
        total.backward()
        grads = [p.grad.clone() for p in state.model.parameters() if p.grad is not None]
        results.append([total.detach(), constraint, *grads])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("omega", "shared"), [("pass", True), ("point", False)])
def test_a_scalar_omega_is_one_draw_for_all_points(omega: str, shared: bool) -> None:
    """Other noise at all points but the first changes the target only if every point has its own."""
    config = replace(SourceInference.profile("quick"), equation=SourceInference(omega=omega))
    state = new_state(config)
    (draw,) = new_drawer(config, state.model).block(TRAINING, 0, 1, config.repeats)
    other = draw.noise.clone()
    other[:, 1:] = torch.flip(other[:, 1:], dims=(1,))
    evaluate = evaluator(config, state.model)
    terms = [evaluate(draw._replace(noise=noise), state.multiplier)[1] for noise in (draw.noise, other)]
    assert bool(torch.equal(*terms)) == shared


def test_an_unknown_omega_is_refused() -> None:
    with pytest.raises(ConfigError, match="point, pass: got 'grid'"):
        SourceInference(omega="grid")
