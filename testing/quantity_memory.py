"""Run in a process of its own: growth of the peak memory with all class quantities, in MB.

``digits method passes``: from 10³ passes of a digits classifier to so many. ``segmentation method passes limit``: from
before the first call to after one on 8 classes × 64 × 64 pixels, within a limit in MiB.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import mlmc_dropout as md
from testing.memory_probe import peak


def classes_last(out: Tensor) -> Tensor:
    return out.movedim(1, -1)


def digits(method: str, passes: int) -> float:
    layers: list[nn.Module] = []
    for width in (64, 128):
        layers += [nn.Linear(width, 128), nn.ReLU(), nn.Dropout(0.3)]
    model, x = nn.Sequential(*layers, nn.Linear(128, 10)), torch.rand(10, 64)
    md.estimate(model, x, outputs="logits", method=method, budget=1000)
    before = peak()
    md.estimate(model, x, outputs="logits", method=method, budget=passes)
    return peak() - before


def segmentation(method: str, passes: int, limit: int) -> float:
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.2))
    model, x = nn.Sequential(*first, nn.Conv2d(8, 8, 3, padding=1)), torch.rand(2, 3, 64, 64)
    options = {"outputs": "logits", "transform": classes_last, "method": method, "memory_limit": limit << 20}
    md.estimate(model, x[:1, :, :8, :8], budget=40, **options)  # what torch itself takes for its first call
    before = peak()
    result = md.estimate(model, x, budget=passes, **options)
    assert result["entropy"].value.shape == (2, 64, 64) and result["votes"].value.shape == (2, 64, 64, 8)
    return peak() - before


def main(case: str, method: str, *numbers: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run = {"digits": digits, "segmentation": segmentation}[case]
    print(run(method, *map(int, numbers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
