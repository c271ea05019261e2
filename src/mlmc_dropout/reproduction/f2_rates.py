"""F2: sampling variances of the forward surrogate against T."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlmc_dropout.reproduction import rates
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity

__all__ = ["EXPERIMENT"]

_CLOSE = 0.05


def judge(data: Mapping[str, Any]) -> Judgement:
    """Claim: slopes near −1, which the exact formulas make precise on these T.

    Args:
        data: What :func:`rates.compute` returns.

    Returns:
        The judgement.
    """
    checks = rates.theory_checks(data)
    for (out, key), fit in rates.fits(data).items():
        if key in "YV":
            near = fit.contains(-1.0) or abs(fit.slope + 1.0) <= _CLOSE
            checks.append(
                Check(
                    "claim",
                    f"the {rates.slope_name(out, key)} is within {_CLOSE} of −1, or its interval holds −1",
                    near,
                    f"𝒮²_{key} is {'close to' if near else 'not close to'} rate one.",
                )
            )
    paper = [Quantity(rates.slope_name("u", key), "close to −1") for key in "YV"]
    return Judgement(paper, rates.quantities(data), checks, [rates.table(data)])


EXPERIMENT = Experiment(
    id="F2",
    title="Sampling variances against fidelity, forward problem",
    claim="The sampling variances of mean and variance estimators fall like 1/T: log-log slopes close to −1.",
    surrogates=("boundary-layer",),
    profiles={name: {**settings, "seed": 2000} for name, settings in rates.PROFILES.items()},
    compute=rates.compute,
    judge=judge,
    draw=rates.draw,
    rows=rates.csv_rows,
)
