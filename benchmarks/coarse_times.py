"""Nanoseconds of a pass and of a sample of the coarse level of one input: measured, beside the model that `auto` uses.

Processor times of one thread, 24 inputs at once. The model (`methods/coarse_time.py`) is fixed, so that what `auto`
chooses does not depend on the machine; it has to be right to a factor of two or so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import common
import numpy as np
import torch
from classifiers import networks
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.methods.base import Task
from mlmc_dropout.methods.coarse_rows import CoarseRows, coarse_features
from mlmc_dropout.methods.coarse_time import times
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.quantities.questions import questions_for
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.surrogates.linear import linearise

INPUTS, PASSES, DESIGNS = 24, 128, 32


def cases() -> Iterator[tuple[str, nn.Module]]:
    yield from ((name, model) for name, model, _ in networks())
    yield "MLP 3×512", common.mlp(64, (512, 512, 512), 10, 0.3, "relu")
    yield "MLP 2×64, 3 classes", common.mlp(64, (64, 64), 3, 0.1, "relu")


def least(call: Callable[[], object], times_run: int) -> float:
    """Processor seconds of the fastest of some calls."""
    found = []
    for _ in range(times_run):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def measured(source: Source) -> tuple[float, float]:
    """Nanoseconds of a pass and of a coarse sample."""
    pooled = Pooled().bind(source)
    slopes = linearise(source.sampler, source.program, source.batch)
    rows = CoarseRows.of(slice(0, INPUTS), source, slopes)
    observation = source.observation.squared()
    a_pass = least(lambda: pooled.run(source, Task(0, 0, PASSES)), 3) / PASSES
    sample = least(lambda: coarse_features(source, rows, observation, np.arange(DESIGNS), 7), 5) / (DESIGNS * 32)
    return 1e9 * a_pass / INPUTS, 1e9 * sample / INPUTS


def main() -> None:
    torch.set_num_threads(1)
    x, rows = torch.rand(INPUTS, 64), []
    for name, model in cases():
        for masks in ("independent", "shared") if "MLP" in name else ("independent",):
            sampler = md.DropoutSampler(model.eval(), masks, questions=questions_for("logits", None))
            batch = next(sampler.batches(x))
            source = Source(sampler, sampler.prepare(batch), batch, 0)
            (a_pass, sample), (pass_model, sample_model) = measured(source), times(source)
            rows.append(
                [name, masks, a_pass, pass_model, sample, sample_model, sample / a_pass, sample_model / pass_model]
            )
    columns = ("network", "masks", "pass, ns", "model", "sample, ns", "model", "sample / pass", "model")
    print(common.table(columns, rows))


if __name__ == "__main__":
    main()
