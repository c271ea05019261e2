"""Whole sweeps and strata: no bias by the sorting, honest errors, the same bits however a run goes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import entr, softmax

import mlmc_dropout as md
from mlmc_dropout.evaluation.features import FeatureMap
from mlmc_dropout.evaluation.metrics import select_metrics
from mlmc_dropout.evaluation.plan import STRATA_ROWS
from mlmc_dropout.evaluation.rates import believed_rate, extrapolation_for, paired_rate, remaining
from mlmc_dropout.evaluation.strata import score_sample, stratify
from mlmc_dropout.sampling.streams import EVALUATION_SCORES
from testing.oracles import source_of, z_limit
from tests.evaluation.conftest import Enumerated, make_enumerated

TIGHT = {"metrics": ("entropy",), "tolerance": 0.004}


@pytest.fixture(scope="module")
def net() -> Enumerated:
    return make_enumerated(STRATA_ROWS + 20, scale=5.0)


def _strata_of(found: md.Evaluation) -> set[int]:
    return {level.stratum for level in found.levels}


def _numbers(found: md.Evaluation) -> list[float]:
    one = found["entropy"]
    return [one.value, one.stderr, one.bias, found.cost, *(level.variance["entropy"] for level in found.levels)]


def test_strata_are_right_within_their_stated_bias(net: Enumerated) -> None:
    runs = [md.evaluate(net.model, net.x, seed=seed, **TIGHT) for seed in range(12)]
    assert all(len(_strata_of(run)) > 1 for run in runs)
    values = np.array([run["entropy"].value for run in runs])
    stated = np.array([(run["entropy"].stderr, run["entropy"].bias) for run in runs])
    spread = values.std(ddof=1)
    miss = abs(values.mean() - net.exact()["entropy"]) - stated[:, 1].mean()
    assert miss < z_limit(1) * spread / np.sqrt(len(runs))
    assert 0.5 < spread / stated[:, 0].mean() < 1.6  # a spread of 12 runs is known to 20 %


def test_sorting_and_estimating_by_the_same_passes_would_be_biased(net: Enumerated) -> None:
    """Negative control: of inputs that looked easy, these passes say too little."""
    features = FeatureMap("logits", select_metrics(("entropy",), "logits", False))
    source = source_of(net.model, net.x)
    strata = stratify(score_sample(source, None, 4, features))
    easy = strata == strata.max()
    exact = entr(softmax(net.logits, axis=-1)).sum(axis=-1)
    truth = (net.weights @ exact)[easy]  # mean entropy of a pass: linear, so that only the sorting can bias it
    values = source.passes(EVALUATION_SCORES, (0,), range(4))[:, 0]
    same = entr(softmax(values, axis=-1)).sum(axis=-1)[:, easy].mean(axis=0)
    fresh = entr(softmax(md.DropoutSampler(net.model).sample(net.x, 64, seed=9).double().numpy(), axis=-1)).sum(axis=-1)
    error = fresh.std(axis=0, ddof=1)[easy] / 2.0
    z = (same - truth).sum() / np.sqrt((error**2).sum())
    assert abs(z) > 4.0
    z_fresh = (fresh.mean(axis=0)[easy] - truth).sum() / np.sqrt(((error / 4.0) ** 2).sum())
    assert abs(z_fresh) < 4.0


def test_strata_of_similar_scores() -> None:
    rng = np.random.default_rng(0)
    scores = np.exp2(rng.uniform(-9, 0, size=(600, 2)))
    strata = stratify(scores)
    score = np.max(scores / scores.mean(axis=0), axis=1)
    assert np.bincount(strata).min() >= 24
    for number in range(strata.max()):
        assert score[strata == number].min() >= score[strata == number + 1].max()
    assert stratify(np.zeros((40, 1))).max() == 0


def test_rates_of_pairs_and_what_is_left() -> None:
    rate, error = paired_rate(np.array([1.0, 2.0**0.7]), 1e-4 * np.ones((2, 2)))
    assert rate == pytest.approx(0.7)
    assert error < 0.01
    assert np.isnan(paired_rate(np.array([1.0, -1.0]), np.eye(2))).all()
    assert believed_rate(float("nan"), 1.0)[0] == pytest.approx(0.8)
    later = 1 / (2**0.7 - 1)
    assert 1 < extrapolation_for(0.7) < later
    assert extrapolation_for(1.0) == pytest.approx(1.0)
    assert remaining(0.7, 0.0, extrapolation_for(0.7)) >= later - extrapolation_for(0.7)
    assert remaining(0.7, 0.2, 1.3) > remaining(0.7, 0.1, 1.3)


def test_the_same_bits_from_batches_threads_and_after_stops(net: Enumerated, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    usual = md.evaluate(net.model, net.x, seed=1, **TIGHT)
    events: list[object] = []
    md.evaluate(net.model, net.x, seed=1, progress=events.append, **TIGHT)
    batches = list(torch.split(net.x, 37))
    assert _numbers(md.evaluate(net.model, batches, seed=1, **TIGHT)) == _numbers(usual)
    with ThreadPoolExecutor(2) as pool:
        assert _numbers(md.evaluate(net.model, net.x, seed=1, executor=pool, **TIGHT)) == _numbers(usual)
    for last in range(len(events) - 1):
        seen: list[object] = []

        def stop(event: object, last: int = last, seen: list[object] = seen) -> None:
            seen.append(event)
            if len(seen) > last:
                raise Stop

        path = tmp_path / f"{last}.ckpt"
        with pytest.raises(Stop):
            md.evaluate(net.model, net.x, seed=1, checkpoint=path, checkpoint_interval=0, progress=stop, **TIGHT)
        again = md.evaluate(net.model, net.x, seed=1, checkpoint=path, **TIGHT)
        assert _numbers(again) == _numbers(usual)
