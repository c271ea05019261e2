"""Numbers on the page and on the console follow one set of rules."""

from __future__ import annotations

import math

import pytest

from mlmc_dropout.report.formats import duration, percent, ratio, short, tick_label, with_error

CASES = [
    (0.0, "0", "0"),
    (2.0, "2", "2"),
    (-0.5, "−0.5", "-0.5"),
    (123456.0, "123456", "123456"),
    (123456.7, "123000", "123000"),
    (12345678.0, "1.23e7", "1.23e7"),
    (1e-9, "1.00e−9", "1.00e-9"),
    (0.00123456, "0.00123", "0.00123"),
    (9.999, "10", "10"),
    (math.nan, "–", "–"),
    (math.inf, "–", "–"),
]


@pytest.mark.parametrize(("value", "typeset", "plain"), CASES)
def test_short_numbers(value: float, typeset: str, plain: str) -> None:
    assert short(value) == typeset
    assert short(value, plain=True) == plain


def test_plain_numbers_can_be_read_back() -> None:
    for value in (3.0, -41234.0, 1.2345e-7, 0.25, 6.02e23):
        assert float(short(value, 4, plain=True)) == pytest.approx(value, rel=1e-3)


def test_units() -> None:
    assert (ratio(2.187), percent(0.1234), duration(1.26), duration(75.2)) == ("2.2×", "12\xa0%", "1.3\xa0s", "75\xa0s")
    assert tick_label(1e6) == "10⁶"
    assert tick_label(2e5) == "2·10⁵"
    assert tick_label(2.0**18) == "262144"  # powers of two beside an axis of passes
    assert tick_label(0.0) == "0"


def test_numbers_are_not_torn_from_their_errors() -> None:
    for value, error in ((0.5, 0.01), (1e9, 1.0), (0.5, math.nan)):
        assert " " not in with_error(value, error) and "\u00a0±\u00a0" in with_error(value, error)
