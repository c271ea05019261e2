"""What a model is made of, so that a change between two calls is noticed.

A snapshot walks everything that :mod:`isolation` would copy, attributes, containers, hooks, closures, and writes it
down as a flat list: numbers and strings as they are, tensors by identity and version, code by identity. Two lists are
equal if a copy made then would do the same now. Weights may change their values in between without a new copy, since
copies share them; but that, too, shows in their version. What is written past the version, through ``.data`` or
``.numpy()``, does not show here: :mod:`keeping` compares copied tensors with their copies.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlmc_dropout.sampling.isolation import ATOMIC, LIBRARIES, global_names, is_foreign, slots

__all__ = ["Snapshot", "UnclearStateError"]

_MAX_ENTRIES = 200_000
_MAX_BYTES = 1 << 20  # of arrays, which have no version


class UnclearStateError(Exception):
    """Part of the model cannot be compared with what it was."""


class Snapshot:
    """The state of some objects.

    Args:
        roots: The objects: a model, and what is called beside it.

    Raises:
        UnclearStateError: If there is something whose changes would not be noticed.
    """

    def __init__(self, *roots: Any) -> None:
        self._entries: list[Any] = []
        self._alive: list[Any] = []  # so that no other tensor or code gets their identity
        self._weak: list[weakref.ref[Any]] = []
        self._seen: dict[int, int] = {}
        self._rules: dict[type, Rule | None] = {}
        self._classes: set[type] = set()
        self._bytes = 0
        for root in roots:
            self._walk(root)
        self._seen, self._rules, self._classes = {}, {}, set()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return self._entries == other._entries and all(ref() is not None for ref in (*self._weak, *other._weak))

    __hash__ = None  # type: ignore[assignment]

    def _walk(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._entries.append(value)
            return
        rule = self._rules.get(kind, _UNKNOWN)
        if rule is _UNKNOWN:
            rule = self._rules[kind] = _rule_for(value)
        if rule is None or (kind in _CONTAINERS and not value):
            self._entries.append(value if rule is None else kind)
            return
        seen = self._seen
        number = seen.setdefault(id(value), len(seen))
        self._entries.append(number)
        if number != len(seen) - 1:  # met before
            return
        if len(self._entries) > _MAX_ENTRIES:
            raise UnclearStateError
        rule(self, value)

    def _all(self, *values: Any) -> None:
        for value in values:
            self._walk(value)

    def _module(self, module: nn.Module) -> None:
        self._class(type(module))
        self._mapping(module.__dict__)

    def _class(self, kind: type) -> None:
        """A class with its methods and attributes, unless it belongs to an installed package."""
        self._entries.append(kind)
        if kind in self._classes:
            return
        self._classes.add(kind)
        for base in kind.__mro__:
            if _is_installed(base):
                self._entries.append(base.__dict__.get("forward"))
                continue
            for name, value in vars(base).items():
                if name not in _NOT_READ:
                    self._entries.append(name)
                    self._walk(getattr(value, "__func__", getattr(value, "fget", value)))

    def _tensor(self, tensor: Tensor) -> None:
        if tensor.is_inference() or nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided:
            raise UnclearStateError
        self._alive.append(tensor)
        layout = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        try:
            self._entries.append((id(tensor), tensor._version, tensor.data_ptr(), *layout))
        except RuntimeError:  # a tensor of vmap, dead or alive
            raise UnclearStateError from None

    def _array(self, array: np.ndarray[Any, Any]) -> None:
        self._bytes += array.nbytes
        if self._bytes > _MAX_BYTES or array.dtype.hasobject:
            raise UnclearStateError
        self._entries.append((array.shape, array.dtype, array.tobytes()))

    def _mapping(self, mapping: dict[Any, Any]) -> None:
        entries = self._entries
        entries.append((type(mapping), len(mapping)))
        for key, value in mapping.items():  # most of what there is to walk: without calls where it can be
            if type(key) is str:
                entries.append(key)
            else:
                self._walk(key)
            kind = type(value)
            if kind in _PLAIN:
                entries.append(value)
            elif kind in _CONTAINERS and not value:
                entries.append(kind)
            else:
                self._walk(value)

    def _sequence(self, values: Any) -> None:
        self._entries.append((type(values), len(values)))
        self._all(*values)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._alive.append(code)
        self._entries.append(id(code))
        self._all(function.__defaults__, function.__kwdefaults__, function.__dict__)
        for cell in function.__closure__ or ():
            try:
                self._walk(cell.cell_contents)
            except ValueError:  # an empty cell
                self._entries.append(None)
        if code.co_filename.startswith(LIBRARIES):
            return
        for name in global_names(code):
            value = function.__globals__.get(name)
            self._walk(value)
            if isinstance(value, types.ModuleType) and not _is_installed(value):
                names = [one for one in _names(code) if one in vars(value)]
                self._all(*names, *(vars(value)[one] for one in names))

    def _method(self, method: types.MethodType) -> None:
        self._all(method.__func__, method.__self__)

    def _partial(self, partial: functools.partial[Any]) -> None:
        self._all(partial.func, partial.args, partial.keywords)

    def _object(self, value: Any) -> None:
        """An instance of a class written in Python, by its attributes; anything else by its identity."""
        self._class(type(value))
        attributes = getattr(value, "__dict__", None)
        if is_foreign(value) or not isinstance(attributes, dict):
            try:
                self._weak.append(weakref.ref(value))
            except TypeError:
                self._alive.append(value)
            self._entries.append(id(value))
            return
        self._mapping(attributes)
        self._all(*(getattr(value, slot, None) for slot in slots(type(value))))


Rule = Callable[[Snapshot, Any], None]
_PLAIN = frozenset((int, float, bool, str, type(None)))
_CONTAINERS = frozenset((dict, collections.OrderedDict, list, tuple, set))  # empty ones are all alike

_RULES: tuple[tuple[Any, Rule], ...] = (
    (nn.Module, Snapshot._module),
    (Tensor, Snapshot._tensor),
    (np.ndarray, Snapshot._array),
    (dict, Snapshot._mapping),
    ((list, tuple, set, frozenset, collections.deque), Snapshot._sequence),
    (types.FunctionType, Snapshot._function),
    (types.MethodType, Snapshot._method),
    (functools.partial, Snapshot._partial),
    (types.SimpleNamespace, lambda snapshot, value: snapshot._mapping(value.__dict__)),
)
_UNKNOWN: Any = object()
_STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}
_OURS = str(Path(__file__).parents[1])


_NOT_READ = frozenset(("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__"))


@functools.lru_cache(maxsize=4096)
def _file_of(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


def _is_installed(value: type | types.ModuleType) -> bool:
    """Whether a class or module belongs to Python or an installed package, whose code is taken to stay as it is."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return name.partition(".")[0] in _STANDARD or (_file_of(name) or "").startswith((*LIBRARIES, _OURS))


def _names(code: types.CodeType) -> Iterator[str]:
    """All names of globals and attributes that a function and those defined inside it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _rule_for(value: Any) -> Rule | None:
    """How values of this type are written down; ``None`` as they are."""
    if isinstance(value, type):
        return Snapshot._class
    if isinstance(value, ATOMIC) and not isinstance(value, Tensor):
        return None
    return next((rule for kind, rule in _RULES if isinstance(value, kind)), Snapshot._object)
