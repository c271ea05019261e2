"""Mean-only ladders, moments from a pilot, the uncoupled baseline, adaptive settings, and replicates on request."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

import mlmc_dropout as md
from mlmc_dropout import theory
from mlmc_dropout.errors import AllocationError, InputError, LadderError

UNITS, P = 12, 0.3
ROWS = 2000
LADDER = (4, 8, 16)


def network() -> torch.nn.Sequential:
    """One linear layer after dropout, skew: mean, variance and fourth moment are known."""
    first, last = torch.nn.Linear(1, UNITS), torch.nn.Linear(UNITS, 1)
    with torch.no_grad():
        first.weight.zero_()
        first.bias.fill_(1.0)
        last.weight.copy_(torch.linspace(0.2, 1.5, UNITS)[None])
        last.bias.zero_()
    return torch.nn.Sequential(first, torch.nn.Dropout(P), last).double()


WEIGHTS = np.linspace(0.2, 1.5, UNITS)
MU = float(WEIGHTS.sum())
MU2 = float(P / (1 - P) * np.square(WEIGHTS).sum())
_EXCESS = ((1 - P) * (1 / (1 - P) - 1) ** 4 + P) - 3 * (P / (1 - P)) ** 2
MU4 = 3 * MU2**2 + float(_EXCESS * (WEIGHTS**4).sum())
X = np.zeros((ROWS, 1))  # rows are independent repetitions


def assert_unbiased(values, stderr, truth) -> None:
    """|z| of the average over rows below the 99.9 % quantile."""
    z = (values.mean() - truth) / np.sqrt(np.mean(stderr**2) / values.size)
    assert abs(z) < stats.norm.ppf(0.9995)


def assert_honest(values, stderr) -> None:
    """Mean squared standard errors agree with the variance over rows, within 99.9 % of its chi-square."""
    ratio = values.var(ddof=1) / np.mean(stderr**2)
    spread = 3.3 * np.sqrt(2 / values.size) * 1.5
    assert abs(ratio - 1) < spread


def mean_only(ladder, levels="nested", counts=None, budget=None, seed=0) -> md.Result:
    settings = {"ladder": ladder, "levels": levels, "counts": counts, "budget": budget, "seed": seed}
    return md.estimate(network(), X, method="mlmc", quantities=("mean",), **settings)


@pytest.mark.parametrize("levels", ["nested", "independent", "uncoupled"])
def test_mean_only_ladders(levels) -> None:
    found = mean_only((1, 2, 3, 5), levels, budget=120)
    assert found.cost <= 120
    assert_unbiased(found.mean, found.mean_stderr, MU)
    assert_honest(found.mean, found.mean_stderr)
    assert_unbiased(found.variance, found.variance_stderr, MU2)


@pytest.mark.parametrize("levels", ["nested", "independent", "uncoupled"])
def test_single_replicates_serve_the_mean(levels) -> None:
    found = mean_only((4, 8, 16), levels, counts=(20, 3, 1), seed=1)
    assert found.S2_mean is None
    assert_unbiased(found.mean, found.mean_stderr, MU)
    assert_honest(found.mean, found.mean_stderr)


def test_a_result_for_the_mean_is_saved_and_shown(tmp_path) -> None:
    result = mean_only((1, 2, 4), budget=100)
    result.save(tmp_path / "result")
    again = md.load_result(tmp_path / "result")
    np.testing.assert_array_equal(again.mean, result.mean)
    assert "mean" in str(result) and any("mean only" in note for note in again.notes)


def test_mean_only_needs_to_be_asked_for() -> None:
    ask = {"method": "mlmc", "budget": 500}
    with pytest.raises(LadderError, match="T_0 >= 2"):
        md.estimate(network(), X[:2], ladder=(1, 2, 4), **ask)
    with pytest.raises(AllocationError, match="ask for the mean only"):
        md.estimate(network(), X[:2], ladder=LADDER, counts=(20, 3, 1), **ask)
    with pytest.raises(AllocationError, match="at least 2"):
        md.estimate(network(), X[:2], ladder=LADDER, counts=(1, 1, 1), quantities=("mean",), **ask)
    with pytest.raises(InputError, match="unknown quantity 'median'"):
        md.estimate(network(), X[:2], quantities=("median",), **ask)
    with pytest.raises(InputError, match="tolerance_variance"):
        md.estimate(network(), X[:2], quantities=("mean",), tolerance_variance=0.1, **ask)
    both, one = (md.estimate(network(), X[:2], quantities=q, **ask) for q in (("mean", "variance"), ("mean",)))
    np.testing.assert_array_equal(both.variance_stderr, one.variance_stderr)


def test_uncoupled_levels_are_the_baseline_that_theory_has() -> None:
    counts = (20, 10, 6)
    result = md.estimate(network(), X, method="mlmc", ladder=LADDER, counts=counts, levels="uncoupled")
    assert result.cost == 4 * 20 + (8 + 4) * 10 + (16 + 8) * 6
    for key, target in (("mean", "mean"), ("variance", "variance")):
        levels = theory.level_variances_uncoupled(LADDER, target, MU2, MU4)
        exact = float(theory.variance_independent(levels, counts))
        values, stderr = getattr(result, key), getattr(result, f"{key}_stderr")
        assert_unbiased(values, stderr, MU if key == "mean" else MU2)
        assert values.var(ddof=1) == pytest.approx(exact, rel=0.25)
        assert np.mean(stderr**2) == pytest.approx(exact, rel=0.05)
        coupled = theory.variance_independent(
            theory.level_variances_mean(LADDER, MU2)
            if target == "mean"
            else theory.level_variances_variance(LADDER, MU2, MU4),
            counts,
        )
        assert exact > 1.3 * coupled, "negative control: coupled increments vary less"


@pytest.mark.parametrize("method", [{"method": "pooled", "budget": 400}, {"method": "mlmc", "budget": 400}])
def test_moments_of_a_result(method) -> None:
    found = md.moments_of(md.estimate(network(), X, **method))
    assert float(np.mean(found.mu2)) == pytest.approx(MU2, rel=0.01)
    assert float(np.mean(found.mu4)) == pytest.approx(MU4, rel=0.1)
    md.allocate(md.Ladder(LADDER), 1000, "variance", moments=found)


def test_moments_need_levels() -> None:
    result = md.estimate(network(), X[:2], method="control-variate", budget=100)
    with pytest.raises(InputError, match="pooled"):
        md.moments_of(result)


def test_moments_from_a_pilot_change_the_counts() -> None:
    """Passes of a rare event have heavy tails: the closure is far off, and a pilot finds it out."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.95), torch.nn.Linear(1, 1)).double()
    x = np.ones((50, 1))
    settings = {"method": "mlmc", "ladder": LADDER, "budget": 4000, "target": "variance", "seed": 3}
    closure, pilot = md.estimate(model, x, **settings), md.estimate(model, x, moments="pilot", **settings)
    counts = [[level.count for level in result.levels] for result in (closure, pilot)]
    assert counts[0] == list(md.allocate(md.Ladder(LADDER), 4000, "variance").counts)
    assert counts[0] != counts[1] and pilot.cost <= 4000
    given = md.estimate(model, x, moments=md.moments_of(pilot), **settings)
    assert [level.count for level in given.levels] == pytest.approx(counts[1], rel=0.15)


