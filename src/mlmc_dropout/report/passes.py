"""Single passes of a few inputs, for a page: what an estimate sums up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.report.numbers import matrices
from mlmc_dropout.result import Result
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.streams import PASSES_SHOWN

__all__ = ["passes_of", "telling_rows"]

PASSES = 400
MAX_WIDTH = 64  # output components; a picture of more would tell nothing


def telling_rows(result: Result) -> list[int]:
    """The most, the median and the least uncertain input.

    Args:
        result: The estimate.

    Returns:
        Their numbers, most uncertain first; fewer if there are fewer inputs.
    """
    order = np.argsort(-matrices(result).score, kind="stable")
    return [int(i) for i in dict.fromkeys((order[0], order[len(order) // 2], order[-1]))]


def passes_of(sampler: DropoutSampler, x: Any, rows: list[int], seed: int) -> dict[int, NDArray[np.float64]]:
    """Outputs of single passes; they are drawn for the picture and are not part of the estimate.

    Args:
        sampler: The model, as it was sampled for the estimate.
        x: The inputs.
        rows: Which of them, in the first batch.
        seed: The seed of the estimate.

    Returns:
        Number of the input -> outputs (passes, components); empty for outputs that are too wide to be shown.
    """
    batch: Batch = next(sampler.batches(x))
    rows = [row for row in rows if row < batch.rows]
    if not rows:
        return {}
    few = batch.map(lambda tensor: tensor[rows], len(rows))
    program = sampler.prepare(few)
    if program.structure.width > MAX_WIDTH:
        return {}
    keys = pass_keys(seed, PASSES_SHOWN, 0, np.arange(PASSES)).flatten()
    observation = sampler.questions.observation(program.structure)
    main, _ = replace(observation, questions=()).observe(sampler.run(program, few, keys).cpu())
    values = main.double().numpy()
    return {row: values[:, index] for index, row in enumerate(rows)}
