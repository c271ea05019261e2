"""The same passes, with the correction of the first bias off, give the numbers of other packages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.special import xlogy
from torch.special import entr

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.sampling.outputs import Structure

ROWS, CLASSES, PASSES = 6, 5, 11
LOGITS = torch.from_numpy(np.random.default_rng(2).normal(0, 3, size=(PASSES, ROWS, CLASSES)))
LOGITS[:, 0] *= 40  # saturated
PROBABILITIES = LOGITS.softmax(dim=-1).numpy()


def uncorrected(groups=1):
    """All class quantities of the passes; a single group leaves nothing to correct with."""
    observation = questions_for("logits", None).observation(Structure("tensor", (CLASSES,)))
    main, features = observation.observe(LOGITS)
    assert features is not None
    block = GroupBlock.of(features.numpy(), 0, groups)
    trusted = np.ones((ROWS, CLASSES), dtype=bool)
    return observation.answers(block, main.mean(dim=0).numpy(), trusted)


def baal_bald(predictions):
    """``BALD.compute_score`` of baal 2.1 (active/heuristics/heuristics.py), predictions (rows, classes, passes)."""
    expected_entropy = -np.mean(np.sum(xlogy(predictions, predictions), axis=1), axis=-1)
    expected_p = np.mean(predictions, axis=-1)
    return -np.sum(xlogy(expected_p, expected_p), axis=1) - expected_entropy


def torch_uncertainty_information(probs):
    """``MutualInformation`` of torch-uncertainty (metrics/classification/mutual_information.py), (rows, passes, C)."""
    mean_entropy = entr(probs).sum(dim=-1).mean(dim=1)
    return (entr(probs.mean(dim=1)).sum(dim=-1) - mean_entropy).clamp(min=0)


def torch_uncertainty_entropy(probs):
    """``Entropy`` of torch-uncertainty (metrics/classification/entropy.py): of an ensemble, the mean of entropies."""
    return entr(probs).sum(dim=-1).mean(dim=1)


def test_mutual_information_is_bald():
    ours = uncorrected()["mutual_information"].value
    assert_allclose(ours, baal_bald(np.moveaxis(PROBABILITIES, 0, -1)), atol=1e-12)
    of_rows = torch.from_numpy(PROBABILITIES).transpose(0, 1)
    assert_allclose(ours, torch_uncertainty_information(of_rows), atol=1e-12)


def test_entropies_are_theirs():
    ours = uncorrected()
    mean = PROBABILITIES.mean(axis=0)
    assert_allclose(ours["entropy"].value, -xlogy(mean, mean).sum(axis=-1), atol=1e-12)  # baal: of the mean
    of_rows = torch.from_numpy(PROBABILITIES).transpose(0, 1)
    assert_allclose(ours["expected_entropy"].value, torch_uncertainty_entropy(of_rows), atol=1e-12)


def test_with_the_correction_on_they_differ():
    """Negative control: eleven groups of one pass each."""
    ours = uncorrected(groups=PASSES)["mutual_information"].value
    assert np.abs(ours - baal_bald(np.moveaxis(PROBABILITIES, 0, -1)))[1:].min() > 1e-4


@pytest.mark.slow  # to import it takes longer than all other tests of this folder
def test_the_package_itself_agrees():
    heuristics = pytest.importorskip("baal.active.heuristics")
    predictions = np.moveaxis(PROBABILITIES, 0, -1)
    ours = uncorrected()
    assert_allclose(heuristics.BALD().compute_score(predictions), ours["mutual_information"].value, atol=1e-12)
    assert_allclose(heuristics.Entropy().compute_score(predictions), ours["entropy"].value, atol=1e-12)


def test_votes_and_labels_of_the_passes():
    ours = uncorrected()
    votes = np.eye(CLASSES)[PROBABILITIES.argmax(axis=-1)].mean(axis=0)
    assert_allclose(ours["votes"].value, votes, atol=1e-12)
    assert np.array_equal(ours["label"].value, PROBABILITIES.mean(axis=0).argmax(axis=-1))
