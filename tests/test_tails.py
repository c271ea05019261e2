"""The guard for heavy tails: ordinary samples pass, samples carried by a few do not, results say so.

False flags are counted in 2000 repetitions; the limits asserted are twice the rates that were measured, or more.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout import theory
from mlmc_dropout.methods.pooled import BoundPooled, Pooled, PooledState
from mlmc_dropout.methods.tails import (
    Trust,
    errors_of_still,
    kurtosis_of_few,
    student_factor,
    trust,
    widened_for_scale,
    widened_for_skewness,
    widened_for_tails,
)
from mlmc_dropout.moments import MomentBlock
from testing.oracles import source_of

RUNS = 2000


def flagged(draw, count):
    """Shares of repetitions whose mean, and whose variance, is found unreliable."""
    found = trust(MomentBlock.of(draw(np.random.default_rng(count), (count, RUNS))))
    return 1 - found.mean.mean(), 1 - found.variance.mean()


@pytest.mark.parametrize("count", [100, 300, 1000])
@pytest.mark.parametrize("name", ["standard_normal", "random"])
def test_gaussian_and_uniform_samples_are_not_flagged(name, count):
    assert max(flagged(lambda rng, shape: getattr(rng, name)(size=shape), count)) <= 1e-3


@pytest.mark.parametrize("count", [100, 300, 1000])
def test_exponential_samples_are_rarely_flagged(count):
    assert max(flagged(lambda rng, shape: rng.standard_exponential(shape), count)) < 0.1


def test_votes_are_not_flagged_once_the_rarer_one_has_come_up_often():
    assert max(flagged(lambda rng, shape: rng.random(shape) < 0.5, 100)) == 0
    assert max(flagged(lambda rng, shape: rng.random(shape) < 0.03, 3000)) < 1e-3


@pytest.mark.parametrize("count", [100, 500])
def test_what_a_few_samples_carry_is_flagged(count):
    """Negative control: one in a thousand, and a log-normal with a standard deviation of 2.5 in the logarithm."""
    assert min(flagged(lambda rng, shape: rng.random(shape) < 1e-3, count)) > 0.99
    assert min(flagged(lambda rng, shape: np.exp(2.5 * rng.standard_normal(shape)), count)) > 0.95


def test_probabilities_that_may_turn_over_are_flagged_even_in_lucky_runs():
    """The variance of a sigmoid that is 1 but for rare passes: with the rule for 0 and 1 no run is left to chance.

    Negative control: without it, runs in which no rare pass was drawn go unflagged, and their intervals do not cover.
    """
    rng = np.random.default_rng(5)
    block = MomentBlock.of(1 / (1 + np.exp(-5 - 1.4 * rng.standard_normal((500, RUNS)))))
    long = 1 / (1 + np.exp(-5 - 1.4 * rng.standard_normal(4_000_000)))
    covered = np.abs(block.variance - long.var()) <= 1.96 * np.sqrt((block.fourth - block.variance**2) / 500)
    without = trust(block, are_outputs=False).variance
    assert without.mean() > 0.005 and covered[without].mean() < 0.5
    assert not trust(block).variance.any()
    shifted = MomentBlock.of(3 + rng.standard_exponential((500, RUNS)))
    assert trust(shifted).variance.mean() > 0.9, "the same shape elsewhere is no probability"


def test_what_never_moved_is_flagged_and_so_is_a_single_move():
    still = np.ones((500, 2))
    still[7, 1] = 1 - 2**-24  # saturated in single precision, but for one pass
    found = trust(MomentBlock.of(still))
    assert not found.mean.any() and not found.variance.any()


def test_a_negligible_error_is_believed_whatever_the_tails():
    doubtful = Trust(np.zeros(2, dtype=bool), np.zeros(2, dtype=bool))
    found = doubtful.where_it_matters(np.array([0.0, 0.2]), np.array([np.nan, 0.001]))
    assert found.mean.tolist() == [True, False] and found.variance.tolist() == [False, True]


def test_the_guard_does_not_depend_on_how_samples_were_split():
    x = np.random.default_rng(1).standard_exponential((600, 50)) ** 2
    parts = MomentBlock.of(x[:100]).merge(MomentBlock.of(x[100:]))
    assert (trust(parts).variance == trust(MomentBlock.of(x)).variance).all()
    np.testing.assert_allclose(widened_for_tails(parts), widened_for_tails(MomentBlock.of(x)))


@pytest.mark.parametrize("count", [10, 20, 50])
def test_means_of_skewed_samples_are_covered_once_widened(count):
    """Intervals for the mean of χ² with one degree of freedom, four components at a time, in 2000 repetitions.

    The observed coverage has a standard deviation of 0.3 %. Negative control: Student's factor alone covers less.
    """
    x = np.random.default_rng(count).standard_normal((RUNS, count, 4)) ** 2
    covered = np.zeros((2, RUNS, 4), dtype=bool)
    for k, samples in enumerate(x):
        block = MomentBlock.of(samples)
        error = 1.96 * student_factor(count) * np.sqrt(block.variance_of_mean)
        covered[:, k] = [
            np.abs(block.mean - 1) <= error * factor for factor in (1.0, widened_for_skewness(block, count))
        ]
    plain, widened = covered.mean(axis=(1, 2))
    assert plain < (0.92 if count < 50 else 0.935) and plain + 0.01 < widened and 0.92 <= widened <= 0.97


def test_no_widening_where_nothing_is_skewed():
    x = np.random.default_rng(2).standard_normal((1000, 50))
    block = MomentBlock.of(np.concatenate([x, -x]))
    np.testing.assert_allclose(widened_for_skewness(block, 2000), 1.0, atol=1e-12)
    still = MomentBlock.of(np.ones((20, 3)))
    np.testing.assert_array_equal(widened_for_skewness(still, 20), 1.0)


def test_components_of_few_passes_lend_each_other_their_skewness_by_their_variance():
    rng = np.random.default_rng(3)
    calm, wild = rng.standard_normal((10, 1)), rng.standard_exponential((10, 1)) ** 3
    alone = widened_for_skewness(MomentBlock.of(calm), 10)
    assert widened_for_skewness(MomentBlock.of(np.hstack([calm, wild])), 10)[0] > alone[0] + 0.1
    np.testing.assert_allclose(
        widened_for_skewness(MomentBlock.of(np.hstack([calm, 1e-6 * wild])), 10)[0], alone[0], rtol=1e-6
    )
    many = MomentBlock.of(np.hstack([calm, wild]))
    assert widened_for_skewness(many, 10**6)[0] < alone[0] + 0.1, "many passes speak for themselves"


def share_covered(draw, count, exact, own=False):
    """Of 95 % intervals for the variance of passes (count, 4 inputs, 3 outputs), in 1000 repetitions."""
    bound, rng, covered = BoundPooled(Pooled(), 0.5), np.random.default_rng(count), []
    for _ in range(1000):
        block = MomentBlock.of(draw(rng, (count, 4, 3)))
        found = bound.summarise(PooledState(block), {})
        stderr = found.variance_stderr
        if own:
            spread = theory.variance_of_sample_variance(count, block.variance, block.fourth)
            stderr = student_factor(count) * widened_for_scale(spread, block.variance) * np.sqrt(spread)
        covered.append(np.abs(found.variance - exact) <= 1.959964 * stderr)
    return np.mean(covered)


@pytest.mark.parametrize("count", [10, 20, 50])
@pytest.mark.parametrize(
    ("law", "exact"), [("standard_normal", 1.0), ("random", 1 / 12), ("standard_exponential", 1.0)]
)
def test_variances_of_few_passes_are_covered(law, exact, count):
    """12 000 intervals each, hence a standard deviation of at most 0.25 % of what is seen, were they independent.

    Negative control: with a component's own fourth moment alone, ten passes cover less than 92 %.
    """

    def draw(rng, shape):
        return getattr(rng, law)(shape)

    exact = 1 / 12 if law == "random" else 1.0
    assert 0.925 <= share_covered(draw, count, exact) <= 0.98
    if count == 10 and law != "random":
        assert share_covered(draw, count, exact, own=True) < 0.92


def test_kurtosis_of_few_passes_is_that_of_all_and_of_many_ones_own():
    rng = np.random.default_rng(4)
    calm, wild = rng.random((3000, 20)), rng.standard_exponential((3000, 20))
    passes = np.hstack([calm / calm.std(), wild])
    few, many = kurtosis_of_few(MomentBlock.of(passes[:10])), MomentBlock.of(passes)
    assert few.max() / few.min() < 1.2
    np.testing.assert_allclose(kurtosis_of_few(many), many.kurtosis, rtol=0.02)


def two_values(rng, count, inputs=5):
    """Passes of units that are dropped with probability 0.2, of different sizes: (passes, inputs, 1)."""
    sizes = rng.uniform(0.5, 1.0, inputs)[:, None]
    return sizes, sizes * (rng.random((count, inputs, 1)) < 0.8)


def test_outputs_that_have_not_moved_yet_have_an_error():
    """Units that ten passes never drop, in one case out of nine.

    2000 repetitions with 5 inputs; the observed coverage has a standard deviation of 0.3 %. Negative control: with
    rates at which every mask has come up, no interval of these covers.
    """
    rng, covered = np.random.default_rng(6), []
    for _ in range(2000):
        sizes, passes = two_values(rng, 10)
        hits = []
        for rarest in (0.2, 0.5):
            found = BoundPooled(Pooled(), rarest).summarise(PooledState(MomentBlock.of(passes)), {})
            mean = np.abs(found.mean - 0.8 * sizes) <= 1.959964 * found.mean_stderr
            hits.append([mean, np.abs(found.variance - 0.16 * sizes**2) <= 1.959964 * found.variance_stderr])
        covered.append(hits)
    with_error, without = np.mean(covered, axis=(0, 3, 4))
    assert np.all((with_error >= 0.92) & (with_error <= 0.97)), with_error
    assert np.all(without < 0.9), without


def test_no_error_where_nothing_moves_elsewhere_or_every_mask_has_come_up():
    rng = np.random.default_rng(7)
    passes = rng.standard_normal((10, 3, 2))
    passes[:, 0, 0] = passes[:, :, 1] = 1.0
    mean, variance = errors_of_still(MomentBlock.of(passes), 0.2)
    expected = passes[:, 1:, 0].var(axis=0, ddof=1).mean()
    assert 1.959964 * variance[0, 0] == pytest.approx(expected, rel=1e-6)
    assert 1.959964 * mean[0, 0] == pytest.approx(0.5 * expected**0.5, rel=1e-6)
    assert np.count_nonzero(mean) == np.count_nonzero(variance) == 1
    assert not np.any(errors_of_still(MomentBlock.of(np.repeat(passes, 2, axis=0)), 0.2))  # 0.8²⁰ is 1 %


def test_errors_as_large_as_a_variance_are_widened_four_times():
    error2, variance = np.array([0.0, 1e-6, 1.0, 9.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0, -1.0])
    np.testing.assert_allclose(widened_for_scale(error2, variance), [1, 1 + 3e-6, 4, 4, 4])


# ----------------------------------------------------------------------------------- in results


class Saturated(nn.Module):
    """A probability that is ordinary, one that is close to 1, and a constant."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(
                nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5)
            )
            self.out = nn.Linear(64, 1)

    def forward(self, x):
        logit = 4 * self.out(self.net(x))
        return torch.cat([torch.sigmoid(0.3 * logit), torch.sigmoid(3 * logit + 14), torch.ones_like(logit)], dim=1)


