"""The grouped jackknife on samples of a coin: all outcomes are enumerated, so that expectations are exact."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from numpy.testing import assert_allclose

from mlmc_dropout.quantities.base import GroupMeans
from mlmc_dropout.quantities.jackknife import jackknife, plug_in
from mlmc_dropout.quantities.student import student_factor

P = 0.3
SIZES = [(1, 1, 1, 1, 1, 1, 1, 1), (2, 2, 2, 2), (3, 2, 2, 1), (4, 1, 1, 1, 1), (5, 1)]


def groups_of(outcomes, sizes):
    """Groups of coins (rows, Σ sizes): one row per outcome."""
    edges = np.cumsum([0, *sizes])
    means = np.stack([outcomes[:, a:b].mean(axis=1) for a, b in pairwise(edges)])
    return GroupMeans(np.array(sizes), {"x": means}, int(edges[-1]))


def everything(sizes):
    outcomes = np.array(list(product((0.0, 1.0), repeat=sum(sizes))))
    return groups_of(outcomes, sizes), np.where(outcomes == 1, P, 1 - P).prod(axis=1)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_bias_of_a_square_is_gone_whatever_the_sizes(sizes):
    groups, weights = everything(sizes)
    value, _ = jackknife(lambda e: np.square(e["x"]), groups)
    assert_allclose(weights @ value, P**2, rtol=1e-12)
    biased = plug_in(lambda e: np.square(e["x"]), groups)
    assert_allclose(weights @ biased, P**2 + P * (1 - P) / sum(sizes), rtol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_mean_is_left_as_it_is_and_its_squared_standard_error_is_right(sizes):
    groups, weights = everything(sizes)
    value, stderr = jackknife(lambda e: e["x"], groups)
    assert_allclose(value, plug_in(lambda e: e["x"], groups), atol=1e-14)
    student = float(student_factor(len(sizes)))
    assert_allclose(weights @ np.square(stderr / student), P * (1 - P) / sum(sizes), rtol=1e-12)


def test_weights_that_ignore_the_sizes_are_refused():
    """Negative control: the equal-groups formula on unequal groups leaves a bias."""
    groups, weights = everything((5, 1))
    whole = plug_in(lambda e: np.square(e["x"]), groups)
    without = np.square(groups.means["x"][::-1])
    wrong = 2 * whole - 0.5 * without.sum(axis=0)
    assert abs(weights @ wrong - P**2) > 1e-3


def test_a_single_group_has_a_value_and_no_standard_error():
    groups = GroupMeans(np.array([4]), {"x": np.full((1, 3), 0.25)}, 4)
    value, stderr = jackknife(lambda e: np.square(e["x"]), groups)
    assert_allclose(value, 0.0625)
    assert np.isnan(stderr).all()


def test_designs_counted_by_their_passes_weigh_by_their_number():
    """Counts in units of passes or of designs are the same jackknife."""
    rng = np.random.default_rng(0)
    means = {"x": rng.normal(size=(5, 7))}
    few = jackknife(lambda e: np.exp(e["x"]), GroupMeans(np.array([2, 1, 1, 1, 1]), means, 6))
    many = jackknife(lambda e: np.exp(e["x"]), GroupMeans(np.array([40, 20, 20, 20, 20]), means, 120))
    for a, b in zip(few, many, strict=True):
        assert_allclose(a, b, rtol=1e-12)
