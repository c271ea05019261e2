"""Saturated probabilities: intervals that are not flagged cover, and those of all components do not.

A short version of ``benchmarks/saturation.py``: fewer images and runs. The standard deviation of a coverage over a few
thousand unflagged intervals, of components that are not independent, is below 1 %; 90 % is four of them below 95 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

IMAGES, RUNS, REFERENCE = 40, 60, 60_000


@pytest.fixture(scope="module")
def saturation():
    return pytest.importorskip("saturation")


@pytest.fixture(scope="module")
def digits(saturation):
    source = saturation.source_of(IMAGES)
    return source, saturation.reference(source, REFERENCE)


@pytest.mark.parametrize(
    "method",
    ["pooled", pytest.param("stratified", marks=pytest.mark.slow), pytest.param("auto", marks=pytest.mark.slow)],
)
def test_intervals_that_are_not_flagged_cover(saturation, digits, method):
    source, truth = digits
    for covered in saturation.study(source, saturation.METHODS[method], truth, RUNS):
        assert covered.coverage >= 0.9
        assert not covered.failing()
        assert covered.holds.mean() < 0.9, "negative control: without the guard they do not"
        assert covered.reliable.any(axis=0).mean() > 0.03, "not everything is flagged"
