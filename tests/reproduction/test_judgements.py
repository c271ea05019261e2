"""Verdicts follow from numbers: made-up numbers with known answers, among them answers of no."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlmc_dropout.reproduction import EXPERIMENTS, fixed_cost, logit_model, plans, rates, separate_runs
from mlmc_dropout.reproduction.cost_curves import KEYS, LABELS
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.f3_dropout_rate import PRINTED as PRINTED_FIT
from mlmc_dropout.reproduction.verdict import Check, Judgement, Outcome, outcome
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


def fit_data(shift: float = 0.0, noise: float = 0.03, same: bool = False) -> dict:
    p = np.linspace(0.03, 0.97, 20)
    errors = np.random.default_rng(0).normal(size=(4, 20)) * noise
    curves = [logit_model.model(p, *(a[0] for a in PRINTED_FIT[key])) + shift * p for key in "YV"]
    trained = {key: (10 * np.exp(c + n)).tolist() for key, c, n in zip("YV", curves, errors, strict=False)}
    other = {key: np.exp(np.log(p / (1 - p)) + n).tolist() for key, n in zip("YV", errors[2:], strict=True)}
    untrained = trained if same else other
    return {"p": p.tolist(), "T": 10_000, "T_untrained": 10_000, "M": 10, "trained": trained, "untrained": untrained}


def falling_fit() -> dict:
    data = fit_data()
    return data | {"trained": {key: values[::-1] for key, values in data["trained"].items()}}


def test_dropout_rate() -> None:
    assert judged("F3", fit_data()) == "reproduced"
    assert judged("F3", fit_data(shift=1.0)) == "reproduced with a stated difference"
    assert judged("F3", falling_fit()) == "not reproduced"


def test_the_paper_fits_S2_and_not_the_sample_variance() -> None:
    """Negative control: without the division by M the level α1 is off by log M."""
    assert judged("F3", fit_data() | {"M": 1}) == "reproduced with a stated difference"


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


def reversed_runs(data: dict) -> dict:
    return data | {"runs": data["runs"][::-1]}


def test_deviations() -> None:
    assert judged("I2", curve_data(0.0, scale=0.5)) == "reproduced"
    assert judged("I2", curve_data(0.0, scale=3.0)) == "reproduced with a stated difference"
    assert judged("I2", curve_data(0.0, scale=1.0)) == "not reproduced", "no mismatch, no claim"
    assert judged("I2", reversed_runs(curve_data(0.0, scale=0.5))) == "not reproduced"


def band_data() -> dict:
    return curve_data(0.0, (10, 100, 1000, 10_000), scale=5.0)


def test_bands() -> None:
    assert judged("F1", band_data()) == "reproduced"
    assert judged("F1", reversed_runs(band_data())) == "not reproduced"


def allocation_data(outputs: str, optimum: str = "theory", budget: int = 1000, worth: float = 2.2) -> dict:
    """An allocation test whose empirical optimum is where theory has it, or where the paper prints it."""
    moments = {out: {"mu2": [1.0] * 3, "mu4": [3.0] * 3} for out in outputs}
    data: dict[str, Any] = {"ladder": [4, 8, 16], "budget": budget, "allocations": 1, "moments": moments}
    counts = separate_runs.allocations((4, 8, 16), budget, 4)
    found: dict[str, Any] = {}
    separate: dict[str, Any] = {}
    for out in outputs:
        found[out], separate[out] = {}, {}
        for key in "YV":
            theory = fixed_cost.theory_best(data, out, key).centre
            centre = theory if optimum == "theory" else fixed_cost.PRINTED[key]
            found[out][key] = {
                "centre": centre,
                "single": [round(m) for m in centre],
                "low": [m - 1 for m in centre],
                "high": [m + 1 for m in centre],
                "levels": fixed_cost.level_variances(data, out, key),
                "one_repetition": {"centre_sd": [1.0] * 3},
            }
            separate[out][key] = np.hypot(*(counts[:, 1:] - np.asarray(centre[1:])).T).tolist()
    plan = {"name": "", "counts": [1], "cost": budget, "outputs": {}}
    for out in outputs:
        units = {key: plans.plain_variance(moments[out], key, budget) for key in "YV"}
        plan["outputs"][out] = {
            key: {"variance": worth * u, "low": 0.9 * worth * u, "high": 1.1 * worth * u, "stderr2": u, "S2": 6 * u}
            for key, u in units.items()
        }
    return data | {"found": found, "plans": [plan] * 6, "separate": {"step": 4, "norms": separate}}


@pytest.mark.parametrize(("name", "outputs"), [("F4", "u"), ("I4", "uf")])
def test_allocations(name: str, outputs: str) -> None:
    assert judged(name, allocation_data(outputs)) == "reproduced with a stated difference"
    assert judged(name, allocation_data(outputs, optimum="printed")) == "not reproduced"


def cost_data(multilevel: float, auto: float = 0.1, reference: float = 1.0) -> dict:
    """Curves with mean squared errors ∝ 1/passes and factors of plain Monte Carlo's."""
    factors = dict.fromkeys(LABELS, multilevel) | {"plain": 1.0, "auto": auto}
    spread = [0.9, 1.1, 1.0, 0.95, 1.05]

    def curves(methods: Iterable[str]) -> dict:
        return {
            method: [
                {
                    "budget": c,
                    "cost": float(c),
                    "squares": {key: [factors[method] * s / c for s in spread] for key in KEYS},
                    "reference_noise": dict.fromkeys(KEYS, 0.0),
                }
                for c in (100, 1000)
            ]
            for method in methods
        }

    agreement = {key: {"ratio": reference, "limit": 2.0} for key in KEYS}
    network = {"agreement": agreement, "curves": curves(LABELS), "long": curves(("plain", "nested", "independent"))}
    return {"networks": dict.fromkeys(EXPERIMENTS["H"].surrogates, network), "long_ladder": [16, 32, 64]}


