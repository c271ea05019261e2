"""Means over groups merge like the samples they stand for."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlmc_dropout.groups import GroupBlock


def samples(count, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, size=(count, 2, 3))


@given(st.integers(1, 90), st.lists(st.integers(0, 90), max_size=4), st.integers(0, 70), st.sampled_from([2, 8, 32]))
def test_any_split_merges_to_the_block_of_all(count, cuts, first, groups):
    values = samples(count)
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < count), count]
    parts = [GroupBlock.of(values[a:b], first + a, groups) for a, b in pairwise(edges) if b > a]
    whole = GroupBlock.of(values, first, groups)
    for order in (parts, parts[::-1]):
        merged = reduce(GroupBlock.merge, order)
        assert np.array_equal(merged.counts, whole.counts)
        np.testing.assert_allclose(merged.means, whole.means, rtol=1e-12)
    np.testing.assert_allclose(whole.mean, values.mean(axis=0), rtol=1e-12)
    assert whole.count == count


def test_every_sample_is_in_the_group_of_its_number():
    values = samples(70)
    block = GroupBlock.of(values[5:70], 5, 8)
    for group in range(8):
        mine = [values[i] for i in range(5, 70) if i % 8 == group]
        assert block.counts[group] == len(mine)
        np.testing.assert_allclose(block.means[group], np.mean(mine, axis=0))


def test_half_as_many_groups_hold_the_same_samples():
    values = samples(75)
    halved = GroupBlock.of(values, 0, 32).coarser()
    expected = GroupBlock.of(values, 0, 16)
    assert np.array_equal(halved.counts, expected.counts)
    np.testing.assert_allclose(halved.means, expected.means, rtol=1e-12)


def test_groups_without_samples_are_left_out():
    block = GroupBlock.of(samples(3), 30, 32)
    assert np.flatnonzero(block.counts).tolist() == [0, 30, 31]
    assert len(block.filled.counts) == 3 and block.filled.count == 3
    assert block.filled.filled is not block  # nothing left to leave out
    np.testing.assert_allclose(block.filled.mean, block.mean)


def test_rows_and_features_are_chosen_and_joined():
    values = samples(40)
    block = GroupBlock.of(values, 0, 8)
    joined = GroupBlock.of(values[:, :1], 0, 8).room_for(block.rows)
    for rows in (slice(0, 1), slice(1, None)):
        GroupBlock.of(values[:, rows], 0, 8).copy_to(joined, rows)
    assert np.array_equal(joined.means, block.means)
    assert np.array_equal(block.select(np.array([1])).means, block.means[:, 1:])
    assert np.array_equal(block.features(slice(1, 3)).means, block.means[..., 1:3])


@pytest.mark.parametrize("groups", [2, 32])
def test_an_empty_block_is_the_identity(groups):
    block = GroupBlock.of(samples(9), 4, groups)
    empty = GroupBlock(np.zeros(groups, dtype=np.int64), np.zeros_like(block.means))
    for merged in (empty.merge(block), block.merge(empty)):
        assert np.array_equal(merged.counts, block.counts) and np.array_equal(merged.means, block.means)
