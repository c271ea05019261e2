"""The checks themselves: each sees what it is there for, and can fail."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from testing.outside.checks import agreement, honest_passes, in_training, matrix, random_kernels
from testing.outside.models import Case
from testing.walk import differences, walk


def _case(p: float = 0.3) -> Case:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 4), nn.Dropout(0.0)]
    return Case(nn.Sequential(*layers).eval(), torch.randn(5, 3))


class Attention(nn.Module):
    """Attention that drops in training only, and a draw of another kind."""

    def forward(self, x):
        out = F.scaled_dot_product_attention(x, x, x, dropout_p=0.2 if self.training else 0.0)
        return out + torch.rand_like(out) if self.training else out


def test_the_counter_sees_draws_and_nothing_else():
    assert random_kernels(_case()) == ["aten.bernoulli_.float"]
    x = torch.randn(2, 2, 5, 4)
    assert random_kernels(Case(Attention().eval(), x)) == ["aten.bernoulli_.float", "aten.rand_like.default"]
    still = Attention().eval()
    assert random_kernels(Case(lambda x: still(x), x, module=nn.Identity())) == []  # attention with p = 0


def test_the_mode_is_put_back():
    case = _case()
    case.model[3].train()
    flags = [part.training for part in case.model.modules()]
    with in_training(case.model):
        assert case.model.training and not case.model[1].training
    assert flags == [part.training for part in case.model.modules()]


def test_z_scores_find_a_wrong_rate():
    one, same, other = (honest_passes(_case(p), 800, seed) for p, seed in ((0.3, 0), (0.3, 1), (0.15, 2)))
    assert agreement(one, same).worst < 1.5
    assert agreement(one, other).variance_rms > 3


def test_z_scores_refuse_other_shapes_and_other_constants():
    passes = honest_passes(_case(), 20)
    with pytest.raises(AssertionError, match="shape"):
        agreement(passes, passes[:, :3])
    with pytest.raises(AssertionError, match="never vary"):
        agreement(torch.zeros(9, 2, 2), torch.ones(9, 2, 2))


def test_what_has_no_rows_is_left_out_of_the_matrix():
    output = {"logits": torch.zeros(5, 2, 3), "loss": torch.tensor(1.0), "cache": None, "ids": torch.arange(5)}
    assert matrix(output, 5).shape == (5, 6)
    assert matrix({"logits": torch.zeros(7, 5, 2)}, 5, first=1).shape == (7, 5, 2)


class Keeper(nn.Module):
    """A model with things of all kinds."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.kept, self.seen, self.words = [torch.zeros(2)], {"a": 1.0}, {"x"}
        self.bound, self.later = self.inner.forward, functools.partial(self._note, {"n": 0})
        self.inner.register_forward_hook(lambda module, args, output, store=self.seen: None)

    def _note(self, where):
        where["n"] += 1


def _append(model):
    model.kept.append(1)


def _write(model):
    model.kept[0].add_(1)


CHANGES = {
    "a list": _append,
    "a tensor in a list": _write,
    "a dict": lambda m: m.seen.update(b=2),
    "a value": lambda m: m.seen.update(a=2.0),
    "a set": lambda m: m.words.add("y"),
    "a weight": lambda m: m.inner.weight.data[0, 0].add_(1e-7),
    "a mode": lambda m: m.inner.train(not m.inner.training),
    "a hook": lambda m: m.inner.register_forward_hook(lambda *args: None),
    "an attribute": lambda m: setattr(m, "new", 1),
    "an attribute behind a bound method": lambda m: setattr(m.bound.__self__, "new", 1),
    "an argument of a partial": lambda m: m.later(),
    "a gradient": lambda m: m.inner(torch.ones(1, 2)).sum().backward(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_walk_sees(name):
    model = Keeper()
    before = walk(model)
    assert not differences(before, walk(model))
    CHANGES[name](model)
    assert differences(before, walk(model))


def test_the_walk_finds_tensors_of_vmap():
    model, found = Keeper(), []

    def leak(x):
        model.kept.append(x)
        return x

    before = walk(model)
    torch.func.vmap(leak)(torch.zeros(3, 2))
    found = differences(before, walk(model))
    assert any("tensor of vmap" in line for line in found), found


def test_the_walk_looks_into_closures():
    net = nn.Linear(2, 2)
    model = lambda x: net(x)  # noqa: E731
    before = walk(model)
    net.bias.data.add_(1)
    assert differences(before, walk(model)) == ["model<net>._parameters['bias'] has changed"]