def test_headline() -> None:
    assert judged("H", cost_data(0.5)) == "reproduced"
    assert judged("H", cost_data(2.2)) == "not reproduced"
    assert judged("H", cost_data(1.0)) == "not reproduced", "no gain is no gain"


DOCTORED: dict[str, Callable[[], list[dict]]] = {
    "H": lambda: [cost_data(0.5), cost_data(2.2, auto=2.0, reference=3.0)],
    "F1": lambda: [band_data(), reversed_runs(band_data())],
    "F2": lambda: [rate_data("u"), rate_data("u", power=0.9)],
    "F3": lambda: [fit_data(), fit_data(shift=1.0), falling_fit(), fit_data(noise=2.5), fit_data(same=True)],
    "F4": lambda: [
        allocation_data("u"),
        allocation_data("u", optimum="printed"),
        allocation_data("u", budget=900, worth=0.5),
    ],
    "I1": lambda: [curve_data(0.0), curve_data(0.05)],
    "I2": lambda: [
        curve_data(0.0, scale=0.5),
        curve_data(0.0, scale=1.0),
        reversed_runs(curve_data(0.0, scale=0.5)),
    ],
    "I3": lambda: [rate_data("uf", 1), rate_data("uf", power=1.1), rate_data("uf", 1, biased=True)],
    "I4": lambda: [
        allocation_data("uf"),
        allocation_data("uf", optimum="printed"),
        allocation_data("uf", budget=900, worth=0.5),
    ],
}


def pattern(check: Check) -> str:
    """A statement without its numbers: settings differ between doctored and real data."""
    return re.sub(r"\d+(?:\.\d+)?", "#", check.statement)


def answers(experiment: Experiment, datasets: list[dict]) -> dict[str, set[bool]]:
    """What every check answers to the doctored numbers."""
    seen: dict[str, set[bool]] = {}
    for data in datasets:
        for check in experiment.judge(data).checks:
            seen.setdefault(pattern(check), set()).add(check.holds)
    return seen


def stuck(experiment: Experiment, datasets: list[dict], real: dict) -> list[str]:
    """The checks made of the real numbers that doctored ones have not made hold once and fail once."""
    seen = answers(experiment, datasets)
    made = {pattern(check) for check in experiment.judge(real).checks}
    return sorted(statement for statement in made if seen.get(statement, set()) != {True, False})


def committed(name: str) -> dict:
    """The numbers of the paper profile, read from the committed JSON."""
    path = Path(__file__).parents[2] / "docs" / "results" / name / "numbers.json"
    return json.loads(path.read_text(encoding="utf-8"))["data"]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_check_can_come_out_both_ways(name: str) -> None:
    """Doctored numbers make each check of each experiment hold once and fail once, and so the verdict."""
    datasets = DOCTORED[name]()
    assert stuck(EXPERIMENTS[name], datasets, committed(name)) == []
    verdicts = {outcome(EXPERIMENTS[name].judge(data).checks) for data in datasets}
    assert Outcome.FAILED in verdicts and len(verdicts) > 1


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_a_check_that_cannot_come_out_both_ways_is_noticed(name: str, always: bool) -> None:
    """Negative control of the test above: a further check with one answer to everything."""
    original = EXPERIMENTS[name]

    def judge(data: Any) -> Judgement:
        judged = original.judge(data)
        return dataclasses.replace(judged, checks=[*judged.checks, Check("claim", "the moon is round", always, "")])

    experiment = dataclasses.replace(original, judge=judge)
    assert stuck(experiment, DOCTORED[name](), committed(name)) == ["the moon is round"]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_claim_and_every_agreement_decides(name: str) -> None:
    """From the committed numbers: turning any single answer over changes the verdict as its kind says."""
    checks = [dataclasses.replace(check, holds=True) for check in EXPERIMENTS[name].judge(committed(name)).checks]
    wanted = {"claim": Outcome.FAILED, "agreement": Outcome.DIFFERENT, "note": Outcome.REPRODUCED}
    for place, check in enumerate(checks):
        turned = [*checks[:place], dataclasses.replace(check, holds=False), *checks[place + 1 :]]
        assert outcome(turned) is wanted[check.kind]
