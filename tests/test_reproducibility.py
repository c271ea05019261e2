"""The same seed gives the same bits, and nothing outside is touched."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from testing.core_oracle import tiny_network

METHODS = {
    "pooled": {"method": "pooled"},
    "nested": {"method": "mlmc", "levels": "nested"},
    "independent": {"method": "mlmc", "levels": "independent"},
}
ARRAYS = ("mean", "variance", "mean_stderr", "variance_stderr", "S2_mean", "S2_variance")
methods = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)


def network(width=16, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = [nn.Linear(2, width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.SiLU(), nn.Dropout(0.2)]
        return nn.Sequential(*parts, nn.Linear(width, 1)).to(dtype).eval()


def inputs(rows=11, dtype=torch.float32):
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(1)).to(dtype)


def same_bits(a, b):
    pairs = [(getattr(a, name), getattr(b, name)) for name in ARRAYS]
    pairs += [(p.variance_V, q.variance_V) for p, q in zip(a.levels, b.levels, strict=True)]
    return all((p is None and q is None) or np.array_equal(p, q) for p, q in pairs)


@methods
def test_the_same_seed_gives_the_same_bits(options):
    first, second = (md.estimate(network(), inputs(), budget=300, seed=5, **options) for _ in range(2))
    assert same_bits(first, second)
    assert not same_bits(first, md.estimate(network(), inputs(), budget=300, seed=6, **options))


@methods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("width", "rows"), [(16, 11), (16, 1), (50, 3)])
def test_the_chunk_changes_nothing(options, width, rows, dtype):
    model, x = network(width, dtype), inputs(rows, dtype)
    whole = md.estimate(model, x, budget=300, **options)
    for chunk in (1, 7, 10**6):
        assert same_bits(whole, md.estimate(model, x, budget=300, chunk=chunk, **options)), chunk


@methods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_batches_of_rows_have_the_same_masks(options, dtype):
    """Rows keep their masks in any batch; what is left is the rounding of matrix products of other shapes."""
    x, model = inputs(dtype=dtype), network(dtype=dtype)
    whole = md.estimate(model, x, budget=300, **options)
    tight = {"rtol": 1e-4 if dtype == torch.float32 else 1e-11, "atol": 1e-6 if dtype == torch.float32 else 1e-14}
    for size in (1, 4):
        parts = md.estimate(model, (part for part in x.split(size)), budget=300, **options)
        for name in ("mean", "variance"):
            np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), **tight)
        for name in ("mean_stderr", "variance_stderr"):  # of few passes they go by the tails of all rows of a batch
            np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=0.02)
    other = md.estimate(model, x, budget=300, seed=1, **options)
    assert not np.allclose(other.mean, whole.mean, **tight)


@methods
def test_torch_generators_are_neither_read_nor_moved(options):
    results = []
    for seed in (0, 1234):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        results.append(md.estimate(network(), inputs(), budget=200, **options))
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002
    assert same_bits(*results)


def test_a_longer_run_begins_with_the_passes_of_a_shorter_one():
    model, x = network(dtype=torch.float64), inputs(dtype=torch.float64)
    sampler = md.DropoutSampler(model)
    long = sampler.sample(x, passes=40, seed=3)
    np.testing.assert_allclose(sampler.sample(x, passes=15, seed=3).numpy(), long[:15].numpy(), rtol=1e-12)
    np.testing.assert_allclose(sampler.sample(x, passes=15, seed=3, first=25).numpy(), long[25:].numpy(), rtol=1e-12)


# ----------------------------------------------------------------------------- the model untouched


class Guarded(nn.Module):
    """Buffers, BatchNorm, hooks, mixed modes and gradients: everything that could be disturbed."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.norm, self.out = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(()))
        self.fail_after = None
        self.seen = 0

    def forward(self, x):
        self.calls += 1
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        if self.fail_after is not None and float(x.abs().max()) > 100:
            raise RuntimeError("boom")
        return self.out(hidden)


def snapshot(model):
    return {
        "modes": [m.training for m in model.modules()],
        "parameters": [p.detach().clone() for p in model.parameters()],
        "identities": [id(p) for p in model.parameters()] + [id(m) for m in model.modules()],
        "flags": [(p.requires_grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()],
        "buffers": [b.clone() for b in model.buffers()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        "attributes": [sorted(m.__dict__) for m in model.modules()],
        "rng": torch.get_rng_state(),
        "grad": torch.is_grad_enabled(),
    }


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(p, q) for p, q in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def disturbed_model():
    model = Guarded().train()
    model.norm.eval()
    model.first.weight.requires_grad_(False)
    model.out.register_forward_hook(lambda module, args, output: output)
    model(torch.ones(4, 2)).sum().backward()  # leaves gradients that must stay
    return model


@methods
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_found(options, training):
    model = disturbed_model()
    if not training:
        model.eval()
    before = snapshot(model)
    md.estimate(model, inputs(), budget=200, **options)
    assert equal(snapshot(model), before)


@methods
def test_the_model_is_left_as_found_after_an_exception(options):
    model = disturbed_model()
    model.fail_after = 3
    before = snapshot(model)
    batches = [inputs(4), torch.full((4, 2), 1000.0)]  # the first batch is fine, the second blows up
    with pytest.raises(RuntimeError, match="boom"):
        md.estimate(model, batches, budget=200, **options)
    assert equal(snapshot(model), before)


def test_the_snapshot_sees_a_change():
    """Negative control for the two tests above."""
    model = disturbed_model()
    before = snapshot(model)
    for change in (
        lambda m: m.drop.eval(),
        lambda m: m.calls.add_(1),
        lambda m: m.out.bias.data.add_(1),
        lambda m: m.drop.register_forward_hook(lambda *_: None),
        lambda m: m.first.weight.requires_grad_(True),
        lambda m: torch.rand(1),
    ):
        changed = copy.deepcopy(before)
        change(model)
        assert not equal(snapshot(model), changed)
        before = snapshot(model)


def test_inputs_are_left_as_found():
    model = nn.Sequential(nn.Dropout(0.3, inplace=True), nn.Linear(1, 1))
    x = torch.ones(5, 1)
    md.estimate(model, x, method="pooled", budget=50)
    assert torch.equal(x, torch.ones(5, 1))


def test_gradients_are_not_recorded():
    x = inputs().requires_grad_(True)
    model = tiny_network(dtype=torch.float32)
    found = md.estimate(model, x[:, :1], method="pooled", budget=50)
    assert isinstance(found.mean, np.ndarray) and x.grad is None


@pytest.mark.parametrize("method", ["pooled", "stratified", "control-variate", "mlmc"])
def test_the_memory_limit_changes_no_bit(method):
    """A limit that cuts the rows into several parts, and one that does not."""
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 2))
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    large, small = (
        md.estimate(model, x, method=method, budget=600, memory_limit=limit) for limit in (1 << 29, 1 << 19)
    )
    np.testing.assert_array_equal(large.mean, small.mean)
    np.testing.assert_array_equal(large.variance_stderr, small.variance_stderr)