def test_a_pilot_survives_its_checkpoint(tmp_path) -> None:
    settings = {"method": "mlmc", "moments": "pilot", "target": "variance", "seed": 5}
    whole = md.estimate(network(), X[:3], budget=1000, **settings)
    md.estimate(network(), X[:3], budget=600, checkpoint=tmp_path / "run", **settings)
    again = md.estimate(network(), X[:3], budget=1000, checkpoint=tmp_path / "run", **settings)
    assert again.cost <= 1000 and whole.cost <= 1000
    assert [level.fidelity for level in again.levels] == list(LADDER)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "pooled", "moments": "pilot"}, "belong to method='mlmc'"),
        ({"method": "mlmc", "moments": "gauss"}, "'pilot' or None"),
        ({"method": "mlmc", "moments": "pilot", "counts": (4, 4, 4)}, "give one of them"),
        ({"method": "mlmc", "levels": "crossed"}, "'independent', 'uncoupled'"),
    ],
)
def test_bad_requests(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        md.estimate(network(), X[:2], budget=500, **arguments)


def test_adaptive_ladders_take_their_settings() -> None:
    result = md.estimate(network(), X[:20], method="mlmc", ladder=md.Adaptive(start=3, ratio=3, share=0.2), budget=4000)
    fidelities = [level.fidelity for level in result.levels]
    assert fidelities[:2] == [3, 9] and all(b == 3 * a for a, b in pairwise(fidelities))
    eager = md.estimate(network(), X[:20], method="mlmc", ladder=md.Adaptive(start=3, ratio=3, share=0.9), budget=4000)
    assert len(eager.levels) <= len(fidelities)
    for wrong in ({"start": 1}, {"ratio": 1.5}, {"share": 1.0}):
        with pytest.raises(LadderError):
            md.Adaptive(**wrong)


@pytest.mark.parametrize("levels", ["nested", "independent", "uncoupled"])
def test_replicates_are_those_of_the_estimate(levels) -> None:
    counts = (30, 17, 9)
    settings = {"ladder": LADDER, "counts": counts, "levels": levels, "seed": 4}
    found = md.replicates(network(), X[:3], **settings)
    result = md.estimate(network(), X[:3], method="mlmc", **settings)
    assert [level.dY.shape for level in found] == [(m, 3, 1) for m in counts]
    for level, stats_of_level in zip(found, result.levels, strict=True):
        np.testing.assert_allclose(level.dY.mean(axis=0), stats_of_level.mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(level.dV.var(axis=0, ddof=1), stats_of_level.variance_V, rtol=1e-8)
    S2 = sum(level.dY.var(axis=0, ddof=1) / m for level, m in zip(found, counts, strict=True))
    np.testing.assert_allclose(S2, result.S2_mean, rtol=1e-10)
    nested = np.allclose(found[1].dY, found[1].Y - found[0].Y[:17])
    assert nested == (levels == "nested")
