"""Moment blocks of any split, merged in any order, are those of one pass and of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlmc_dropout import MomentBlock
from mlmc_dropout.errors import InputError
from mlmc_dropout.moments import merge_all, recursive_squares, running_moments

FIELDS = ("mean", "s2", "s3", "s4")
values = st.floats(-1e3, 1e3, allow_subnormal=False)
samples = st.lists(values, min_size=1, max_size=60).map(np.array)


def direct(x):
    """The definition, in long double."""
    x = np.asarray(x, dtype=np.longdouble)
    d = x - x.mean(axis=0)
    return MomentBlock(len(x), x.mean(axis=0), *((d**k).sum(axis=0) for k in (2, 3, 4)))


def close(a, b, scale=None, rtol=1e-10):
    """Equal to rounding: central sums of order k are accurate relative to Σ|x − mean|^k and to n·(rounding of x)^k."""
    if a.count != b.count:
        return False
    spread = float(scale)
    bounds = (spread, a.count * spread**2, a.count * spread**3, a.count * spread**4)
    return all(
        np.all(np.abs(np.asarray(getattr(a, f) - getattr(b, f), dtype=float)) <= rtol * bound + 1e-300)
        for f, bound in zip(FIELDS, bounds, strict=True)
    )


@given(samples, st.lists(st.integers(0, 60), max_size=8), st.randoms())
def test_any_split_in_any_order_is_one_pass(x, cuts, random):
    parts = [MomentBlock.of(part) for part in np.split(x, sorted(min(c, len(x)) for c in cuts))]
    random.shuffle(parts)
    scale = np.abs(x).max() + 1e-30
    assert close(merge_all(parts), MomentBlock.of(x), scale)
    assert close(merge_all(parts), direct(x), scale)


@given(samples, samples, samples)
def test_merging_is_associative_and_commutative(x, y, z):
    a, b, c = map(MomentBlock.of, (x, y, z))
    scale = max(np.abs(v).max() for v in (x, y, z)) + 1e-30
    assert close(a.merge(b).merge(c), a.merge(b.merge(c)), scale)
    assert close(a.merge(b), b.merge(a), scale)


@given(samples, samples)
def test_mean_and_variance_alone_are_those_of_the_whole_block(x, y):
    whole = MomentBlock.of(x).merge(MomentBlock.of(y))
    less = MomentBlock.of(x, order=2).merge(MomentBlock.of(y, order=2))
    assert less.count == whole.count
    assert np.array_equal(less.mean, whole.mean) and np.array_equal(less.s2, whole.s2)
    assert less.s3 is None and less.s4 is None
    with pytest.raises(InputError, match="order=2"):
        _ = less.kurtosis
    with pytest.raises(InputError, match="got 3"):
        MomentBlock.of(x, order=3)


@given(samples)
def test_empty_is_the_identity(x):
    block = MomentBlock.of(x)
    for merged in (block.merge(MomentBlock.empty()), MomentBlock.empty().merge(block)):
        assert all(np.array_equal(getattr(merged, f), getattr(block, f)) for f in ("count", *FIELDS))
    nothing = MomentBlock.of(np.zeros((0, 3))).merge(MomentBlock.empty((3,)))
    assert nothing.count == 0 and nothing.mean.shape == (3,)


@settings(max_examples=30)
@given(st.integers(2, 200), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_numpy_and_scipy_agree(n, seed, size):
    x = np.random.default_rng(seed).gamma(2.0, size=(n, 2, 3))
    block = merge_all(MomentBlock.of(x[i : i + size]) for i in range(0, n, size))
    np.testing.assert_allclose(block.mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(block.variance, x.var(axis=0, ddof=1), rtol=1e-10)
    np.testing.assert_allclose(block.variance_of_mean, stats.sem(x, axis=0) ** 2, rtol=1e-10)
    np.testing.assert_allclose(block.s3 / n, stats.moment(x, 3, axis=0), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(block.fourth, stats.moment(x, 4, axis=0), rtol=1e-9)
    np.testing.assert_allclose(block.kurtosis, stats.kurtosis(x, axis=0, fisher=False), rtol=1e-9)


@pytest.mark.parametrize("offset", [1e8, -1e8, 1e12])
def test_a_large_mean_does_not_drown_the_noise(offset):
    noise = np.random.default_rng(3).normal(size=(5000, 4))
    x = offset + noise
    exact = direct(x)  # of the numbers as they are stored: adding the offset has rounded the noise
    block = merge_all(MomentBlock.of(part) for part in np.array_split(x, 37))
    rtol = 10 * abs(offset) * np.finfo(float).eps  # a mean is stored with that many standard deviations of rounding
    np.testing.assert_allclose(block.variance, np.asarray(exact.s2 / 4999, dtype=float), rtol=rtol)
    np.testing.assert_allclose(block.fourth, np.asarray(exact.s4 / 5000, dtype=float), rtol=10 * rtol)
    if abs(offset) == 1e8:
        naive = (x**2).mean(axis=0) - x.mean(axis=0) ** 2  # the control: raw power sums lose everything
        assert np.all(np.abs(naive / block.variance - 1) > 0.1)


def test_long_streams_do_not_drift():
    x = np.random.default_rng(4).normal(1e4, 1.0, size=32_000)
    block = merge_all(MomentBlock.of(part) for part in x.reshape(-1, 8))
    np.testing.assert_allclose(block.variance, x.var(ddof=1), rtol=1e-10)
    np.testing.assert_allclose(block.fourth, stats.moment(x, 4), rtol=1e-9)


def test_components_have_the_same_bits_alone_and_together():
    x = np.random.default_rng(5).normal(size=(129, 7, 3))
    together = MomentBlock.of(x)
    for i, j in np.ndindex(7, 3):
        alone = MomentBlock.of(x[:, i : i + 1, j : j + 1])
        assert all(np.array_equal(getattr(together, f)[i, j], getattr(alone, f)[0, 0]) for f in FIELDS)


def test_too_few_samples_have_no_variance():
    assert np.isnan(MomentBlock.of([1.0]).variance)
    assert np.isnan(MomentBlock.empty().variance)
    assert np.isnan(MomentBlock.of([2.0, 2.0]).kurtosis)


def test_float32_samples_are_summed_in_float64():
    x = np.random.default_rng(6).normal(size=1000).astype(np.float32)
    block = MomentBlock.of(x)
    assert block.mean.dtype == block.s4.dtype == np.float64
    np.testing.assert_allclose(block.variance, x.astype(np.float64).var(ddof=1), rtol=1e-13)


def test_blocks_beside_each_other_are_the_block_of_all_components():
    samples = np.random.default_rng(0).normal(size=(7, 5, 2))
    whole, rows = MomentBlock.of(samples), (slice(0, 2), slice(2, None))
    joined, less = (MomentBlock.of(samples[:, :2], order).room_for(whole.rows) for order in (4, 2))
    for part in rows:
        MomentBlock.of(samples[:, part]).copy_to(joined, part)
        MomentBlock.of(samples[:, part], order=2).copy_to(less, part)
    assert joined.count == whole.count
    for name in ("mean", "s2", "s3", "s4"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    np.testing.assert_array_equal(less.s2, whole.s2)
    assert less.s3 is None


# --------------------------------------------------------------------------------- wide samples


@given(samples, st.lists(st.integers(0, 60), max_size=8))
def test_running_moments_are_those_of_the_block_whatever_the_chunks(x, cuts):
    """Two digits are lost at most; the bits do not depend on the chunks."""
    x = x[:, None]
    chunks = [part for part in np.split(x, sorted(min(c, len(x)) for c in cuts)) if len(part)]
    whole, running = running_moments([x]), running_moments(chunks)
    assert all(np.array_equal(getattr(whole, f), getattr(running, f)) for f in FIELDS)
    scale = np.abs(x).max() + 1e-30
    assert close(running, MomentBlock.of(x), scale)


def test_running_moments_survive_cancellation():
    """Outputs near 10⁶ that differ by 10⁻²: squares of the values themselves would leave nothing."""
    x = 1e6 + 1e-2 * np.random.default_rng(0).normal(size=(128, 50))
    running, exact = running_moments([x]), direct(x)
    for name in FIELDS[1:]:
        error = np.abs(getattr(running, name) - getattr(exact, name)).astype(float)
        assert np.all(error < 1e-11 * 128 * (1e-2) ** int(name[1])), name


def test_slices_change_no_bit():
    """Blocks of many components are worked through in slices; each component is that of a block of its own."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 30, 3, 9001)).astype(np.float32)
    a, b = MomentBlock.of(x), MomentBlock.of(y)
    merged = a.merge(b)
    running = running_moments([x, y])
    for row, column in ((0, 0), (1, 4500), (2, 9000)):
        alone = MomentBlock.of(x[:, row, column]), MomentBlock.of(y[:, row, column])
        single = running_moments([x[:, row : row + 1, column], y[:, row : row + 1, column]])
        for name in FIELDS:
            assert getattr(a, name)[row, column] == getattr(alone[0], name)
            assert getattr(merged, name)[row, column] == getattr(alone[0].merge(alone[1]), name)
            assert getattr(running, name)[row, column] == getattr(single, name)[0]


def test_how_samples_lie_in_memory_changes_no_bit():
    x = np.random.default_rng(0).normal(size=(50, 7, 3))
    turned = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
    one, other = MomentBlock.of(x), MomentBlock.of(turned)
    for name in ("mean", "s2", "s3", "s4"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
        assert getattr(other, name).flags.c_contiguous


def test_recursive_squares_add_up_and_are_each_unbiased():
    x = 1e4 + np.random.default_rng(1).standard_exponential((7, 40_000))
    squares = recursive_squares(x)
    assert squares.shape == (6, 40_000)
    np.testing.assert_allclose(squares.sum(axis=0), MomentBlock.of(x).s2, rtol=1e-9)
    error = squares.std(axis=1) / 200
    assert np.all(np.abs(squares.mean(axis=1) - 1.0) < 4.5 * error)  # by chance once in 10^4 times
    assert recursive_squares(x[:1]).shape == (0, 40_000)
