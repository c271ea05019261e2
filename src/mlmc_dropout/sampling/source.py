"""The passes of one batch of inputs, by name: what methods draw their samples from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.errors import NonFiniteOutputError
from mlmc_dropout.sampling.inputs import Batch, even_parts
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.outputs import non_finite_message
from mlmc_dropout.sampling.sampler import DropoutSampler, Program

__all__ = ["BLOCK", "Source"]

Array = NDArray[np.float64]

BLOCK = 128  # passes a task holds in memory; fixed, so that results do not depend on chunks or workers
_COPIES = 8  # of their values while moments are taken, and of masks while they are drawn, in half the memory limit


@dataclass(frozen=True, slots=True)
class Source:
    """Passes of one batch of inputs, by name."""

    sampler: DropoutSampler
    program: Program
    batch: Batch
    seed: int
    first_row: int = 0
    chunk: int | None = None

    def passes(self, stream: int, replicates: Sequence[int] | range, indices: Sequence[int] | range) -> Array:
        """Outputs (len(indices), len(replicates), rows, width) in float64."""
        names = np.asarray(indices)[:, None], np.asarray(replicates)[None, :]
        keys = pass_keys(self.seed, stream, names[1], names[0])
        out = self.sampler.run(self.program, self.batch, keys.flatten(), self.first_row, self.chunk)
        values = out.double().cpu().numpy()
        self.check(values)
        return values.reshape(len(indices), len(replicates), *values.shape[1:])

    def parts(self, passes: int = 1) -> Iterator[tuple[slice, Source]]:
        """The rows in parts that fit the memory limit: ``passes`` passes of them, and the masks and values of a task.

        One part if rows cannot be split.
        """
        rows, limit = self.batch.rows, self.sampler.memory_limit
        if self.program.rows_split:
            of_a_task = BLOCK * (self.sampler.masks_of_a_row(self.program) + 8 * self.program.structure.width)
            rows = self.program.footprint.rows_at_once(rows, limit, passes)
            rows = min(rows, max(1, int(limit / 2 / _COPIES / of_a_task)))
        for start, stop in even_parts(self.batch.rows, rows):
            yield slice(start, stop), replace(self, batch=self.batch[start:stop], first_row=self.first_row + start)

    def design_chunks(self, keys: Tensor, passes: int) -> Iterator[list[Tensor | None]]:
        """Masks of the stratified designs named by ``keys``, in chunks that fit the memory limit."""
        rows = self.batch.rows
        whole = [self.sampler.draw(site, keys, rows, self.first_row, passes) for site in self.program.sites]
        size = self.chunk or self.program.footprint.passes_at_once(rows, self.sampler.memory_limit)
        if size > 2 * passes and not self.chunk:
            size -= size % (2 * passes)  # whole pairs: chunks of the same size can be played from a tape
        for start in range(0, len(keys) * passes, size):
            yield [None if m is None else m[start : start + size] for m in whole]

    def check(self, values: Array) -> None:
        """Refuse outputs (passes, rows, width) that are not finite."""
        finite = np.isfinite(values)
        if not finite.all():
            rows = np.flatnonzero(~finite.all(axis=(0, 2))) + self.first_row
            raise NonFiniteOutputError(non_finite_message(values, self.first_row, self.program.structure), rows)
