"""The same numbers on a GPU; skipped, and said so, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from testing.zoo import ZOO

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
    pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning"),
]


@pytest.mark.parametrize("name", ["mlp", "feature2d", "alpha", "encoder", "lstm", "residual_conv"])
@pytest.mark.parametrize("method", ["pooled", "stratified", "auto"])
def test_masks_and_moments_are_those_of_the_cpu(name: str, method: str) -> None:
    """Masks follow from names, so that only rounding differs between devices."""
    model, x = ZOO[name].make()
    here = md.estimate(model, x, method=method, budget=400)
    there = md.estimate(model.to("cuda"), x.to("cuda"), method=method, budget=400)
    np.testing.assert_allclose(there.mean, here.mean, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(there.variance, here.variance, rtol=2e-2, atol=2e-3)
