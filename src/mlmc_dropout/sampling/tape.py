"""The kernels behind a chunk of passes, recorded once and replayed with other masks.

Python, the modules' calls, vmap and our interception cost as much for ten passes as for a hundred, and chunks small
enough for the processor's caches would spend their time there. A tape sees the kernels below all of that: those that
depend on the masks are kept, the results of the others are constants. Playing it runs the same kernels on the same
shapes, so it gives the same bits, and it is trusted only after it gave them for masks that it had not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

__all__ = ["Replay", "Tape", "record", "version"]

Masks = Sequence[Tensor | None]
Function = Callable[[Masks], Any]

_IN_A_ROW = 2  # calls in a row with masks of the same shapes, of which the last is recorded
_REPAID = 4  # replays after which a recording has saved time
_PROOF = 4  # passes that are computed both ways before a tape is trusted


class Replay:
    """Runs functions of masks; one that is called repeatedly on the same inputs is recorded, proved and replayed.

    The leading axis of masks and results is that of the passes. A tape keeps what was computed before the first mask
    in memory, so there is one at a time; where inputs alternate, recordings become rare.
    """

    def __init__(self) -> None:
        self._calls = _Calls((), (), _IN_A_ROW)

    def __reduce__(self) -> Any:
        return Replay, ()  # tapes are not sent to other processes

    def __call__(self, function: Function, inputs: Sequence[Any], masks: Masks) -> Any:
        """``function(masks)``, computed or replayed; the function must depend on ``inputs`` only, which identify it."""
        if any(torch.is_autocast_enabled(mask.device.type) for mask in masks if mask is not None):
            return function(masks)  # would act on replayed kernels a second time
        identities, calls = tuple(map(_identity, inputs)), self._calls
        if identities != calls.identities:  # other threads keep the object that they have
            calls = self._calls = _Calls(tuple(inputs), identities, calls.patience * (2 if calls.unprofitable else 1))
        with torch.no_grad():
            return calls.run(function, masks)


@dataclass(slots=True)
class _Calls:
    """The calls on certain inputs, and the recording of those with masks of certain shapes."""

    inputs: tuple[Any, ...]  # kept alive, so that no other tensor can get their identity
    identities: tuple[Any, ...]
    patience: int
    last: Any = None
    in_a_row: int = 0
    kind: Any = None
    recording: _Recording | None = None

    @property
    def unprofitable(self) -> bool:
        """Whether there is a recording that has not saved time yet."""
        return self.recording is not None and self.recording.plays < _REPAID

    def run(self, function: Function, masks: Masks) -> Any:
        kind = tuple(None if mask is None else (mask.shape, mask.stride(), mask.dtype) for mask in masks)
        self.in_a_row = self.in_a_row + 1 if kind == self.last else 1
        self.last = kind
        if self.recording is not None and kind == self.kind:
            return self.recording.run(function, masks)
        if self.in_a_row < self.patience * (1 if self.recording is None else 2):
            return function(masks)
        out, tape = record(function, masks)
        self.kind, self.recording = kind, _Recording(tape, [mask.clone() for mask in _first(masks)])
        return out


@dataclass(slots=True)
class _Recording:
    """A tape, or ``None`` if the function cannot be recorded, and how it has been used."""

    tape: Tape | None
    seen: list[Tensor]
    plays: int = 0
    proved: bool = False

    def run(self, function: Function, masks: Masks) -> Any:
        tape, proved = self.tape, self.proved
        first_passes = _first(masks)
        # Masks equal to those recorded prove nothing.
        if tape is None or not (proved or all(map(_differ, first_passes, self.seen))):
            return function(masks)
        self.plays += 1
        out = tape.play(masks)
        if not proved:
            remaining = iter(first_passes)
            self.proved = _starts_with(out, function([None if mask is None else next(remaining) for mask in masks]))
            if not self.proved:
                self.tape = None
                return function(masks)
        return out


@dataclass(frozen=True, slots=True)
class _Value:
    """A reference in a step's arguments to a tensor that depends on the masks."""

    index: int


@dataclass(slots=True)
class _Step:
    kernel: Any
    args: list[Any]
    kwargs: dict[str, Any]
    made: list[int]
    several: bool
    freed: list[int] = field(default_factory=list)

    def reads(self) -> Iterator[int]:
        """The values among the arguments."""
        return _values([self.args, list(self.kwargs.values())])


@dataclass(frozen=True, slots=True)
class Tape:
    """Recorded kernels, to be run again for other masks of the same shapes.

    Attributes:
        steps: The kernel calls that depend on the masks.
        out: The result, with references in place of values that depend on the masks.
    """

    steps: list[_Step]
    out: Any

    def play(self, masks: Masks) -> Any:
        """Run the recorded kernels.

        Args:
            masks: Masks of the shapes that were recorded.

        Returns:
            The result of the recorded function for these masks.
        """
        values: dict[int, Any] = dict(enumerate(masks))
        for step in self.steps:
            args = [_filled(a, values) for a in step.args]
            made = step.kernel(*args, **{name: _filled(a, values) for name, a in step.kwargs.items()})
            values.update(zip(step.made, made if step.several else (made,), strict=True))
            for index in step.freed:
                del values[index]
        return _filled(self.out, values)


