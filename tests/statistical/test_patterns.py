"""Whatever way people write randomness in: the moments of an honest loop in training mode, or a loud word.

Errors are compared in standard errors. With 24 rows and two outputs the root mean square of the z-scores is above 1.5
with probability below 0.001 if components were independent; outputs of a row are not quite, and seeds are fixed.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import mlmc_dropout as md
from testing.patterns import PATTERNS, Pattern

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")

PASSES = 3000
LIMIT = 1.5


def _estimate(pattern: Pattern, method: str, **more) -> tuple[md.Result, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = md.estimate(pattern.model, pattern.x, budget=PASSES, method=method, **pattern.options, **more)
    return result, [w for w in heard if issubclass(w.category, md.ModelWarning)]


def _rms_z(pattern: Pattern, result: md.Result) -> tuple[float, float]:
    """Root mean square z-scores of mean and variance against the honest loop."""
    passes = pattern.honest(PASSES)
    mean, variance = passes.mean(0), passes.var(0, ddof=1)
    fourth = ((passes - mean) ** 4).mean(0)
    errors = np.sqrt(variance / PASSES), np.sqrt((fourth - variance**2) / PASSES)
    z = (result.mean - mean) / np.hypot(errors[0], result.mean_stderr)
    z_v = (result.variance - variance) / np.hypot(errors[1], result.variance_stderr)
    return float(np.sqrt((z**2).mean())), float(np.sqrt((z_v**2).mean()))


def _right(name: str) -> bool:
    return not PATTERNS[name].refused and not PATTERNS[name].warned and name != "branch_of_activations"


@pytest.mark.parametrize("name", [*filter(_right, PATTERNS)])
@pytest.mark.parametrize("method", ["pooled", "stratified", "auto"])
def test_patterns_are_right(name: str, method: str) -> None:
    pattern = PATTERNS[name]
    result, heard = _estimate(pattern, method)
    assert [pattern.mentioned in str(w.message) for w in heard] == [True] * bool(pattern.mentioned)
    z, z_v = _rms_z(pattern, result)
    assert z < LIMIT and z_v < LIMIT, (z, z_v)


@pytest.mark.parametrize("name", [n for n, p in PATTERNS.items() if p.refused])
def test_patterns_are_refused_by_name(name: str) -> None:
    with pytest.raises(md.MLMCDropoutError) as caught:
        md.estimate(PATTERNS[name].model, PATTERNS[name].x, budget=100)
    assert PATTERNS[name].refused in str(caught.value), str(caught.value)


@pytest.mark.parametrize("name", [n for n, p in PATTERNS.items() if p.warned])
def test_patterns_are_warned_of_by_name(name: str) -> None:
    with pytest.warns(md.ModelWarning, match=PATTERNS[name].warned):
        md.estimate(PATTERNS[name].model, PATTERNS[name].x, budget=100)


def test_control_flow_of_activations_is_right_or_refused() -> None:
    """Whether a pass goes the other way is a matter of chance: with luck the pattern is caught while pilot_cost."""
    with pytest.raises(md.MLMCDropoutError):
        _estimate(PATTERNS["branch_of_activations"], "pooled")


@pytest.mark.parametrize("name", [n for n, p in PATTERNS.items() if p.hidden])
def test_a_lost_site_would_be_noticed(name: str) -> None:
    """The negative control: without the hidden site the same test fails."""
    pattern = PATTERNS[name]
    result, _ = _estimate(pattern, "pooled", exclude=[pattern.hidden])
    assert max(_rms_z(pattern, result)) > 3


def test_there_is_a_negative_control_for_several_kinds_of_patterns() -> None:
    assert sum(bool(p.hidden) for p in PATTERNS.values()) >= 5
