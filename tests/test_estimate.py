"""What ``estimate`` takes and gives: inputs and outputs of every shape, non-finite outputs, stop rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.errors import NonFiniteOutputError
from testing.core_oracle import INPUT, limit, tiny_network, truth

METHODS = {
    "pooled": {"method": "pooled"},
    "nested": {"method": "mlmc", "levels": "nested"},
    "independent": {"method": "mlmc", "levels": "independent"},
}
methods = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)


class Structured(nn.Module):
    """Two inputs, one hidden layer with dropout, outputs put together by ``arrange``."""

    def __init__(self, arrange):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            self.first, self.u, self.f = nn.Linear(3, 8), nn.Linear(8, 2), nn.Linear(8, 6)
        self.drop, self.arrange = nn.Dropout(0.2), arrange

    def forward(self, a, b):
        h = self.drop(torch.tanh(self.first(torch.cat([a, b], dim=1))))
        return self.arrange(self.u(h), self.f(h).reshape(-1, 2, 3))


A, B = torch.linspace(0, 1, 5)[:, None], torch.linspace(1, 2, 10).reshape(5, 2)
STRUCTURES = {
    "tensor": lambda u, f: u,
    "tuple": lambda u, f: (u, f),
    "dict": lambda u, f: {"u": u, "f": f},
    "nested": lambda u, f: {"pair": (u, [f, u[:, 0]]), "last": f[:, 0]},
}


def flat(value):
    if isinstance(value, dict):
        value = tuple(value.values())
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, tuple) else [value]


# ------------------------------------------------------------------------------- outputs and inputs


@methods
@pytest.mark.parametrize("name", STRUCTURES)
def test_structured_outputs_componentwise(name, options):
    found = md.estimate(Structured(STRUCTURES[name]), (A, B), budget=200, **options)
    reference = {"u": (5, 2), "f": (5, 2, 3), "u0": (5,), "f0": (5, 3)}
    shapes = {
        "tensor": ["u"],
        "tuple": ["u", "f"],
        "dict": ["u", "f"],
        "nested": ["u", "f", "u0", "f0"],
    }[name]
    for estimate in ("mean", "variance", "mean_stderr", "variance_stderr"):
        assert [leaf.shape for leaf in flat(getattr(found, estimate))] == [reference[s] for s in shapes]
    assert [leaf.shape for leaf in flat(found.levels[-1].kurtosis)] == [reference[s] for s in shapes]
    assert [leaf.shape for leaf in flat(found.std)] == [reference[s] for s in shapes]


def test_parts_of_a_structure_are_what_they_are_alone():
    """Outputs side by side share their masks and keep their estimates."""
    together = md.estimate(Structured(STRUCTURES["nested"]), (A, B), budget=200, method="mlmc")
    alone = md.estimate(Structured(STRUCTURES["tensor"]), (A, B), budget=200, method="mlmc")
    assert list(together.mean) == ["pair", "last"] and isinstance(together.mean["pair"], tuple)
    np.testing.assert_allclose(together.mean["pair"][0], alone.mean, rtol=1e-6)
    np.testing.assert_allclose(together.variance["pair"][1][1], alone.variance[:, 0], rtol=1e-5)


@methods
def test_several_inputs_as_tuple_dict_and_batches(options):
    model = Structured(STRUCTURES["dict"])
    whole = md.estimate(model, (A, B), budget=120, **options)
    for x in ({"b": B, "a": A}, (A.numpy(), B.numpy()), [(A[:2], B[:2]), (A[2:], B[2:])]):
        found = md.estimate(model, x, budget=120, **options)
        for key in ("u", "f"):
            np.testing.assert_allclose(found.mean[key], whole.mean[key], rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(found.variance[key], whole.variance[key], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtypes_and_numpy_input(dtype):
    model, x = tiny_network(dtype=dtype), np.full((3, 1), INPUT)
    found = md.estimate(model, x, method="pooled", budget=100)  # a float64 array takes the model's dtype
    assert found.mean.dtype == found.variance_stderr.dtype == np.float64
    again = md.estimate(model, torch.from_numpy(x).to(dtype), method="pooled", budget=100)
    assert np.array_equal(found.mean, again.mean)


def test_float32_models_are_summed_in_float64():
    """Moments of a float32 model with a large offset: single precision sums would lose the variance."""
    model = tiny_network(dtype=torch.float32)
    x = torch.full((50, 1), INPUT)
    plain = md.estimate(model, x, method="pooled", budget=500)
    shifted = md.estimate(model, x, method="pooled", budget=500, transform=lambda y: y.double() + 1e6)
    np.testing.assert_allclose(shifted.variance, plain.variance, rtol=1e-6)


@methods
def test_transform_is_applied_to_every_pass(options):
    model, x = tiny_network(), torch.full((4, 1), INPUT, dtype=torch.float64)
    found = md.estimate(model, x, budget=200, transform=lambda y: torch.softmax(y, dim=1), **options)
    np.testing.assert_allclose(found.mean.sum(axis=1), 1.0, rtol=1e-12)
    after = md.estimate(model, x, budget=200, **options)
    outside = np.exp(after.mean) / np.exp(after.mean).sum(axis=1, keepdims=True)
    assert np.abs(found.mean - outside).max() > 1e-3  # softmax of the mean is something else


def test_shared_masks_give_the_same_moments_at_every_input():
    model, exact = tiny_network(), truth(tiny_network())
    x = torch.full((6, 1), INPUT, dtype=torch.float64)
    found = md.estimate(model, x, method="pooled", budget=4000, masks="shared")
    assert np.ptp(found.mean, axis=0).max() < 1e-12  # equal rows, equal masks, equal numbers
    assert (np.abs(found.mean[0] - exact.mu) / found.mean_stderr[0]).max() < limit(4)
    assert (np.abs(found.variance[0] - exact.mu2) / found.variance_stderr[0]).max() < limit(4)


# -------------------------------------------------------------------------------------- what is spent


@pytest.mark.parametrize("budget", [32, 33, 100, 999.9])
@pytest.mark.parametrize("levels", ["nested", "independent"])
@pytest.mark.parametrize("ladder", [(4, 8), (2, 14), (10, 12)])
def test_the_budget_is_never_exceeded(ladder, levels, budget):
    """On (10, 12) rounding would like more fine replicates than coarse ones, each of which costs 12 passes."""
    least = md.theory.cost_spent(ladder, (2, 2), levels)
    if budget < least:
        with pytest.raises(md.MLMCDropoutError, match=str(least)):
            md.estimate(tiny_network(), A.double(), method="mlmc", ladder=ladder, levels=levels, budget=budget)
        return
    found = md.estimate(tiny_network(), A.double(), method="mlmc", ladder=ladder, levels=levels, budget=budget)
    counts = [level.count for level in found.levels]
    assert found.cost == md.theory.cost_spent(ladder, counts, levels) <= budget
    assert found.cost > budget - 2 * ladder[-1]


@pytest.mark.parametrize("counts", [(6, 4, 2), (2, 5, 3)])
@pytest.mark.parametrize("levels", ["nested", "independent"])
def test_cost_is_what_was_really_run(counts, levels):
    """Passes asked of the sampler, counted: none is recomputed."""
    sampler_run, passes = md.DropoutSampler.run, []

    def counted(self, program, batch, keys, *rest, **options):
        passes.append(keys.flatten().tolist())
        return sampler_run(self, program, batch, keys, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(md.DropoutSampler, "run", counted)
        found = md.estimate(tiny_network(), A.double(), method="mlmc", counts=counts, levels=levels)
    names = [key for call in passes for key in call]
    assert len(names) == len(set(names)) == found.cost


def test_counts_alone_are_a_stop_rule():
    found = md.estimate(tiny_network(), A.double(), method="mlmc", ladder=(4, 8), counts=np.array([5, 3]))
    assert [level.count for level in found.levels] == [5, 3] and found.cost == 32
    assert found.status is md.Status.COMPLETED


def test_replicates_may_skip_the_coarse_level():
    found = md.estimate(tiny_network(), A.double(), method="mlmc", ladder=(4, 8), counts=(3, 5))
    assert found.cost == 40 and [level.count for level in found.levels] == [3, 5]


def test_pooled_has_no_S2_and_mlmc_says_what_its_S2_is():
    pooled = md.estimate(tiny_network(), A.double(), method="pooled", budget=100)
    assert pooled.S2_mean is None and pooled.S2_variance is None
    nested = md.estimate(tiny_network(), A.double(), method="mlmc", budget=1000)
    assert (nested.S2_mean > nested.mean_stderr**2).mean() > 0.9
    assert any("S2_mean" in note and "share" in note for note in nested.notes)
    independent = md.estimate(tiny_network(), A.double(), method="mlmc", levels="independent", budget=1000)
    np.testing.assert_allclose(independent.S2_mean, independent.mean_stderr**2, rtol=1e-12)


# -------------------------------------------------------------------------------- non-finite outputs


class Exploding(nn.Module):
    """Rows above 10 give a value that is not finite in the rare passes that drop all of four units."""

    def __init__(self, bad, p=0.2):
        super().__init__()
        self.drop, self.bad = nn.Dropout(p), bad

    def forward(self, x):
        kept = self.drop(torch.ones(len(x), 4)).sum(dim=1, keepdim=True)
        return torch.where((kept == 0) & (x > 10), torch.full_like(x, self.bad), x + kept)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_outputs_name_the_rows(bad):
    x = torch.tensor([[1.0], [20.0], [2.0], [30.0]])
    with pytest.raises(NonFiniteOutputError, match="rows 1, 3") as error:
        md.estimate(Exploding(bad, p=0.7), x, method="pooled", budget=500)
    assert error.value.rows.tolist() == [1, 3]
    assert ("remove those rows" if bad != bad else "use transform=") in str(error.value)


def test_non_finite_rows_are_counted_over_batches():
    x = torch.tensor([[1.0], [2.0], [3.0], [40.0]])
    with pytest.raises(NonFiniteOutputError) as error:
        md.estimate(Exploding(float("nan"), p=0.7), list(x.split(2)), method="pooled", budget=500)
    assert error.value.rows.tolist() == [3]
    partial = error.value.partial  # the first batch was finished
    assert partial is not None and np.isfinite(partial.mean[:2]).all()
    assert partial.mean[:2] == pytest.approx(np.array([[5.0], [6.0]]), abs=1.0)


def test_non_finite_outputs_carry_what_was_computed_before():
    """Rare failures: a thousand passes are fine before the first bad one; their result is attached."""
    x = torch.full((2, 1), 20.0)
    with pytest.raises(NonFiniteOutputError) as error:
        md.estimate(Exploding(float("nan"), p=0.13), x, method="pooled", tolerance=1e-3)
    partial = error.value.partial
    assert partial is not None and partial.status is md.Status.FAILED
    assert partial.cost >= 4 and np.isfinite(partial.mean).all()
    assert partial.mean == pytest.approx(np.full((2, 1), 24.0), abs=6 * float(partial.mean_stderr.max()))


def test_a_constant_output_has_no_variance_and_no_warning():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return 0 * self.drop(x) + 3.0

    for options in METHODS.values():
        found = md.estimate(Constant(), torch.ones(2, 1), budget=200, **options)
        assert np.all(found.mean == 3) and np.all(found.variance == 0)
        assert np.all(found.mean_stderr <= 2e-6)  # a few units of the last place
        assert "3" in str(found)