@pytest.mark.parametrize("method", ["pooled", "stratified", "control-variate", "auto"])
def test_results_flag_the_saturated_component_and_the_constant_one(method):
    result = md.estimate(Saturated().eval(), torch.ones(4, 2), method=method, budget=500)
    assert result.mean_reliable[:, 0].all() and result.variance_reliable[:, 0].all()
    assert not result.variance_reliable[:, 1:].any()
    assert not result.mean_reliable[:, 2].any()
    assert any(note.startswith("For 8 of 12 outputs few passes carry most of the variance") for note in result.notes)


def test_mlmc_flags_them_too():
    result = md.estimate(Saturated().eval(), torch.ones(4, 2), method="mlmc", budget=2000)
    assert result.mean_reliable[:, 0].all() and not result.variance_reliable[:, 1:].any()


@pytest.mark.parametrize("method", ["pooled", "auto", "stratified", "control-variate", "mlmc"])
def test_an_ordinary_network_has_nothing_to_say(method):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(3, 40), nn.Tanh(), nn.Dropout(0.2), nn.Linear(40, 40), nn.Tanh(), nn.Dropout(0.2)]
        model = nn.Sequential(*layers, nn.Linear(40, 2)).eval()
    result = md.estimate(
        model, torch.rand(10, 3, generator=torch.Generator().manual_seed(0)), method=method, budget=1000
    )
    assert result.mean_reliable.all() and result.variance_reliable.all()
    assert not any("believed" in note for note in result.notes)


def test_a_dropout_that_is_averaged_out_exactly_is_believed():
    """Nothing is left to chance: the passes do not move, and the variance is known."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 1)).double().eval()
    for method in ("stratified", "control-variate"):
        result = md.estimate(model, torch.rand(3, 2, dtype=torch.float64), method=method, budget=1000)
        assert result.mean_reliable.all() and result.variance_reliable.all()


def test_batches_count_together():
    x = torch.ones(4, 2)
    result = md.estimate(Saturated().eval(), [x[:2], x[2:]], method="pooled", budget=500)
    assert result.mean_reliable.shape == (4, 3)
    assert any("of 12 outputs" in note for note in result.notes)
    assert source_of(Saturated().eval(), x).batch.rows == 4
