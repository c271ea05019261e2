"""Linear maps by oneDNN: the bits of a row do not depend on others or on threads, and autocast is left alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.sampling import linear_maps
from mlmc_dropout.sampling.interception import Interceptor

pytestmark = pytest.mark.skipif(not linear_maps._HAS_ONEDNN_LINEAR, reason="torch without oneDNN's linear maps")


@pytest.fixture
def threads():
    """Puts back how many threads torch uses."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def linear(x, weight, bias=None):
    with torch.no_grad(), Interceptor():
        return F.linear(x, weight, bias)


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("inputs", [8, 100, 1000, 8192, 20_000])
def test_a_row_has_the_same_bits_beside_any_others_and_on_any_threads(inputs, threads):
    x, weight, bias = numbers(300, inputs), numbers(16, inputs), numbers(16)
    threads(1)
    expected = linear(x, weight, bias)
    exact = F.linear(x.double(), weight.double(), bias.double())
    assert (expected - exact).abs().max() < 1e-5 * exact.abs().max()
    for count in (1, 2, 4):
        threads(count)
        for rows in (1, 17, 100, 300):
            assert torch.equal(linear(x[:rows], weight, bias), expected[:rows])


@pytest.mark.parametrize(
    ("shape", "used"),
    [((8, 8), True), ((16, 8192), True), ((16, 8193), False), ((16, 7), False), ((7, 16), False), ((40_000, 8), False)],
)
def test_onednn_computes_what_is_neither_narrow_nor_deep_nor_broad(shape, used, monkeypatch):
    """The test above would pass without it, too."""
    calls = []
    monkeypatch.setattr(linear_maps, "_by_onednn", lambda x, *rest: calls.append(1) or F.linear(x, *rest))
    linear(numbers(3, shape[1]), numbers(*shape), numbers(shape[0]))
    assert bool(calls) == used


@pytest.mark.parametrize(
    "layout", [lambda w: w.T, lambda w: w[:, ::2], lambda w: w[::2], lambda w: torch.complex(w, w).conj().imag]
)
def test_weights_may_lie_in_any_way(layout):
    weight = layout(numbers(64, 64))
    x = numbers(10, weight.shape[1])
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("lead", [(0,), (3, 0), (0, 3)])
@pytest.mark.parametrize("outputs", [1, 24])
def test_no_rows_give_no_rows(lead, outputs):
    assert linear(torch.empty(*lead, 16), numbers(outputs, 16), numbers(outputs)).shape == (*lead, outputs)


ROWS, OUTPUTS = 10, 24
BIASES = {  # in what memory, and which part of it
    "plain": ((OUTPUTS,), lambda b: b),
    "part of a vector": ((3 * OUTPUTS,), lambda b: b[OUTPUTS:-OUTPUTS]),
    "row": ((3, OUTPUTS), lambda b: b[1]),
    "column": ((OUTPUTS, 3), lambda b: b[:, 1]),
    "every other": ((2 * OUTPUTS,), lambda b: b[::2]),
    "scalar": ((), lambda b: b),
    "expanded scalar": ((), lambda b: b.expand(OUTPUTS)),
    "one number": ((1,), lambda b: b),
    "one row": ((1, OUTPUTS), lambda b: b),
    "all rows": ((ROWS, OUTPUTS), lambda b: b),
    "all rows, columns": ((OUTPUTS, ROWS), lambda b: b.T),
}


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("lead", [(ROWS,), (3, ROWS), (16, ROWS)])
def test_biases_may_lie_in_any_way(name, lead):
    shape, view = BIASES[name]
    x, weight, bias = numbers(*lead, 16), numbers(OUTPUTS, 16), view(numbers(*shape))
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("shape", [(OUTPUTS - 1,), (2,), (0,), (2, OUTPUTS)])
def test_biases_of_the_wrong_shape_are_refused(shape):
    x, weight, bias = numbers(ROWS, 16), numbers(OUTPUTS, 16), torch.zeros(shape)
    for function in (linear, F.linear):
        with pytest.raises(RuntimeError, match="size"):
            function(x, weight, bias)


class WithBias(nn.Module):
    """Two linear maps with a bias of any layout; ``plain`` adds it to the product."""

    def __init__(self, name, plain):
        super().__init__()
        shape, self.view = BIASES[name]
        self.first, self.second, self.plain = numbers(OUTPUTS, 16), numbers(OUTPUTS, OUTPUTS), plain
        self.bias = nn.Parameter(numbers(*shape))

    def forward(self, x):
        hidden = F.dropout(self.linear(x, self.first).tanh(), 0.3, self.training)
        return self.linear(hidden, self.second)

    def linear(self, x, weight):
        bias = self.view(self.bias)
        return x @ weight.T + bias if self.plain else F.linear(x, weight, bias)


@pytest.mark.parametrize("name", BIASES)
def test_estimates_are_right_whatever_the_layout_of_a_bias(name):
    x = numbers(4, ROWS, 16)
    for seed in range(4):  # computed, recorded, replayed
        found, expected = (
            md.estimate(WithBias(name, plain).eval(), x, method="pooled", budget=100, seed=seed)
            for plain in (False, True)
        )
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-3, atol=1e-5)


class HalfInside(nn.Module):
    """Computes its layers in half precision, whatever its weights are in."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 8))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x).float()


def test_models_that_compute_in_half_precision_do_so():
    passes = md.DropoutSampler(HalfInside().eval()).sample(numbers(5, 16), passes=40, seed=0)
    assert torch.equal(passes, passes.bfloat16().float())


@pytest.mark.parametrize("change", ["in place", "data", "numpy", "state", "optimiser"])
def test_weights_that_change_are_arranged_anew(change):
    """Arranged weights are kept in recordings: a sampler that goes on, and another estimate, see the new ones."""
    x, model, fresh = numbers(40, 16), HalfInside().layers.eval(), HalfInside().layers.eval()
    sampler = md.DropoutSampler(model)
    for seed in range(4):
        sampler.sample(x, passes=300, seed=seed)
        md.estimate(model, x, method="pooled", budget=600, seed=seed)
    for each in (model, fresh):
        _change(each, change)
    assert torch.equal(sampler.sample(x, passes=300), md.DropoutSampler(fresh).sample(x, passes=300))
    found, expected = (md.estimate(each, x, method="pooled", budget=600) for each in (model, fresh))
    assert np.array_equal(found.mean, expected.mean)


def _change(model, how):
    weights = [layer.weight for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for weight in weights:
            if how == "in place":
                weight.mul_(1.5)
            elif how == "data":
                weight.data.mul_(1.5)
            elif how == "numpy":
                weight.detach().numpy()[:] *= 1.5
    if how == "state":
        model.load_state_dict({name: 1.5 * value for name, value in model.state_dict().items()})
    elif how == "optimiser":
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        torch.optim.Adam(weights, 0.1, fused=True).step()
        for weight in weights:
            weight.grad = None


def test_inputs_of_the_wrong_width_are_refused_in_the_words_of_torch():
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 2))
    with pytest.raises(RuntimeError, match=r"5x17 and 16x32"):
        md.estimate(model, torch.randn(5, 17), budget=20)
