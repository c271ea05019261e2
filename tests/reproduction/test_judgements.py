"""Verdicts follow from numbers: made-up numbers with known answers, among them answers of no."""

from __future__ import annotations

import numpy as np
import pytest

from mlmc_dropout.reproduction import EXPERIMENTS, logit_model, rates
from mlmc_dropout.reproduction.f3_dropout_rate import PRINTED as PRINTED_FIT
from mlmc_dropout.reproduction.verdict import outcome
from testing.small_surrogates import inverse

T = rates.fidelities(rates.PROFILES["paper"])


def judged(name: str, data: dict) -> str:
    return outcome(EXPERIMENTS[name].judge(data).checks).value


def rate_data(outputs: str, seed: int = 0, power: float = 1.0, biased: bool = False) -> dict:
    """Norms with Gaussian passes' variances and 3 % noise."""
    generator = np.random.default_rng(seed)
    t = np.array(T, dtype=float)
    noise = lambda: np.exp(0.03 * generator.normal(size=len(t)))  # noqa: E731
    factor = ((t - 1) / t) ** 2 if biased else 1.0
    norms = {
        out: {"Y": (t**-power * noise()).tolist(), "V": (2 / (t - 1) ** power * factor * noise()).tolist()}
        for out in outputs
    }
    return {"T": T, "norms": norms, "moments": {out: {"mu2": [1.0] * 3, "mu4": [3.0] * 3} for out in outputs}}


def test_rates() -> None:
    assert judged("F2", rate_data("u")) == "reproduced"
    assert judged("F2", rate_data("u", power=0.9)) == "not reproduced"


def test_printed_slopes_differ_because_of_the_biased_variance() -> None:
    data = rate_data("uf", seed=1)
    assert judged("I3", data) == "reproduced with a stated difference"
    notes = [c for c in EXPERIMENTS["I3"].judge(data).checks if c.kind == "note"]
    assert [c.holds for c in notes] == [True, True]
    assert judged("I3", rate_data("uf", power=1.1)) == "not reproduced"


def test_a_biased_sample_variance_is_noticed() -> None:
    """Negative control: numbers with the bias of the authors' code do not pass as ours."""
    assert judged("I3", rate_data("uf", seed=1, biased=True)) == "not reproduced"


def fit_data(shift: float = 0.0) -> dict:
    p = np.linspace(0.03, 0.97, 20)
    noise = np.random.default_rng(0).normal(size=(4, 20)) * 0.03
    curves = [logit_model.model(p, *(a[0] for a in PRINTED_FIT[key])) + shift * p for key in "YV"]
    trained = {key: np.exp(c + n).tolist() for key, c, n in zip("YV", curves, noise, strict=False)}
    other = {key: np.exp(np.log(p / (1 - p)) + n).tolist() for key, n in zip("YV", noise[2:], strict=True)}
    return {"p": p.tolist(), "T": 1, "T_untrained": 1, "trained": trained, "untrained": other}


def test_dropout_rate() -> None:
    assert judged("F3", fit_data()) == "reproduced"
    assert judged("F3", fit_data(shift=1.0)) == "reproduced with a stated difference"
    falling = fit_data()
    falling["trained"]["Y"] = falling["trained"]["Y"][::-1]
    assert judged("F3", falling) == "not reproduced"


def curve_data(bias: float, T: tuple[int, ...] = (10, 10_000), scale: float = 1.0) -> dict:
    """Passes with mean exact·(1 + bias) and deviation scale·σ, σ being that of the inverse problem."""
    surrogate, generator = inverse(), np.random.default_rng(0)
    mean, std = surrogate.exact_mean(), surrogate.exact_std()
    runs = []
    for t in T:
        run = {}
        for out in mean:
            s = scale * std[out]
            V = s**2 * generator.chisquare(t - 1, size=200) / (t - 1)
            Y = mean[out] * (1 + bias) + s / np.sqrt(t) * generator.normal(size=200)
            run[out] = {"Y": Y.tolist(), "V": V.tolist(), "V_stderr": (V * np.sqrt(2 / (t - 1))).tolist()}
        runs.append(run)
    exact = {"exact_mean": mean, "exact_std": std}
    return {"T": list(T), "x": surrogate.x[:, 0].tolist(), "runs": runs} | {
        key: {out: v.tolist() for out, v in values.items()} for key, values in exact.items()
    }


@pytest.mark.parametrize(
    ("bias", "expected"),
    [(0.0, "reproduced"), (5e-4, "reproduced with a stated difference"), (0.05, "not reproduced")],
)
def test_means(bias: float, expected: str) -> None:
    assert judged("I1", curve_data(bias)) == expected


def test_deviations() -> None:
    assert judged("I2", curve_data(0.0, scale=3.0)) == "reproduced"
    assert judged("I2", curve_data(0.0, scale=1.0)) == "not reproduced", "no mismatch, no claim"


def test_bands() -> None:
    data = curve_data(0.0, (10, 100, 1000, 10_000), scale=5.0)
    assert judged("F1", data) == "reproduced"
    data["runs"] = data["runs"][::-1]
    assert judged("F1", data) == "not reproduced"