def record(function: Function, masks: Masks) -> tuple[Any, Tape | None]:
    """Run a function and record its kernels.

    Args:
        function: A function of the masks.
        masks: Per site, masks (passes, *mask), or ``None``.

    Returns:
        ``function(masks)`` and its tape, or ``None`` where the kernels do not show everything that happens.
    """
    out = tape = None
    with contextlib.suppress(Exception):  # some kernels cannot be intercepted
        with (recorder := _Recorder(masks)):
            out = function(masks)
        tape = recorder.tape(out)
    return (function(masks) if out is None else out), tape  # an error of the function itself occurs again


class _Recorder(TorchDispatchMode):
    """Keeps the kernels that depend on the masks.

    A function cannot be replayed if it turns such values into Python numbers (and may branch on them), draws random
    numbers, writes such values to a constant or changes one that was used before.
    """

    def __init__(self, masks: Masks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self.possible = True
        self._count = 0
        self._constants: set[int] = set()  # memory that steps read and that does not depend on the masks
        self._index = WeakIdKeyDictionary()  # from living tensors to their numbers
        for mask in masks:
            self._add(mask)

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = [self._place(a) for a in args]
        named = {name: self._place(a) for name, a in kwargs.items()}
        out = func(*args, **kwargs)
        if self.possible:
            self._keep(func, places, named, out)
        return out

    def _keep(self, func: Any, places: list[Any], named: dict[str, Any], out: Any) -> None:
        arguments = list(_flat([places, list(named.values())]))
        depends = any(type(place) is _Value for place in arguments)
        several = isinstance(out, (tuple, list))
        made = out if several else (out,)
        written = {_memory(place) for place in _written(func, places, named) if isinstance(place, Tensor)}
        if (
            torch.Tag.nondeterministic_seeded in func.tags
            or (written and (depends or written & self._constants))
            or (depends and not all(isinstance(value, Tensor) for value in made))
        ):
            self.possible = False
        elif depends:
            self._constants |= {_memory(place) for place in arguments if isinstance(place, Tensor)}
            numbers = [self._index[value] if value in self._index else self._add(value) for value in made]
            self.steps.append(_Step(func, places, named, numbers, several))

    def _add(self, value: Tensor | None) -> int:
        if value is not None:
            self._index[value] = self._count
        self._count += 1
        return self._count - 1

    def _place(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            index = self._index.get(argument)
            return argument if index is None else _Value(index)
        return [self._place(a) for a in argument] if isinstance(argument, (list, tuple)) else argument

    def tape(self, out: Any) -> Tape | None:
        """The tape, each step with the values that can be freed after it."""
        place = tuple(map(self._place, out)) if isinstance(out, tuple) else self._place(out)
        if not self.possible:
            return None
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            last.update(dict.fromkeys([*step.reads(), *step.made], number))
        for index in _values(place):
            last.pop(index, None)
        for index, number in last.items():
            self.steps[number].freed.append(index)
        return Tape(self.steps, place)


def _written(func: Any, places: list[Any], named: dict[str, Any]) -> Iterator[Any]:
    """The arguments that a kernel writes to."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            place = places[number] if number < len(places) else named.get(argument.name)
            yield from place if isinstance(place, list) else (place,)


def _flat(places: Any) -> Iterator[Any]:
    """The leaves of nested arguments."""
    if isinstance(places, (list, tuple)):
        for place in places:
            yield from _flat(place)
    else:
        yield places


def _values(places: Any) -> Iterator[int]:
    """The numbers of the values in nested arguments."""
    return (place.index for place in _flat(places) if type(place) is _Value)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _filled(place: Any, values: dict[int, Any]) -> Any:
    """An argument with its values in place."""
    kind = type(place)
    if kind is _Value:
        return values[place.index]
    return kind(_filled(p, values) for p in place) if kind is list or kind is tuple else place


def _identity(value: Any) -> Any:
    """What distinguishes an input, in its present state, from others."""
    if not isinstance(value, Tensor):
        return value if isinstance(value, int) else id(value)
    if value.layout != torch.strided:
        return id(value), version(value)
    return value.data_ptr(), value.dtype, value.shape, value.stride(), version(value)


def version(tensor: Tensor) -> int:
    """A number that grows whenever a tensor is written to; 0 for tensors of inference mode, which do not count.

    Args:
        tensor: The tensor.

    Returns:
        The number.
    """
    return 0 if tensor.is_inference() else tensor._version


def _first(masks: Masks) -> list[Tensor]:
    """The first few passes of all masks."""
    return [mask[:_PROOF] for mask in masks if mask is not None]


def _differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


def _starts_with(whole: Any, start: Any) -> bool:
    """Whether the first passes are equal to these."""
    if isinstance(whole, tuple):
        return len(whole) == len(start) and all(map(_starts_with, whole, start))
    return torch.equal(whole[: len(start)], start)
