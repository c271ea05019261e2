"""I3: sampling variances of the inverse surrogate against T."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlmc_dropout.reproduction import rates
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.statistics import LineFit
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity

__all__ = ["EXPERIMENT", "PRINTED"]

# The paper's table of gradients: estimate, 99 % interval.
PRINTED = {
    ("u", "Y"): (-1.0033, -1.0159, -0.9907),
    ("f", "Y"): (-0.9976, -1.0094, -0.9857),
    ("u", "V"): (-0.9852, -1.0000, -0.9704),
    ("f", "V"): (-0.9842, -0.9963, -0.9722),
}


def _compatible(fit: LineFit, printed: tuple[float, float, float]) -> bool:
    """Whether two independent estimates differ by no more than a 99 % interval of their difference."""
    value, low, high = printed
    return abs(fit.slope - value) <= math.hypot((fit.high - fit.low) / 2, (high - low) / 2)


def judge(data: Mapping[str, Any]) -> Judgement:
    """Claim: slopes as theory has them. Agreement: the printed slopes; for V also with the biased variance.

    Args:
        data: What :func:`rates.compute` returns.

    Returns:
        The judgement.
    """
    fits = rates.fits(data)
    checks = rates.theory_checks(data)
    for (out, key), printed in PRINTED.items():
        agrees = _compatible(fits[out, key], printed)
        text = f"Printed for 𝒮²_{key}({out}): {printed[0]:.4f}, {'compatible with' if agrees else 'differs from'} ours."
        checks.append(
            Check("agreement", f"the printed {rates.slope_name(out, key)} is compatible with ours", agrees, text)
        )
    for out in ("u", "f"):
        checks.append(_bias_check(data, out, fits[out, "V0"]))
    paper = [Quantity(rates.slope_name(out, key), *values) for (out, key), values in PRINTED.items()]
    return Judgement(paper, rates.quantities(data), checks, [rates.table(data)])


def _bias_check(data: Mapping[str, Any], out: str, fit: LineFit) -> Check:
    """The same passes with V divided by T instead of T − 1 inside a replicate."""
    agrees = _compatible(fit, PRINTED[out, "V"])
    expected = rates.theory_slope(data["T"], "V", None, biased=True)
    return Check(
        "note",
        f"with the biased sample variance (ddof 0) our passes give the printed slope for V, output {out}",
        agrees,
        f"With the biased sample variance inside a replicate the same passes give {fit.slope:.4f} for V({out}) "
        f"(theory {expected:.4f}), which {'is compatible with' if agrees else 'still differs from'} the printed value.",
    )


EXPERIMENT = Experiment(
    id="I3",
    title="Sampling variances against fidelity, inverse problem",
    claim="The sampling variances fall like 1/T for both outputs; four slopes between −1.0033 and −0.9842 are printed.",
    surrogates=("source-inference",),
    profiles={name: {**settings, "seed": 7000} for name, settings in rates.PROFILES.items()},
    compute=rates.compute,
    judge=judge,
    draw=rates.draw,
    rows=rates.csv_rows,
)
