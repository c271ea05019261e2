"""Level samples against enumeration of all masks; states merge exactly."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.testing import assert_allclose
from scipy.special import entr, softmax

from mlmc_dropout.evaluation.features import FeatureMap
from mlmc_dropout.evaluation.levels import LevelState, level_sample
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.evaluation.result import MetricEstimate
from testing.oracles import source_of, z_limit
from tests.evaluation.conftest import Enumerated, make_enumerated

NAMES = ("entropy", "nll", "mutual_information")


def _sample(net: Enumerated, level: int, rows: int, design: int = 1) -> LevelState:
    features = FeatureMap("logits", select_metrics(NAMES, "logits", True))
    source = source_of(net.model, net.x[:1].repeat(rows, 1))
    return level_sample(source, np.repeat(net.y[:1], rows), level, 0, features, design)


def _metrics_of(p: np.ndarray, entropies: np.ndarray, label: int) -> np.ndarray:
    total = entr(p).sum(axis=-1)
    return np.stack([total, -np.log(p[..., label]), total - entropies], axis=-1)


def test_values_and_differences_have_the_expectations_of_all_pairs_of_masks(enumerated: Enumerated) -> None:
    p = softmax(enumerated.logits[:, 0], axis=-1)
    h, weights, label = entr(p).sum(axis=-1), enumerated.weights, int(enumerated.y[0])
    pairs = list(itertools.product(range(len(weights)), repeat=2))
    a, b = np.array(pairs).T
    single = _metrics_of(p, h, label)
    double = _metrics_of((p[a] + p[b]) / 2, (h[a] + h[b]) / 2, label)
    pair_weights = weights[a] * weights[b]
    exact = np.concatenate([pair_weights @ double, pair_weights @ (double - (single[a] + single[b]) / 2)])

    state = _sample(enumerated, level=1, rows=20_000)
    error = np.sqrt(np.diagonal(state.covariance) / state.count)
    z = (state.mean - exact) / np.maximum(error, 1e-12)
    assert np.abs(z).max() < z_limit(len(z))
    within = pair_weights @ (0.5 * (single[a] - single[b]) ** 2)
    assert_allclose(np.diagonal(state.covariance_within)[:3], within, rtol=0.1, atol=1e-12)
    uncorrelated = (state.mean[3:] - 0.9 * exact[3:]) / error[3:]  # a wrong difference would be seen
    assert np.abs(uncorrelated).max() > z_limit(len(z))


def test_antithetic_halves_beat_plain_differences() -> None:
    coarse, fine = (_sample(make_enumerated(1, scale=1.0), level, 4000) for level in (2, 5))

    def rate(first: int) -> float:
        entropy = [state.block.variance[first] for state in (coarse, fine)]
        return float(np.log2(entropy[0] / entropy[1]) / 3)

    assert rate(3) > 1.5  # Δ
    assert 0.6 < rate(6) < 1.4  # f − f(first half)


def test_states_merge_to_the_state_of_all_samples() -> None:
    rng = np.random.default_rng(0)
    f, delta, plain, below, half = (rng.normal(size=(50, k)) for k in (2, 2, 2, 2, 4))
    parts = [
        LevelState.of(f[s], delta[s], plain[s], below[s], half[s]) for s in (slice(0, 7), slice(7, 8), slice(8, 50))
    ]
    whole = LevelState.of(f, delta, plain, below, half)
    merged = LevelState.empty(2).merge(parts[0]).merge(parts[1].merge(parts[2]))
    for name, values in whole.arrays().items():
        assert_allclose(merged.arrays()[name], values, rtol=1e-11, atol=1e-11)
    back = LevelState.from_arrays(whole.arrays())
    assert_allclose(back.covariance, np.cov(np.concatenate([f, delta], axis=1).T), rtol=1e-11)
    means, covariance = merged.pair(1)
    assert_allclose(means, [delta[:, 1].mean(), below[:, 1].mean()], rtol=1e-11)
    assert_allclose(covariance, np.cov(delta[:, 1], below[:, 1]), rtol=1e-11)


def test_designs_have_the_right_law_and_less_noise(enumerated: Enumerated) -> None:
    p_bar = np.einsum("m,mc->c", enumerated.weights, softmax(enumerated.logits[:, 0], axis=-1))
    plain, designs = _sample(enumerated, 4, 3000), _sample(enumerated, 0, 3000, design=16)
    exact = -np.log(p_bar[enumerated.y[0]])
    assert designs.covariance[1, 1] < plain.covariance[1, 1]
    assert abs(designs.mean[1] - exact) < abs(plain.mean[1] - exact) + 5 * np.sqrt(plain.covariance[1, 1] / 3000)
    expected_entropy = designs.mean[0] - designs.mean[2]  # linear in the passes, hence unbiased
    reference = enumerated.weights @ entr(softmax(enumerated.logits[:, 0], axis=-1)).sum(axis=-1)
    spread = np.sqrt((designs.covariance[0, 0] + designs.covariance[2, 2]) / 3000)
    assert abs(expected_entropy - reference) < z_limit(1) * spread


def test_a_bias_that_is_rounding_is_shown_as_none():
    assert MetricEstimate(0.5, 0.01, 4e-15, {}).shown_bias == 0.0
    assert MetricEstimate(0.5, 0.01, 4e-5, {}).shown_bias == 4e-5
