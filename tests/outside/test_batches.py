"""The recipes for tools that map functions over batches, as they stand in the tutorial."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md


@pytest.fixture
def predictor():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)]
        return md.Predictor(nn.Sequential(*layers).eval(), budget=20)


def test_a_loader_in_a_loop(predictor):
    x = torch.randn(25, 3, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, torch.zeros(25))
    means = [predictor(batch).mean for batch, _ in torch.utils.data.DataLoader(data, batch_size=10)]
    assert [len(m) for m in means] == [10, 10, 5]
    assert np.array_equal(means[2], predictor(x[20:]).mean)


def test_dask_arrays(predictor):
    array = pytest.importorskip("dask.array")
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    inputs = array.from_array(x, chunks=(8, 3))
    means = array.map_blocks(
        lambda x: predictor.arrays(x)["mean"], inputs, dtype=float, chunks=(inputs.chunks[0], (1,))
    ).compute(scheduler="threads")
    assert np.array_equal(means, np.concatenate([predictor.arrays(x[a : a + 8])["mean"] for a in (0, 8, 16)]))
