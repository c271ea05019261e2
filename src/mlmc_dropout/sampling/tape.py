"""The kernels behind a chunk of passes, recorded once and run again with other masks and other inputs.

Python, the modules' calls, vmap and our interception cost as much for ten passes as for a hundred, and chunks small
enough for the processor's caches would spend their time there. A tape sees the kernels below all of that, in two parts:
those that do not depend on the masks run once for some inputs, the others once for every chunk. Playing it runs the
same kernels on the same shapes, so it gives the same bits; ``replay`` decides when it is trusted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from mlmc_dropout.sampling.randomness import draws

__all__ = ["Function", "Masks", "OtherShapesError", "Tape", "Value", "record"]

Masks = Sequence[Tensor | None]
Function = Callable[[Masks], Any]

# Ways to read numbers out of a tensor that no kernel shows.
_HIDDEN_READS = frozenset(
    getattr(Tensor, name)
    for name in ("numpy", "tolist", "data_ptr", "untyped_storage", "__array__", "__dlpack__", "__reduce_ex__")
)


class OtherShapesError(Exception):
    """A result depends on inputs in its shape, and has another one than the recorded result."""


@dataclass(frozen=True, slots=True)
class Value:
    """A reference in a step's arguments to a tensor that was made or given.

    Attributes:
        index: Its number.
    """

    index: int


@dataclass(slots=True)
class _Step:
    kernel: Any
    args: list[Any]
    kwargs: dict[str, Any]
    made: list[int]
    several: bool
    shapes: list[torch.Size] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)

    def reads(self) -> Iterator[int]:
        """The values among the arguments."""
        return _values([self.args, list(self.kwargs.values())])


@dataclass(frozen=True, slots=True)
class Tape:
    """Recorded kernels, to be run again for masks, and inputs, of the same shapes.

    Attributes:
        steps: The kernel calls that depend on the masks.
        early_steps: Those that do not.
        early: What they made that others need, by number, for the inputs that were recorded.
        general: Whether the tape holds for other inputs, too: nothing about them was turned into Python numbers.
        fixed_shapes: Whether no result has a shape that depends on the values of inputs.
    """

    steps: list[_Step]
    early_steps: list[_Step]
    early: dict[int, Tensor]
    general: bool
    fixed_shapes: bool
    _play: Callable[..., Any]
    _prepare: Callable[..., list[Tensor]]

    def play(self, masks: Masks, early: Sequence[Tensor] | None = None) -> Any:
        """Run the kernels that depend on the masks.

        Args:
            masks: Masks of the shapes that were recorded.
            early: What :meth:`prepare` made of the inputs; by default what was recorded.

        Returns:
            The result of the recorded function for these masks.
        """
        return self._play(*masks, *(self.early.values() if early is None else early))

    def prepare(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the kernels that do not depend on the masks.

        Args:
            inputs: Inputs of the shapes that were recorded.

        Returns:
            What :meth:`play` needs of them.

        Raises:
            OtherShapesError: If a result has another shape than the recorded one.
        """
        return self._prepare(*inputs)


def record(function: Function, masks: Masks, inputs: Sequence[Tensor] = ()) -> tuple[Any, Tape | None]:
    """Run a function and record its kernels.

    Args:
        function: A function of the masks.
        masks: Per site, masks (passes, *mask), or ``None``.
        inputs: Further tensors that the function depends on, which may be others another time.

    Returns:
        ``function(masks)`` and its tape, or ``None`` where the kernels do not show everything that happens.
    """
    out = tape = None
    with contextlib.suppress(Exception):  # some kernels cannot be intercepted
        with (watch := _HiddenReads()), (recorder := _Recorder(masks, inputs)):
            out = function(masks)
        tape = recorder.tape(out, watch.seen)
    return (function(masks) if out is None else out), tape  # an error of the function itself occurs again


