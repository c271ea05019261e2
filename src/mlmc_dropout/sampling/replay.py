"""Functions of masks, computed or replayed: which are recorded, when a tape is trusted, and for how long.

A function that is called a second time on inputs and masks of the same shapes is recorded (``tape``). The tape has to
give the function's own bits for masks that it had not seen, and for inputs that it had not seen, before it is trusted.
If nothing about the inputs was turned into Python numbers, it serves all inputs of these shapes, in later calls, too.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mlmc_dropout.sampling.tape import Function, Masks, OtherShapesError, Tape, record

__all__ = ["Replay", "version"]

_CALLS = 2  # of which the last is recorded
_REPAID = 4  # replays after which a recording has saved time
_PROOF = 4  # passes that are computed both ways before a tape is trusted
_MOST = 16  # recordings of a model


class Replay:
    """Runs functions of masks; one that is called repeatedly on inputs of the same kind is recorded and replayed.

    The leading axis of masks and results is that of the passes.
    """

    def __init__(self) -> None:
        self._recordings: dict[tuple[tuple[Hashable, ...], Hashable], _Recording] = {}

    def __reduce__(self) -> Any:
        return Replay, ()  # tapes are not sent to other processes

    def __call__(self, function: Function, inputs: Sequence[Any], masks: Masks, weights: int = 0) -> Any:
        """Compute ``function(masks)``, or replay it.

        Args:
            function: A function of the masks that depends on nothing else but ``inputs`` and the model.
            inputs: What else it depends on: tensors; numbers and words; any objects, known by identity.
            masks: Per site, masks (passes, *mask), or ``None``; none at all where the function depends on none.
            weights: A number that changes with the weights of the model.

        Returns:
            The result of the function, the same bits either way.
        """
        devices = {value.device.type for value in (*masks, *inputs) if isinstance(value, Tensor)}
        if any(map(torch.is_autocast_enabled, devices)):
            return function(masks)  # would act on replayed kernels a second time
        shapes = tuple(None if mask is None else (mask.shape, mask.stride(), mask.dtype) for mask in masks)
        kind = tuple(map(_kind, inputs)), shapes
        recording = self._recordings.get(kind)
        if recording is None:
            objects = [value for value in inputs if not isinstance(value, (Tensor, *_BY_VALUE))]
            recording = self._recordings.setdefault(kind, _Recording(objects))
            for old in list(self._recordings)[:-_MOST]:
                self._recordings.pop(old, None)
        tensors = [value for value in inputs if isinstance(value, Tensor) and value.layout == torch.strided]
        with torch.no_grad():
            return recording.run(function, tensors, weights, masks)

    def covers(self, inputs: Sequence[Any]) -> bool:
        """Whether a trusted tape shows that passes over such inputs do not depend on their values in other ways.

        Args:
            inputs: All inputs of the model.

        Returns:
            Whether there is one.
        """
        wanted = tuple(map(_kind, inputs))
        return any(
            recording.trusted and recording.fixed_shapes and kind[0][-len(wanted) :] == wanted
            for kind, recording in list(self._recordings.items())
        )

    def rest(self) -> None:
        """Forget inputs, and tapes that hold for certain inputs or objects only."""
        for kind, recording in list(self._recordings.items()):
            recording.rest()
            if recording.objects:
                del self._recordings[kind]


@dataclass(slots=True)
class _Early:
    """What a tape has computed of certain inputs."""

    identity: tuple[Any, ...]
    inputs: list[Tensor]  # kept alive, so that no other tensor can get their identity
    values: list[Tensor]


@dataclass(slots=True)
class _Recording:
    """The calls on inputs and masks of one kind, and their tape."""

    objects: list[Any]  # kept alive, so that no other can get their identity
    tape: Tape | None = None
    calls: int = 0
    patience: int = _CALLS
    plays: int = 0
    refused: bool = False
    proved: bool = False  # for other masks
    proved_for_inputs: bool = False
    masks: list[Tensor] = field(default_factory=list)  # the first few of those recorded
    rows: list[Tensor] = field(default_factory=list)  # the first row of the inputs recorded
    early: dict[int, _Early] = field(default_factory=dict)  # by thread

    @property
    def trusted(self) -> bool:
        """Whether the tape serves all inputs of these shapes."""
        return self.tape is not None and self.tape.general and self.proved

    @property
    def fixed_shapes(self) -> bool:
        """Whether no result has a shape that depends on the values of inputs."""
        return self.tape is not None and self.tape.fixed_shapes

    def run(self, function: Function, inputs: list[Tensor], weights: int, masks: Masks) -> Any:
        identity = *map(_identity, inputs), weights
        tape = self.tape
        if tape is None:
            return self._record(function, inputs, identity, masks)
        early = self._early_of(tape, inputs, identity)
        if early is None:
            return function(masks)
        self.plays += 1
        out = tape.play(masks, early)
        others = not self.proved_for_inputs and any(map(_differ, map(_first_row, inputs), self.rows))
        if self.proved and not others:
            return out
        if not self._proves(tape, function, early, masks, out):
            self.tape, self.refused = None, True
            return function(masks)
        self.proved, self.proved_for_inputs = True, self.proved_for_inputs or others
        return out

    def _proves(self, tape: Tape, function: Function, early: list[Tensor], masks: Masks, out: Any) -> bool:
        """Whether the tape's result for these masks begins as the function's own."""
        if not all(map(_differ, _first_passes(masks), self.masks)):  # those that were recorded prove nothing
            masks = [None if mask is None else _other(mask) for mask in masks]
            out = tape.play(masks, early)
        few = function([None if mask is None else mask[:_PROOF] for mask in masks])
        # Some kernels round differently for so few: then all have to be computed both ways.
        return _starts_with(out, few) or _starts_with(out, function(masks))

    def _record(self, function: Function, inputs: list[Tensor], identity: tuple[Any, ...], masks: Masks) -> Any:
        self.calls += 1
        if self.refused or self.calls < self.patience:
            return function(masks)
        out, tape = record(function, masks, inputs)
        if tape is None:
            self.refused = True
            return out
        self.masks = [mask.clone() for mask in _first_passes(masks)]
        self.rows = [_first_row(value).clone() for value in inputs]
        self.early = {threading.get_ident(): _Early(identity, inputs, list(tape.early.values()))}
        self.proved = self.proved_for_inputs = False
        self.plays, self.tape = 0, tape
        return out

    def _early_of(self, tape: Tape, inputs: list[Tensor], identity: tuple[Any, ...]) -> list[Tensor] | None:
        """What the tape needs of these inputs; ``None`` if it does not hold for them."""
        early = self.early.get(threading.get_ident())
        if early is not None and early.identity == identity:
            return early.values
        if tape.general:
            try:
                values = tape.prepare(inputs)
            except OtherShapesError:
                return None
            self.early[threading.get_ident()] = _Early(identity, inputs, values)
            return values
        self._drop()
        self.calls = 1
        return None

    def _drop(self) -> None:
        """Forget a tape that holds for certain inputs only; where inputs alternate, recordings become rare."""
        if self.plays < _REPAID:
            self.patience *= 2
        self.tape, self.calls = None, 0

    def rest(self) -> None:
        """Forget the inputs."""
        self.early = {}
        if self.tape is not None and not self.tape.general:
            self._drop()


_BY_VALUE = (int, float, str, type(None))


def _kind(value: Any) -> Hashable:
    """What has to be equal for a tape to hold."""
    if not isinstance(value, Tensor):
        return (type(value), value) if isinstance(value, _BY_VALUE) else id(value)
    if value.layout != torch.strided:
        return id(value), version(value)
    return value.shape, value.stride(), value.dtype, value.device, value.is_inference()


def _identity(value: Tensor) -> Any:
    """What distinguishes an input, in its present state, from others."""
    return value.data_ptr(), version(value)


def version(tensor: Tensor) -> int:
    """A number that grows whenever a tensor is written to; 0 for tensors of inference mode, which do not count.

    Args:
        tensor: The tensor.

    Returns:
        The number.
    """
    return 0 if tensor.is_inference() else tensor._version


def _first_passes(masks: Masks) -> list[Tensor]:
    return [mask[:_PROOF] for mask in masks if mask is not None]


def _other(mask: Tensor) -> Tensor:
    """Another mask with the same places in memory: keep bits the other way round, numbers in another order."""
    size = 1 + sum((length - 1) * step for length, step in zip(mask.shape, mask.stride(), strict=True))
    memory = mask.as_strided((size,), (1,))
    memory = memory.bitwise_xor(1) if mask.dtype == torch.uint8 else memory.flip(0)
    return memory.as_strided(mask.shape, mask.stride())


def _first_row(value: Tensor) -> Tensor:
    return value[:1] if value.dim() else value


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


def _starts_with(whole: Any, start: Any) -> bool:
    """Whether the first passes are equal to these."""
    if isinstance(whole, tuple):
        return len(whole) == len(start) and all(map(_starts_with, whole, start))
    return torch.equal(whole[: len(start)], start)
