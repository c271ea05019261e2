"""Class probabilities and entropies: right, and stable where networks saturate."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.outputs import check_outputs, log_probabilities, mean_and_variance
from mlmc_dropout.quantities.uncertainty import entropy, entropy_of_logs, mutual_information


def test_entropies_agree_with_scipy_and_with_each_other() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(7), size=(5, 4))
    assert_allclose(entropy(p), stats.entropy(p, axis=-1))
    assert_allclose(entropy_of_logs(np.log(p)), entropy(p))
    assert_allclose(mutual_information(p.mean(axis=0), entropy(p).mean(axis=0)) >= 0, True)


def test_saturated_logits_keep_their_logarithms() -> None:
    logs = log_probabilities(np.array([[0.0, 900.0, -900.0]]), "logits")
    assert_allclose(logs, [[-900.0, 0.0, -1800.0]])
    assert entropy_of_logs(logs) == pytest.approx(0.0, abs=1e-300)
    assert_allclose(log_probabilities(np.array([[-800.0]]), "binary-logits"), [[0.0, -800.0]])
    certain = log_probabilities(np.array([[1.0, 0.0]]), "probabilities")
    assert np.isneginf(certain[0, 1])
    assert entropy_of_logs(certain) == 0.0


def test_means_and_variances_from_two_outputs_or_one() -> None:
    mean, spread = np.ones((3, 2, 4)), np.full((3, 2, 4), 0.5)
    joined = np.concatenate([mean, spread], axis=-1)
    for parts in ((mean, spread), (joined,)):
        found = mean_and_variance(parts, "mean-log-variance")
        assert_allclose(found[0], mean)
        assert_allclose(found[1], np.exp(spread))


def test_outputs_that_are_something_else_are_refused() -> None:
    with pytest.raises(InputError, match=r"a value of -0\.1"):
        log_probabilities(np.array([[1.1, -0.1]]), "probabilities")
    with pytest.raises(InputError, match="differ from 1 by 1"):
        log_probabilities(np.array([[1.0, 1.0]]), "probabilities")
    with pytest.raises(InputError, match="a variance of -1"):
        mean_and_variance((np.ones((2, 2, 1)), -np.ones((2, 2, 1))), "mean-variance")
    with pytest.raises(InputError, match="last axis of length 3"):
        mean_and_variance((np.ones((2, 2, 3)),), "mean-variance")
    with pytest.raises(InputError, match="unknown outputs"):
        check_outputs("logit")
