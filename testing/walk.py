"""Everything that can be reached from a model, before and after."""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["differences", "walk"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, slice)
_CLOSED = (type, types.ModuleType, types.BuiltinFunctionType, weakref.ReferenceType, torch.Generator)
_MOST = 200_000  # objects looked at


def walk(thing: Any) -> dict[str, Any]:
    """Everything that can be reached from ``thing``: path -> value.

    Attributes, slots, containers, closures, partial functions and the objects of bound methods are followed.
    Tensors are copied, so that a later walk can be compared by :func:`differences`.
    """
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # kept alive, so that an id means one object
    waiting: list[tuple[str, Any]] = [("model", thing)]
    while waiting and len(seen) < _MOST:
        path, one = waiting.pop()
        if isinstance(one, _PLAIN):
            found[path] = repr(one)
        elif id(one) in seen:
            found[path] = "seen before"
        else:
            seen[id(one)] = one
            found[path] = _own_value(one)
            waiting.extend((f"{path}{step}", part) for step, part in reversed(list(_parts(one))))
    return found


def _own_value(one: Any) -> Any:
    if isinstance(one, Tensor):
        return _tensor_value(one)
    if isinstance(one, np.ndarray):
        return one.dtype.str, one.shape, one.tobytes()
    if isinstance(one, (Mapping, list, tuple, set, frozenset)):
        with contextlib.suppress(Exception):
            return type(one).__name__, len(one)
    return type(one).__name__


def _tensor_value(one: Tensor) -> tuple[Any, ...]:
    if torch._C._functorch.is_functorch_wrapped_tensor(one):
        return ("a tensor of vmap",)
    if one.layout is not torch.strided:
        return (str(one.layout), tuple(one.shape))
    kept = one.detach().clone()
    return type(one).__name__, tuple(one.shape), str(one.dtype), one.requires_grad, one.grad is None, kept


def _parts(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, _CLOSED):
        return
    if isinstance(one, Mapping):
        with contextlib.suppress(Exception):
            yield from ((f"[{_label(key)}]", value) for key, value in list(one.items()))
    elif isinstance(one, (list, tuple)):
        yield from ((f"[{place}]", value) for place, value in enumerate(one))
    elif isinstance(one, (set, frozenset)):
        yield from ((f"{{{_label(value)}}}", value) for value in one)
    elif isinstance(one, functools.partial):
        yield from (("(func)", one.func), ("(args)", one.args), ("(keywords)", one.keywords))
    elif isinstance(one, types.MethodType):
        yield from (("(self)", one.__self__), ("(function)", one.__func__))
    elif isinstance(one, types.FunctionType):
        yield from _captured(one)
    yield from _attributes(one)


def _captured(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars  # type: ignore[attr-defined]
    for name, cell in zip(names, function.__closure__ or (), strict=True):  # type: ignore[attr-defined]
        with contextlib.suppress(ValueError):  # an empty cell
            yield f"<{name}>", cell.cell_contents


def _attributes(one: Any) -> Iterator[tuple[str, Any]]:
    own = getattr(one, "__dict__", None)
    if isinstance(own, dict):
        yield from ((f".{name}", value) for name, value in list(own.items()))
    for kind in type(one).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(one, name):
                yield f".{name}", getattr(one, name)


def _label(key: Any) -> str:
    return repr(key) if isinstance(key, _PLAIN) else f"{type(key).__name__} {id(key)}"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Paths that are new, gone, or have another value; and tensors of vmap that were left behind."""
    found = [f"{path} is new" for path in after.keys() - before.keys()]
    found += [f"{path} is gone" for path in before.keys() - after.keys()]
    found += [f"{path} has changed" for path in before.keys() & after.keys() if not _same(before[path], after[path])]
    found += [f"{path} holds a tensor of vmap" for path, value in after.items() if value == ("a tensor of vmap",)]
    return sorted(found)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(map(_same, a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(_bits(a), _bits(b))
    return type(a) is type(b) and bool(a == b)


def _bits(tensor: Tensor) -> Tensor:
    """Bytes, so that NaN equals itself and −0 differs from 0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
