"""A data set as rows in order; which of them a level takes; blocks of the rows taken.

Every row has a random number per level, a hash of its place. A level that has used the share q of the data set has used
the rows whose number is below q, and goes on with the next ones: sampling without replacement, without a list
of rows, the same for an array and for a stream. A share of 2 means that all rows were used twice.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from mlmc_dropout.errors import InputError
from mlmc_dropout.runtime.fingerprint import of_inputs
from mlmc_dropout.sampling.inputs import Batch, Constant, check_iterable, samples_together
from mlmc_dropout.sampling.masks import pass_keys, words
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.signature import Signature
from mlmc_dropout.sampling.streams import EVALUATION_INPUTS

__all__ = ["Block", "DataSet", "Slice", "blocks_of", "random_numbers"]

_PEEK = 256  # rows with which a model is looked at
WINDOW = 8192  # rows of an array that are looked at together
BLOCK_PASSES = 4096  # passes times rows of a block, about
BLOCK_FLOATS = 1 << 21  # outputs of one pass of a block, at most


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows that a level takes next: those whose random number is in [low, high).

    Attributes:
        level: The level.
        low: Share of the data set that the level has used before.
        high: Share that it will have used.
        replicate: Number of the slice at its level; names the masks.
        stratum: Stratum of the inputs.
    """

    level: int
    low: float
    high: float
    replicate: int
    stratum: int = 0

    @property
    def sweep(self) -> int:
        """How often all rows were used before."""
        return int(self.low)


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a slice.

    Attributes:
        slice: The slice.
        first_row: Place of the first row in the slice.
        batch: The inputs.
        labels: Their labels, or ``None``.
    """

    slice: Slice
    first_row: int
    batch: Batch
    labels: NDArray[Any] | None


class DataSet:
    """Inputs and labels, read in order as often as needed (or once, if they come from an iterator).

    Args:
        sampler: The sampler of the model.
        x: A tensor, array, tuple or dict of inputs, or an iterable of batches. Batches with one part more than the
            model has arguments hold their labels in the last one.
        y: Labels, one per input; ``None``: none, or those of the iterable.

    Raises:
        InputError: If inputs or labels cannot be read.
    """

    def __init__(self, sampler: DropoutSampler, x: Any, y: Any = None) -> None:
        if isinstance(x, memoryview):
            x = np.asarray(x)
        if isinstance(x, Dataset) and not isinstance(x, (IterableDataset, DataLoader)):
            x = samples_together(x)
        self._sampler, self._x = sampler, x
        self._arity = Signature.of(sampler.model).positional
        self._y = None if y is None else _labels(y)
        self.whole = _is_whole(x)
        if not self.whole:
            check_iterable(x)
        self.once = not self.whole and iter(x) is x
        self.rows: int | None = None
        if self.whole:
            self._batch = next(iter(sampler.batches(x)))
            self._batch.check_finite()
            self.rows = self._batch.rows
            self._check_labels(self.rows)
            self.has_labels = y is not None
        else:
            first = next(iter(x), None)
            if first is None:
                raise InputError("the iterable of inputs is empty; give at least one batch")
            self._first = first
            self._x = itertools.chain([first], x) if self.once else x
            self.has_labels = y is not None or self._labelled(first)

    def peek(self) -> Batch:
        """Some of the first inputs; an iterator keeps them."""
        if self.whole:
            return self._batch[: min(_PEEK, self._batch.rows)]
        item = self._first
        return next(iter(self._sampler.batches([item[:-1] if self._labelled(item) else item])))

    def identity(self) -> dict[str, Any]:
        """What tells this data set from others: all inputs, or the first batch of an iterable, and labels."""
        inputs = self._batch if self.whole else self.peek()
        labels = "" if self._y is None else hashlib.sha256(np.ascontiguousarray(self._y).tobytes()).hexdigest()
        return {"inputs" if self.whole else "first inputs": of_inputs(inputs), "labels": labels}

    def count(self) -> int:
        """The number of rows; reads an iterable once if it is not known."""
        if self.rows is None:
            for _ in self.batches():
                pass
        assert self.rows is not None
        return self.rows

    def batches(self) -> Iterator[tuple[int, Batch, NDArray[Any] | None]]:
        """One reading of the data set.

        Yields:
            Number of the first row, inputs, labels.
        """
        row = 0
        for batch, labels in self._whole() if self.whole else self._stream():
            end = row + batch.rows
            if self._y is not None:
                labels = self._y[row:end]
            yield row, batch, labels
            row = end
        if self.rows is None:
            self._check_labels(row)
            self.rows = row
        elif row != self.rows:
            raise InputError(
                f"the iterable gave {self.rows} inputs at first and {row} later; it has to give the same ones in the "
                "same order every time: use a DataLoader with shuffle=False"
            )

    def _whole(self) -> Iterator[tuple[Batch, NDArray[Any] | None]]:
        for start in range(0, self._batch.rows, WINDOW):
            yield self._batch[start : min(start + WINDOW, self._batch.rows)], None

    def _stream(self) -> Iterator[tuple[Batch, NDArray[Any] | None]]:
        for item in self._x:
            labels = None
            if self._labelled(item):
                labels, item = _labels(item[-1]), item[:-1]
            for batch in self._sampler.batches([item]):
                batch.check_finite()
                if labels is not None and len(labels) != batch.rows:
                    raise InputError(f"a batch of {batch.rows} inputs has {len(labels)} labels; give one label each")
                yield batch, labels

    def _labelled(self, item: Any) -> bool:
        parts = isinstance(item, (tuple, list)) and not isinstance(item[0] if item else 0.0, (int, float))
        return parts and self._arity is not None and len(item) == self._arity + 1

    def _check_labels(self, rows: int) -> None:
        if self._y is not None and len(self._y) != rows:
            raise InputError(f"there are {rows} inputs and {len(self._y)} labels; give one label per input")


def _is_whole(x: Any) -> bool:
    return isinstance(x, (Tensor, np.ndarray, tuple, Mapping, Constant)) or hasattr(x, "to_numpy")


def _labels(y: Any) -> NDArray[Any]:
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    labels = np.asarray(y)
    if labels.dtype.kind not in "fiub" or not labels.ndim:
        raise InputError(f"labels are numbers, one per input: got {labels.dtype} of shape {labels.shape}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError("labels contain NaN or infinite values; remove those inputs")
    if labels.dtype.kind == "f" and (labels == np.round(labels)).all() and np.abs(labels).max(initial=0) < 2**53:
        return labels.astype(np.int64)  # class numbers that were stored as floats
    return labels


def random_numbers(seed: int, level: int, sweep: int, first_row: int, rows: int) -> NDArray[np.float64]:
    """The random numbers by which a level takes rows.

    Args:
        seed: Seed of the run.
        level: The level.
        sweep: How often all rows were used before.
        first_row: Number of the first row.
        rows: How many rows.

    Returns:
        Uniform numbers in [0, 1), (rows,).
    """
    key = pass_keys(seed, EVALUATION_INPUTS + level, sweep, 0)
    drawn = words(key, rows, first_row).flatten().numpy().view(np.uint64)
    return np.asarray((drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def rows_of_block(level: int, width: int) -> int:
    """Rows of a block, about.

    Args:
        level: The level.
        width: Numbers that a pass gives per row.

    Returns:
        The number of rows; 2 at least, for some models squeeze the outputs of a single row.
    """
    return max(2, min(BLOCK_PASSES >> level, BLOCK_FLOATS // width))


def blocks_of(
    data: DataSet, slices: Sequence[Slice], seed: int, width: int, strata: NDArray[np.uint8] | None = None
) -> Iterator[Block]:
    """The rows of all slices in one reading of the data set.

    What is in a block does not depend on the batches in which inputs come.

    Args:
        data: The data set.
        slices: Which rows to take.
        seed: Seed of the run.
        width: Numbers that a pass gives per row.
        strata: Stratum of every row; ``None``: there is one.

    Yields:
        Blocks, in an order that follows from the slices.
    """
    collectors = [_Collector(part, rows_of_block(part.level, width)) for part in slices]
    for first, batch, labels in data.batches():
        for collector in collectors:
            collector.add(seed, first, batch, labels, None if strata is None else strata[first : first + batch.rows])
            yield from collector.full_blocks()
    for collector in collectors:
        yield from collector.rest()


class _Collector:
    """Rows of a slice that wait for their block to be full."""

    def __init__(self, part: Slice, size: int) -> None:
        self._slice = part
        self._size = size
        self._pieces: list[tuple[Batch, NDArray[Any] | None]] = []
        self._waiting = self._sent = 0

    def add(
        self, seed: int, first: int, batch: Batch, labels: NDArray[Any] | None, strata: NDArray[np.uint8] | None
    ) -> None:
        part = self._slice
        u = random_numbers(seed, part.level, part.sweep, first, batch.rows) + part.sweep
        wanted = (u >= part.low) & (u < part.high)
        if strata is not None:
            wanted &= strata == part.stratum
        taken = np.flatnonzero(wanted)
        if not len(taken):
            return
        if len(taken) < batch.rows:
            batch = _rows(batch, taken)
            labels = None if labels is None else labels[taken]
        self._pieces.append((batch, labels))
        self._waiting += len(taken)

    def full_blocks(self) -> Iterator[Block]:
        while self._waiting >= self._size + 2:  # no block of a single row at the end
            yield self._block(self._size)

    def rest(self) -> Iterator[Block]:
        if self._waiting > self._size + 1:
            yield from self.full_blocks()
        if self._waiting:
            yield self._block(self._waiting)

    def _block(self, size: int) -> Block:
        batches, labels = zip(*self._pieces, strict=True)
        batch = _joined(batches)
        joined = None if labels[0] is None else np.concatenate(labels)
        rest = self._waiting - size
        self._pieces = [(batch[size:], None if joined is None else joined[size:])] if rest else []
        block = Block(self._slice, self._sent, batch[:size], None if joined is None else joined[:size])
        self._waiting, self._sent = rest, self._sent + size
        return block


def _rows(batch: Batch, taken: NDArray[np.int64]) -> Batch:
    index = torch.from_numpy(taken).to(batch.device)
    return batch.map(lambda values: values[index], len(taken))


def _joined(batches: Iterable[Batch]) -> Batch:
    """Batches of the same arguments, one after another."""
    first, *others = batches
    if not others:
        return first
    columns: list[list[Tensor]] = []
    for batch in (first, *others):
        tensors: list[Tensor] = []
        batch.map(lambda values, into=tensors: into.append(values) or values, batch.rows)  # type: ignore[misc]
        columns.append(tensors)
    joined = iter([torch.cat(column) for column in zip(*columns, strict=True)])
    return first.map(lambda _: next(joined), sum(batch.rows for batch in (first, *others)))
