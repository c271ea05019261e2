"""Kernels recorded once and played with other masks and inputs: the same bits as the function, or no tape."""

from __future__ import annotations

import pytest
import torch

from mlmc_dropout.sampling.tape import OtherShapesError, record


def twice(function, *masks):
    """A function's tape, and whether it gives the function's result for other masks."""
    _, tape = record(function, masks)
    if tape is None:
        return None
    others = [1 - mask for mask in masks]
    return torch.equal(tape.play(others), function(others))


MASK = torch.tensor([1.0, 0.0, 1.0])  # three passes of one unit
CONSTANT = torch.tensor([2.0, 3.0, 5.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda m: (m[0] * CONSTANT).sum().exp(),
        lambda m: (m[0] + 1).mul_(CONSTANT).add_(1),
        lambda m: torch.cat([m[0], CONSTANT.exp(), m[0].view(3, 1).squeeze(1)]),
        lambda m: torch.stack(torch.sort(m[0] * CONSTANT)[:1]).max(dim=1).values,
        lambda m: m[0].exp() * CONSTANT.clone().mul_(2),
        lambda m: CONSTANT * 2,
    ],
)
def test_what_can_be_played_is(function):
    assert twice(function, MASK)


@pytest.mark.parametrize(
    "function",
    [
        lambda m: CONSTANT * float(m[0].sum()),
        lambda m: m[0] * torch.rand(3),
        lambda m: CONSTANT.clone().mul_(m[0]),
        lambda m: m[0] * (one := CONSTANT.clone()) + one.mul_(2) * m[0],
        lambda m: CONSTANT if (m[0] * 2).max() > 1 else CONSTANT * 2,
    ],
    ids=["numbers", "random numbers", "writing on a constant", "changing a constant in use", "decisions"],
)
def test_what_cannot_be_played_has_no_tape(function):
    assert twice(function, MASK) is None


def hidden(masks):
    """Numpy works out of sight of torch's kernels: what comes back looks like a constant."""
    return masks[0] + torch.from_numpy(masks[0].numpy() * 2)


def test_what_numpy_computes_looks_like_a_constant():
    assert twice(hidden, MASK) is False


def test_played_values_are_freed_when_nobody_needs_them():
    """A chain of a hundred kernels holds two values at a time, not a hundred."""

    def chain(masks):
        value = masks[0]
        for _ in range(100):
            value = value + 1
        return value

    _, tape = record(chain, [MASK])
    alive = [1]
    for step in tape.steps:
        alive.append(alive[-1] + len(step.made) - len(step.freed))
    assert max(alive) == 1


# -------------------------------------------------------------------------------------- other inputs


X = torch.tensor([0.5, -1.0, 2.0])


def for_other_inputs(function):
    """Whether a tape is general, and what it gives for other masks and inputs beside what the function gives."""
    given = X.clone()
    _, tape = record(lambda m: function(m[0], given), [MASK], [given])
    if not tape.general:
        return None
    other = 2 * X + 1
    return torch.equal(tape.play([1 - MASK], tape.prepare([other])), function(1 - MASK, other))


def filled(m, x):
    out = torch.zeros(2, 3)
    out[0] = x
    out[1].copy_(x * 2).add_(1)
    return m * out.sum(0)


def counting(m, x):
    COUNT.add_(1)
    return m * x


COUNT = torch.zeros(1)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m * x.exp(),
        lambda m, x: (m * x) + x.clone().relu_().mul_(3),
        filled,
        lambda m, x: m * torch.arange(3.0) + x[torch.tensor([2, 1, 0])],
        lambda m, x: m * CONSTANT.exp() + x.sort().values,
        lambda m, x: x * CONSTANT,
    ],
)
def test_what_depends_on_inputs_is_computed_again(function):
    assert for_other_inputs(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m * float(x.sum()),
        lambda m, x: m if x[0] > 0 else -m,
        lambda m, x: m * torch.from_numpy(x.numpy() * 2),
        lambda m, x: m * torch.tensor(x.tolist()),
        lambda m, x: m * torch.tensor([1.0, 2.0, 3.0]).mul_(x),
        counting,
    ],
    ids=["numbers", "decisions", "numpy", "lists", "writing on what was there", "counting"],
)
def test_what_looks_at_inputs_holds_for_these_inputs_only(function):
    assert for_other_inputs(function) is None


def test_results_of_another_shape_are_refused():
    given = X.clone()
    _, tape = record(lambda m: m[0] * given[given > 0].sum(), [MASK], [given])
    assert tape.general
    with pytest.raises(OtherShapesError):
        tape.prepare([torch.ones(3)])


def test_weights_are_read_anew():
    """Writing through ``.data`` leaves no trace in a tensor's version."""
    weight, given = torch.nn.Parameter(torch.ones(3)), X.clone()
    with torch.no_grad():
        _, tape = record(lambda m: m[0] * given * weight.exp(), [MASK], [given])
        weight.data.mul_(2)
        assert torch.equal(tape.play([MASK], tape.prepare([given])), MASK * given * weight.exp())
