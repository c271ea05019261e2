"""The passes of one batch of inputs, by name: where methods get their samples from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mlmc_dropout.errors import NonFiniteOutputError, add_note_once
from mlmc_dropout.groups import GROUPS, GROUPS_OF_WIDE
from mlmc_dropout.quantities.quantile import LOCATION_PASSES, locate
from mlmc_dropout.quantities.questions import Observation
from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.inputs import Batch, even_parts
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.memory import WORKING_SET, return_freed_memory
from mlmc_dropout.sampling.outputs import non_finite_message
from mlmc_dropout.sampling.sampler import ROWS_TOGETHER, DropoutSampler, Program

__all__ = ["BLOCK", "Source"]

Array = NDArray[np.float64]

BLOCK = 128  # passes of a task; fixed, so that results do not depend on chunks or workers
WIDE = 1 << 12  # components from which a task does not hold its passes but adds them up one by one

# Memory that comes on top of a chunk's ``Footprint`` (see ``memory``), within the other half of the limit:
_COPIES = 8  # copies of outputs while moments are computed, and of masks while they are drawn
_SUMS = 16  # numbers per component that are carried from pass to pass of wide outputs


@dataclass(frozen=True, slots=True)
class Source:
    """The passes of one batch of inputs, by name.

    Attributes:
        sampler: The sampler of the model.
        program: The model, prepared for these inputs.
        batch: The inputs.
        seed: Seed of the run.
        first_row: Number of the first row of the batch among all inputs.
        chunk: Passes to run at once; ``None``: as many as memory and caches allow.
        observation: What is asked of the passes.
        locations: A few passes in ascending order, (passes, rows, main width), where quantiles are asked.
        numbers: Numbers of all rows among all inputs, int64 (rows,), where these are not consecutive.
    """

    sampler: DropoutSampler
    program: Program
    batch: Batch
    seed: int
    first_row: int = 0
    chunk: int | None = None
    observation: Observation = field(default=None)  # type: ignore[assignment]  # follows from the sampler's questions
    locations: Array | None = None
    numbers: Tensor | None = None

    def __post_init__(self) -> None:
        if cast(Observation | None, self.observation) is None:
            observation = self.sampler.questions.observation(self.program.structure)
            object.__setattr__(self, "observation", observation)
            if self.sampler.questions.need_locations:
                main, _ = self.observe(self.passes(streams.LOCATION, range(1), range(LOCATION_PASSES))[:, 0], False)
                object.__setattr__(self, "locations", locate(main, self.observation.outputs))

    def observe(self, values: Array, features: bool = True) -> tuple[Array, Array | None]:
        """Read outputs as what is asked of them.

        Args:
            values: Outputs of passes, (passes, rows, width).
            features: Whether features are wanted, too.

        Returns:
            What mean and variance are taken of, (passes, rows, main width), and features, (passes, rows, features), or
            ``None`` where nothing else is asked.
        """
        if self.observation.plain:
            return values, None
        asked = self.observation if features else replace(self.observation, questions=())
        locations = None if self.locations is None else torch.from_numpy(self.locations)
        main, found = asked.observe(torch.from_numpy(np.ascontiguousarray(values)), locations)
        return main.numpy(), None if found is None else found.numpy()

    @property
    def row_numbers(self) -> int | Tensor:
        """Number of the first row, or of all rows where they are not consecutive: what masks are drawn for."""
        return self.first_row if self.numbers is None else self.numbers

    def select(self, rows: NDArray[np.integer[Any]]) -> Source:
        """The passes of some rows, with the masks that these rows have in the whole batch.

        Args:
            rows: Places of the rows in this batch, in ascending order.

        Returns:
            Their source; itself, if these are all rows.
        """
        if len(rows) == self.batch.rows:
            return self
        if int(rows[-1]) - int(rows[0]) + 1 == len(rows):
            return self.part(slice(int(rows[0]), int(rows[-1]) + 1))
        places = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        numbers = places + self.first_row if self.numbers is None else self.numbers[places]
        locations = None if self.locations is None else self.locations[:, rows]
        first, batch = int(numbers[0]), self.batch.take(places)
        return replace(self, batch=batch, first_row=first, numbers=numbers, locations=locations)

    def part(self, rows: slice) -> Source:
        """The passes of neighbouring rows.

        Args:
            rows: Places of the rows in this batch.

        Returns:
            Their source.
        """
        numbers = None if self.numbers is None else self.numbers[rows]
        first = self.first_row + rows.start if numbers is None else int(numbers[0])
        locations = None if self.locations is None else self.locations[:, rows]
        return replace(self, batch=self.batch[rows], first_row=first, numbers=numbers, locations=locations)

    @property
    def groups(self) -> int:
        """Groups of passes whose features are kept apart."""
        return GROUPS_OF_WIDE if self.wide else GROUPS

    @property
    def _observed(self) -> int:
        """Numbers of a pass and row that a task holds."""
        seen = self.observation
        extra = 0 if seen.plain else seen.main.width + seen.width
        return self.program.structure.width + int(extra)

    def passes(self, stream: int, replicates: Sequence[int] | range, indices: Sequence[int] | range) -> Array:
        """Run passes, one for each pair of index and replicate.

        Args:
            stream: Number of the random stream.
            replicates: Numbers of the replicates.
            indices: Numbers of the passes in their replicates.

        Returns:
            The outputs in float64, (len(indices), len(replicates), rows, width).

        Raises:
            NonFiniteOutputError: If an output is NaN or infinite.
        """
        values = self._run(stream, replicates, indices, self.chunk).double().cpu().numpy()
        self.check(values)
        return values.reshape(len(indices), len(replicates), *values.shape[1:])

    def _run(
        self, stream: int, replicates: Sequence[int] | range, indices: Sequence[int] | range, chunk: int | None
    ) -> Tensor:
        names = np.asarray(indices)[:, None], np.asarray(replicates)[None, :]
        keys = pass_keys(self.seed, stream, names[1], names[0])
        try:
            return self.sampler.run(self.program, self.batch, keys.flatten(), self.row_numbers, chunk)
        except Exception as error:
            first, last = (int(self._numbers()[place]) for place in (0, -1))
            rows = f"rows {first} to {last}"
            add_note_once(error, f"in passes {min(indices)} to {max(indices)} of {rows}")
            raise

    @property
    def wide(self) -> bool:
        """Whether the passes of a task are too many numbers to be held, by the shape of the outputs alone."""
        rows = 1 if self.program.rows_split else self.batch.rows
        return rows * self._observed > WIDE

    def chunks(self, stream: int, indices: range) -> Iterator[NDArray[Any]]:
        """Run passes of the first replicate, as many at a time as fit the memory limit.

        Args:
            stream: Number of the random stream.
            indices: Numbers of the passes.

        Yields:
            Outputs in the model's type, (passes, rows, width).

        Raises:
            NonFiniteOutputError: If an output is NaN or infinite.
        """
        return_freed_memory()
        size = self._chunk_size()
        for start in range(0, len(indices), size):
            yield self.as_numpy(self._run(stream, range(1), indices[start : start + size], size))

    def as_numpy(self, outputs: Tensor) -> NDArray[Any]:
        """Outputs for NumPy, in the model's type where NumPy has it.

        Args:
            outputs: Outputs, (passes, rows, width).

        Returns:
            The same numbers.

        Raises:
            NonFiniteOutputError: If an output is NaN or infinite.
        """
        short = outputs.dtype in (torch.float16, torch.bfloat16)
        values: NDArray[Any] = (outputs.float() if short else outputs).cpu().numpy()
        if not np.isfinite(values.sum()):  # much faster than a look at every number
            self.check(values)
        return values

    def _chunk_size(self) -> int:
        """Passes to run at once; as many as linear maps compute together, if their weights do not fit the caches."""
        footprint, rows, limit = self.program.footprint, self.batch.rows, self.sampler.memory_limit
        size, together = footprint.passes_at_once(rows, limit), -(-ROWS_TOGETHER // rows)
        if self.wide and size < together and self._fits(together) and self._heavy():
            size = together
        return self.chunk or size

    def _fits(self, passes: int) -> bool:
        """Whether so many passes at once stay within half the memory limit."""
        return self.program.footprint.bytes(passes, self.batch.rows) <= self.sampler.memory_limit / 2

    def _heavy(self) -> bool:
        model = getattr(self.program.model, "__self__", self.program.model)  # the module of a bound method
        parameters = model.parameters() if isinstance(model, nn.Module) else ()
        return sum(parameter.nbytes for parameter in parameters) > WORKING_SET

    def parts(self, passes: int = 1, masks_held: bool = True) -> Iterator[tuple[slice, Source]]:
        """The rows in parts that fit the memory limit, a single part if rows cannot be split.

        Args:
            passes: Passes of each row that must fit, besides the masks and values of a task; 1 by default.
            masks_held: Whether the masks of a whole task are drawn at once, as those of designs are.

        Yields:
            The rows of each part, and their source.
        """
        rows, limit = self.batch.rows, self.sampler.memory_limit
        if self.program.rows_split:
            width, masks = self._observed, self.sampler.mask_bytes_per_row(self.program) if masks_held else 0
            held = _SUMS * 8 * width if self.wide else _COPIES * BLOCK * (masks + 8 * width)
            rows = self.program.footprint.rows_at_once(rows, limit, passes)
            rows = min(rows, max(1, int(limit / 2 / held)))
        for start, stop in even_parts(self.batch.rows, rows):
            yield slice(start, stop), self.part(slice(start, stop))

    def design_chunks(self, keys: Tensor, passes: int, held: Sequence[int] = ()) -> Iterator[list[Tensor | None]]:
        """Draw the masks of stratified designs, in chunks that fit the memory limit.

        Args:
            keys: One key per design.
            passes: Passes per design; 1: independent passes.
            held: Indices of sites whose masks are not drawn.

        Yields:
            Per site, masks (passes of the chunk, *mask), or ``None``.
        """
        rows = self.batch.rows
        together = passes if passes > 1 else None
        masks = self.sampler.draw_all(self.program, keys, rows, self.row_numbers, together, held)
        size = self._chunk_size()
        whole = 2 * passes if passes > 1 else ROWS_TOGETHER  # pairs of designs; chunks of one size can be replayed
        if size > whole and not self.chunk:
            size -= size % whole
        elif passes == 1 and not self.chunk and 2 * size >= whole and self._fits(whole):
            size = whole  # linear maps would copy what they get
        for start in range(0, len(keys) * passes, size):
            yield [None if m is None else m[start : start + size] for m in masks]

    def check(self, values: NDArray[Any]) -> None:
        """Refuse outputs that are not finite.

        Args:
            values: Outputs, (passes, rows, width).

        Raises:
            NonFiniteOutputError: If an output is NaN or infinite.
        """
        finite = np.isfinite(values)
        if not finite.all():
            rows = self._numbers()[np.flatnonzero(~finite.all(axis=(0, 2)))]
            raise NonFiniteOutputError(non_finite_message(values, self._numbers(), self.program.structure), rows)

    def _numbers(self) -> NDArray[np.int64]:
        """Numbers of all rows among all inputs."""
        if self.numbers is None:
            return np.arange(self.first_row, self.first_row + self.batch.rows)
        return self.numbers.numpy()
