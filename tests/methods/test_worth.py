"""What the passes of a run are worth: the formulas, exactly."""

import numpy as np
import pytest

from mlmc_dropout import theory
from mlmc_dropout.methods.worth import FEWEST, Worth, excess, gain, plain_passes
from mlmc_dropout.moments import MomentBlock


def worth(c, mu2, mu4, samples=100.0, doubt=0.1):
    """Of a run whose errors are those of plain averaging with c passes."""
    mu2, mu4 = np.asarray(mu2), np.asarray(mu4)
    errors = mu2 / c, theory.variance_of_sample_variance(c, mu2, mu4)
    doubts = (np.full(mu2.shape, doubt),) * 2
    return Worth.of(mu2, mu4 - mu2**2, *errors, doubts, samples)


@pytest.mark.parametrize("kurtosis", [1.0, 1.8, 3.0, 9.0, 400.0])
@pytest.mark.parametrize("c", [10, 1000])
def test_plain_averaging_is_worth_its_passes_whatever_its_tails(c, kurtosis):
    mu2 = np.array([[0.3, 2.0], [1e-3, 1.0], [1.0, 5.0]])
    parts = [worth(c, mu2[:1], kurtosis * mu2[:1] ** 2), worth(c, mu2[1:], kurtosis * mu2[1:] ** 2)]
    assert plain_passes(parts, together=False) == pytest.approx((c, c))


def test_gaussian_passes_for_others_would_be_wrong():
    """Negative control: the variance of heavy-tailed passes, compared with Gaussian ones."""
    heavy = worth(1000, [[1.0]], [[400.0]])
    gaussian = Worth.of(
        np.ones((1, 1)), 2 * np.ones((1, 1)), heavy.mean[:, None], heavy.variance[:, None], (0, 0), 99.0
    )
    assert plain_passes([gaussian], False)[1] < 10


def test_what_cannot_be_known_is_not_told():
    mu2 = np.ones((4, 1))
    assert np.isnan(plain_passes([worth(100, mu2, 3 * mu2, samples=FEWEST - 1)], False)).all()
    uncertain = [worth(100, mu2, 3 * mu2, doubt=0.7)]
    assert plain_passes(uncertain, together=False) == pytest.approx((100, 100))  # four inputs tell more than one
    assert np.isnan(plain_passes(uncertain, together=True)).all()  # but not if all have the same masks
    lost = Worth.of(mu2, 2 * mu2, np.full((4, 1), np.nan), mu2 / 50, (mu2 / 9, mu2 / 9), 100.0)
    assert np.isnan(plain_passes([lost], False)[0]) and np.isfinite(plain_passes([lost], False)[1])


def test_where_nothing_is_left_to_chance_no_number_of_passes_would_do():
    mu2, none = np.ones((2, 1)), np.zeros((2, 1))
    assert plain_passes([Worth.of(mu2, 2 * mu2, none, none, (none, none), 100.0)], False) == (np.inf, np.inf)
    assert np.isnan(plain_passes([Worth.of(none, none, none, none, (none, none), 100.0)], False)).all()
    rounded = Worth.of(mu2, 2 * mu2, none, none, (none, none), 100.0).at_least(mu2 / 1e9, mu2 / 1e9)
    assert plain_passes([rounded], False)[0] == pytest.approx(1e9)


@pytest.mark.parametrize("n", [4, 5, 12])
def test_the_excess_of_few_passes_has_no_bias(n):
    """Over all samples of size n of a law of three values, by enumeration."""
    values, p = np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.3, 0.2])
    mu = p @ values
    mu2, mu4 = (p @ (values - mu) ** k for k in (2, 4))
    expected = biased = 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            counts = np.array([a, b, n - a - b])
            ways = np.exp(_log_factorial(n) - sum(map(_log_factorial, counts))) * np.prod(p**counts)
            block = MomentBlock.of(np.repeat(values, counts)[:, None])
            expected += ways * excess(block)[0]
            biased += ways * (block.fourth - block.variance**2)[0]
    assert expected == pytest.approx(mu4 - mu2**2, rel=1e-9)
    assert abs(biased / (mu4 - mu2**2) - 1) > 0.05  # negative control


def _log_factorial(n):
    return np.log(np.arange(1, n + 1)).sum()


def test_a_gain_without_error_or_spread():
    assert gain(np.array([1.0, 1.0, 0.0]), np.array([0.01, 0.0, 0.0]), 50.0)[:2].tolist() == [2.0, np.inf]
    assert np.isnan(gain(np.zeros(1), np.zeros(1), 50.0)).all()