class _HiddenReads(TorchFunctionMode):
    """Notices where numbers are read in ways that no kernel shows."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func in _HIDDEN_READS
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Keeps all kernels, apart by whether they depend on the masks.

    A function cannot be replayed if it turns values that depend on the masks into Python numbers (and may branch on
    them), draws random numbers, writes such values to others or changes one that was used before. It cannot be replayed
    for other inputs if it turns values that depend on them into numbers, or writes to what was there before.
    """

    def __init__(self, masks: Masks, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self.early_steps: list[_Step] = []
        self.possible = self.general = self.fixed_shapes = True
        self._early: dict[int, Tensor] = {}  # read by steps that depend on the masks
        self._own: set[int] = set()  # memory of values that do not, made while recording
        self._used: set[int] = set()  # memory that steps read and that does not depend on the masks
        self._index = WeakIdKeyDictionary()  # from living tensors to their numbers
        self._count = 0
        for value in (*masks, *inputs):
            self._add(value)
        self._given = range(len(masks), self._count)
        self._late = set(range(len(masks)))

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = [self._place(a) for a in args]
        named = {name: self._place(a) for name, a in kwargs.items()}
        out = func(*args, **kwargs)
        if not self.possible:
            return out
        with torch._C.DisableTorchFunction():  # what is looked at here is not looked at by the function
            read = [a for a in _flat([args, list(kwargs.values())]) if isinstance(a, Tensor)]
            written = {_memory(a) for a in _written(func, args, kwargs) if self._index.get(a) not in self._late}
            self._keep(_Step(func, places, named, [], isinstance(out, (tuple, list))), out, read, written)
        return out

    def _keep(self, step: _Step, out: Any, read: list[Tensor], written: set[int]) -> None:
        """Keep a kernel call, from what it read and the memory it wrote to that does not depend on the masks."""
        late = any(index in self._late for index in step.reads())
        made = out if step.several else (out,)
        self._own -= {_memory(value) for value in read if value not in self._index}
        if draws(step.kernel, tuple(step.args), step.kwargs) or (written and (late or written & self._used)):
            self.possible = False
        elif not all(isinstance(value, Tensor) for value in made):
            self.possible = not late
            self.general = self.general and not read
        elif late:
            for value in read:
                if self._index.get(value) not in self._late:
                    self._use(value)
            self._late.update(self._append(self.steps, step, made))
        else:
            self.general = self.general and written <= self._own
            self.fixed_shapes = self.fixed_shapes and not _follows_values(step.kernel, read)
            if not written:
                self._own |= {_memory(value) for value in made} - {_memory(value) for value in read}
            self._append(self.early_steps, step, made)

    def _use(self, value: Tensor) -> None:
        """Keep a value that does not depend on the masks for steps that do."""
        self._used.add(_memory(value))
        if value in self._index:
            self._early[self._index[value]] = value

    def _append(self, steps: list[_Step], step: _Step, made: Sequence[Tensor]) -> list[int]:
        step.made = [self._index[value] if value in self._index else self._add(value) for value in made]
        step.shapes = [value.shape for value in made]
        steps.append(step)
        return step.made

    def _add(self, value: Tensor | None) -> int:
        if value is not None:
            self._index[value] = self._count
        self._count += 1
        return self._count - 1

    def _place(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            index = self._index.get(argument)
            return argument if index is None else Value(index)
        return [self._place(a) for a in argument] if isinstance(argument, (list, tuple)) else argument

    def tape(self, out: Any, hidden_reads: bool) -> Tape | None:
        """The tape, each step with the values that can be freed after it."""
        several = isinstance(out, tuple)
        for value in out if several else (out,):
            if self._index.get(value) not in self._late:
                self._use(value)
        place = tuple(map(self._place, out)) if several else self._place(out)
        if not self.possible:
            return None
        needed = list(self._early)
        _free(self.steps, [*_values(place), *needed])
        _free(self.early_steps, needed)
        play = _compiled(self.steps, [*range(self._given.start), *needed], place)
        general = self.general and not hidden_reads
        early_steps = self.early_steps if general else []
        prepare = _compiled(early_steps, self._given, [Value(index) for index in needed], check=True)
        return Tape(self.steps, early_steps, self._early, general, self.fixed_shapes, play, prepare)


def _free(steps: Sequence[_Step], kept: Sequence[int]) -> None:
    """Note, for each step, the values that nobody needs after it."""
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        last.update(dict.fromkeys([*step.reads(), *step.made], number))
    for index in kept:
        last.pop(index, None)
    for index, number in last.items():
        steps[number].freed.append(index)


def _compiled(steps: Sequence[_Step], given: Sequence[int], out: Any, check: bool = False) -> Callable[..., Any]:
    """A Python function that calls the kernels one after the other.

    Args:
        steps: The kernel calls.
        given: Numbers of the function's arguments.
        out: What it returns, with references to values.
        check: Whether the shapes of results are compared with the recorded ones.
    """
    scope: dict[str, Any] = {}

    def text(place: Any) -> str:
        if type(place) is Value:
            return f"v{place.index}"
        if type(place) in (list, tuple):
            parts = "".join(f"{text(p)}, " for p in place)
            return f"[{parts}]" if type(place) is list else f"({parts})"
        name = f"c{len(scope)}"
        scope[name] = place
        return name

    lines = [f"def run({', '.join(f'v{index}' for index in given)}):"]
    for step in steps:
        arguments = [*map(text, step.args), *(f"{name}={text(value)}" for name, value in step.kwargs.items())]
        names = "".join(f"v{index}, " for index in step.made) if step.several else f"v{step.made[0]}"
        lines.append(f"    {names or '_'} = {text(step.kernel)}({', '.join(arguments)})")
        if check:
            lines += [f"    check(v{i}, {text(shape)})" for i, shape in zip(step.made, step.shapes, strict=True)]
        if step.freed:
            lines.append(f"    del {', '.join(f'v{index}' for index in step.freed)}")
    lines.append(f"    return {text(out)}")
    scope["check"] = _check_shape
    exec("\n".join(lines), scope)  # names and numbers only: see ``text``
    run: Callable[..., Any] = scope["run"]
    return run


def _check_shape(value: Tensor, shape: torch.Size) -> None:
    if value.shape != shape:
        raise OtherShapesError


def _follows_values(func: Any, read: Sequence[Tensor]) -> bool:
    """Whether the shape of a kernel's result depends on values; that of indexing does for boolean indices only."""
    if func.overloadpacket is torch.ops.aten.index:
        return any(value.dtype in (torch.bool, torch.uint8) for value in read[1:])
    return torch.Tag.dynamic_output_shape in func.tags or "pack_padded" in func.name()


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that a kernel writes to."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (v for v in _flat(value) if isinstance(v, Tensor))


def _flat(places: Any) -> Iterator[Any]:
    """The leaves of nested arguments."""
    if isinstance(places, (list, tuple)):
        for place in places:
            yield from _flat(place)
    else:
        yield places


def _values(places: Any) -> Iterator[int]:
    """The numbers of the values in nested arguments."""
    return (place.index for place in _flat(places) if type(place) is Value)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)
