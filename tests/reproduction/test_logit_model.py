"""The four-parameter fit."""

from __future__ import annotations

import numpy as np
import pytest

from mlmc_dropout.reproduction.logit_model import fit, jacobian, model

P = np.linspace(0.03, 0.97, 20)
PRINTED = np.array([-18.0, 0.25, 3.26, 5.06])


def test_jacobian_is_the_derivative() -> None:
    J = jacobian(P, PRINTED)
    for index in range(4):
        step = np.zeros(4)
        step[index] = 1e-6
        difference = (model(P, *(PRINTED + step)) - model(P, *(PRINTED - step))) / 2e-6
        np.testing.assert_allclose(J[:, index], difference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("true", [PRINTED, np.array([-23.8, 0.51, 8.31, 4.77]), np.array([-10.0, 1.0, 1.5, 0.8])])
def test_exact_data_give_the_parameters_back(true: np.ndarray) -> None:
    fitted = fit(P, model(P, *true))
    np.testing.assert_allclose(fitted.parameters, true, rtol=1e-5)
    assert fitted.r_squared > 1 - 1e-9


def test_intervals_cover_at_their_level() -> None:
    """100 data sets with noise like that of a norm; P(fewer than 94 covered at 99 %) < 1e-4."""
    generator = np.random.default_rng(3)
    hits, product = np.zeros(4), 0
    for _ in range(100):
        fitted = fit(P, model(P, *PRINTED) + 0.04 * generator.normal(size=len(P)))
        for index in range(4):
            low, high = fitted.interval(index)
            hits[index] += low <= PRINTED[index] <= high
        _, low, high = fitted.small_p_exponent()
        product += low <= PRINTED[1] * PRINTED[3] <= high
    assert np.all(hits >= 0.94 * 100)
    assert product >= 0.94 * 100


def test_another_parameter_is_excluded() -> None:
    noise = 0.04 * np.random.default_rng(4).normal(size=len(P))
    low, high = fit(P, model(P, *PRINTED) + noise).interval(2)
    assert not low <= 8.31 <= high


def test_band_and_correlation() -> None:
    fitted = fit(P, model(P, *PRINTED) + 0.04 * np.random.default_rng(5).normal(size=len(P)))
    assert np.all(fitted.half_width(P) > 0)
    assert 0.5 < fitted.largest_correlation() <= 1.0
