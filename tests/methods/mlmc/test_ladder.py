"""Ladders: what they accept, what they refuse, and what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmc_dropout import Ladder, MLMCDropoutError
from mlmc_dropout.errors import LadderError


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=10, unique=True).map(sorted))
def test_any_strictly_increasing_ladder(values):
    ladder = Ladder(values)
    assert tuple(ladder) == tuple(values) and len(ladder) == len(values)
    assert np.cumsum(ladder.steps).tolist() == values


@given(st.integers(1, 50), st.floats(1.05, 8), st.integers(1, 5000))
def test_geometric_follows_its_formula_or_says_why_not(first, ratio, last):
    if last < first:
        with pytest.raises(LadderError, match="max_fidelity"):
            Ladder.geometric(first, ratio, last)
        return
    wanted = [first]
    while wanted[-1] <= last and len(wanted) < 200:
        wanted.append(math.ceil(round(first * ratio ** len(wanted), 9)))
    wanted = [T for T in wanted if last >= T]
    if len(set(wanted)) < len(wanted):
        with pytest.raises(LadderError, match="raise the ratio"):
            Ladder.geometric(first, ratio, last)
    else:
        assert list(Ladder.geometric(first, ratio, last)) == wanted


def test_geometric_is_exact_where_powers_are():
    assert Ladder.geometric(2, 2, 64).fidelities == Ladder.dyadic(6).fidelities == (2, 4, 8, 16, 32, 64)
    assert Ladder.geometric(10, 1.1, 13).fidelities == (10, 11, 13)  # 10 · 1.1 is 11 and not ceil(11.000000000000002)


def test_values_are_plain_frozen_and_equal_by_value():
    ladder = Ladder(np.array([4, 8, 16]))
    assert ladder == Ladder((4, 8, 16)) and hash(ladder) == hash(Ladder([4, 8, 16]))
    assert all(type(T) is int for T in ladder)
    with pytest.raises(AttributeError):
        ladder.fidelities = (1, 2)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ((), "()"),
        ((4, 2), "(4, 2)"),
        ((4, 4), "(4, 4)"),
        ((0, 4), "(0, 4)"),
        ((-2, 4), "(-2, 4)"),
        ((4, 8.5), "8.5"),
        ((4.0, 8.0), "4.0"),
        ((4, "8"), "'8'"),
        ((4, None), "None"),
        ((True, 4), "True"),
        ((4, float("nan")), "nan"),
        (5, "5"),
        ("48", "'48'"),
        (None, "None"),
    ],
)
def test_bad_ladders_are_shown_with_a_remedy(bad, shown):
    with pytest.raises(LadderError) as error:
        Ladder(bad)
    message = str(error.value)
    assert isinstance(error.value, MLMCDropoutError) and isinstance(error.value, ValueError)
    assert shown in message and ";" in message


@pytest.mark.parametrize(
    ("first", "ratio", "last"),
    [
        (2, 1.0, 64),
        (2, 0.5, 64),
        (2, float("nan"), 64),
        (2, float("inf"), 64),
        (0, 2, 64),
        (8, 2, 4),
        (2.5, 2, 64),
        (2, 2, float("inf")),
        (2, 1 + 1e-12, 10**9),
    ],
)
def test_bad_geometric_ladders(first, ratio, last):
    with pytest.raises(LadderError, match=r"got|gives"):
        Ladder.geometric(first, ratio, last)


@pytest.mark.parametrize("levels", [0, -1, 2.5, None])
def test_bad_dyadic_ladders(levels):
    with pytest.raises(LadderError, match=str(levels)):
        Ladder.dyadic(levels)


@pytest.mark.parametrize("bad", [(1, 4), (2, 3), (4, 8, 9)])
def test_variances_need_room(bad):
    Ladder(bad)  # fine for means
    with pytest.raises(LadderError, match="gaps of at least 2") as error:
        Ladder(bad).require_variances()
    assert str(bad) in str(error.value)
    Ladder((2, 4, 6)).require_variances()
