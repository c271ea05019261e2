"""A copy of the model to run, so that nothing reachable from the model itself is changed.

All forward passes run on this copy: another thread may train the model, estimate with it, or read its mode at the
same time. Parameters are shared. Everything else that a forward pass could write to is copied: mode flags, buffers,
attributes, containers, and what functions kept in the model refer to (closures, bound methods, partials, globals of
scripts and notebooks), such as the dictionary in which a forward hook stores activations.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlmc_dropout.errors import ModelError

__all__ = ["ATOMIC", "LIBRARIES", "Isolated", "global_names", "is_foreign", "isolate", "slots"]

CARRIERS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)  # drop units themselves
_NORMALISATION = (nn.modules.batchnorm._NormBase,)

_MAX_BYTES = 1 << 30  # of tensors copied besides buffers
_MAX_OBJECTS = 100_000  # copied for one attribute
ATOMIC = (
    type(None), bool, int, float, complex, str, bytes, type, range, slice, types.ModuleType, types.BuiltinFunctionType,
    torch.dtype, torch.device, torch.Size, torch.layout, nn.Parameter, np.generic, np.dtype,
)  # fmt: skip
_CONTAINERS = (dict, list, set, collections.deque)
# Objects of these packages are used as they are: they hold no modules of the model, or (trainers) far too much.
_FOREIGN = frozenset(
    {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "pandas", "lightning", "pytorch_lightning", "skorch"}
) - {"__main__"}
_WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
LIBRARIES = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True, eq=False)
class Isolated:
    """A copy of a model.

    Attributes:
        model: The copy, called like the model.
        modules: All modules of the copy, with their names.
        shared: Names of what could not be copied and is used by the model and its copy alike.
        buffers: Names of buffers, those of the copy, and those of the model.
        tensors: Other tensors that were copied: those of the copy, and those of the model.
    """

    model: Any
    modules: dict[nn.Module, str]
    shared: tuple[str, ...]
    buffers: tuple[tuple[str, Tensor, Tensor], ...]
    tensors: tuple[tuple[Tensor, Tensor], ...] = ()

    def set_mode(self, training: bool, keep_dropout: bool = False) -> None:
        """Switch all modules to training (normalisation layers stay in evaluation) or to evaluation.

        Args:
            training: The mode.
            keep_dropout: Leave layers that drop units on in evaluation.
        """
        for module in self.modules:
            on = (training and not isinstance(module, _NORMALISATION)) or (
                keep_dropout and isinstance(module, CARRIERS)
            )
            module.__dict__["training"] = on

    def changed(self) -> list[str]:
        """Names of the buffers that passes have changed."""
        return [
            name
            for name, copied, original in self.buffers
            if copied.shape != original.shape or not torch.equal(copied, original)
        ]

    def has_values_of_model(self) -> bool:
        """Whether all tensors that were copied have the same bytes in the model and in the copy."""
        pairs = [*((copied, original) for _, copied, original in self.buffers), *self.tensors]
        return all(_same_bytes(copied, original) for copied, original in pairs)

    def restore(self) -> list[str]:
        """Reset the buffers to their values in the model.

        Returns:
            Names of the buffers that had changed.
        """
        changed = self.changed()
        for name, copied, original in self.buffers:
            if name in changed:
                copied.data = original.detach().clone()
        return changed


def isolate(model: Any) -> Isolated:
    """Copy a model, or a callable with all models that it refers to.

    Args:
        model: An ``nn.Module``, or a function, bound method, partial or other callable.

    Returns:
        The copy. The wrappers of ``torch.compile`` are taken off: they would run the original, unseen.

    Raises:
        ModelError: If a part is TorchScript, which hides its dropout from Python.
    """
    model = getattr(model, "_torchdynamo_orig_callable", model)
    copier = _Copier()
    copy = copier.root(model)
    modules: dict[nn.Module, str] = {}
    for module, name in copier.modules:
        modules.setdefault(module, name)
    return Isolated(copy, modules, tuple(copier.shared), tuple(copier.buffers), tuple(copier.tensors))


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bytes; NaNs are equal, too."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    kind = _WHOLE_NUMBERS.get(one.itemsize) if one.is_floating_point() else None
    return torch.equal(one, other) if kind is None else torch.equal(one.detach().view(kind), other.detach().view(kind))


class _TooLargeError(Exception):
    """An attribute refers to more objects than are worth copying."""


class _Copier:
    """Copies object graphs; ``done`` maps what was met to its copy, so that references inside stay inside."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.kept: list[Any] = []  # originals, so that no identity is used twice
        self.modules: list[tuple[nn.Module, str]] = []
        self.buffers: list[tuple[str, Tensor, Tensor]] = []
        self.tensors: list[tuple[Tensor, Tensor]] = []
        self.shared: list[str] = []
        self.bytes_left = _MAX_BYTES
        self.objects_left = _MAX_OBJECTS

    def root(self, model: Any) -> Any:
        """The copy of what is called."""
        if isinstance(model, nn.Module):
            return self._module(model, "")
        return self.copy(model, "")

    def copy(self, value: Any, name: str) -> Any:
        """The copy of any value; atoms are their own copies."""
        if isinstance(value, ATOMIC):
            return value
        if id(value) in self.done:
            return self.done[id(value)]
        self.objects_left -= 1
        if self.objects_left < 0:
            raise _TooLargeError
        for kind, rule in _RULES:
            if isinstance(value, kind):
                return rule(self, value, name)
        return self._object(value, name)

    def remember(self, value: Any, copy: Any) -> Any:
        """Note a copy before its parts are copied: they may refer back to it."""
        self.done[id(value)] = copy
        self.kept.append(value)
        return copy

    def attribute(self, value: Any, name: str) -> Any:
        """The copy of a module's attribute, or the attribute itself, noted, where it cannot be copied."""
        if isinstance(value, ATOMIC):
            return value
        kept, modules = len(self.kept), len(self.modules)
        self.objects_left = _MAX_OBJECTS
        try:
            return self.copy(value, name)
        except ModelError:
            raise
        except Exception:  # foreign objects fail to be copied in many ways
            for part in self.kept[kept:]:
                self.done.pop(id(part), None)
            del self.kept[kept:], self.modules[modules:]
            self.shared.append(name)
            return value

    # -------------------------------------------------------------------------------- modules

    def _module(self, module: nn.Module, name: str) -> nn.Module:
        if id(module) in self.done:
            return self.done[id(module)]  # type: ignore[no-any-return]
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"TorchScript hides its dropout from Python: {name or 'the model'} is a {type(module).__name__}; "
                "pass the original nn.Module instead"
            )
        original = module.__dict__.get("_modules", {}).get("_orig_mod")
        if original is not None:
            return self.remember(module, self._module(original, name))  # type: ignore[no-any-return]
        twin: nn.Module = self.remember(module, object.__new__(type(module)))
        self.modules.append((twin, name))
        attributes = dict(module.__dict__)
        twin.__dict__ = attributes
        attributes["_parameters"] = dict(module._parameters)
        attributes["_buffers"] = {
            k: None if b is None else self._buffer(b, f"{name}.{k}".lstrip(".")) for k, b in module._buffers.items()
        }
        # Registered modules first: their names are those that users know.
        children = module._modules.items()
        attributes["_modules"] = {
            k: None if m is None else self._module(m, f"{name}.{k}".lstrip(".")) for k, m in children
        }
        for key, value in attributes.items():
            if key not in ("_parameters", "_buffers", "_modules"):
                attributes[key] = self.attribute(value, f"{name}.{key}".lstrip("."))
        attributes["_compiled_call_impl"] = None
        return twin

    def _buffer(self, tensor: Tensor, name: str) -> Tensor:
        if id(tensor) not in self.done:
            self.remember(tensor, tensor.detach().clone())
            self.buffers.append((name, self.done[id(tensor)], tensor))
        return self.done[id(tensor)]  # type: ignore[no-any-return]

    # --------------------------------------------------------------------------------- values

    def _tensor(self, tensor: Tensor, name: str) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        self.bytes_left -= size
        if self.bytes_left < 0 or nn.parameter.is_lazy(tensor):
            self.bytes_left += size
            self.shared.append(name)
            return self.remember(tensor, tensor)  # type: ignore[no-any-return]
        self.tensors.append((tensor.detach().clone(), tensor))
        return self.remember(tensor, self.tensors[-1][0])  # type: ignore[no-any-return]

    def _array(self, array: np.ndarray[Any, Any], name: str) -> Any:
        return self.remember(array, array.copy())

    def _generator(self, generator: torch.Generator, name: str) -> Any:
        return self.remember(generator, generator.clone_state())

    def _mapping(self, mapping: dict[Any, Any], name: str) -> Any:
        copy = self.remember(mapping, _shallow(mapping))
        for key, value in mapping.items():
            dict.__setitem__(copy, key, self.copy(value, f"{name}[{key!r}]"))
        return copy

    def _sequence(self, values: Any, name: str) -> Any:
        copy = self.remember(values, _shallow(values))
        parts = [self.copy(value, f"{name}[{i}]") for i, value in enumerate(values)]
        copy.clear()
        (copy.update if isinstance(copy, set) else copy.extend)(parts)
        return copy

    def _tuple(self, values: tuple[Any, ...], name: str) -> Any:
        parts = [self.copy(value, f"{name}[{i}]") for i, value in enumerate(values)]
        if all(a is b for a, b in zip(parts, values, strict=True)):
            return self.remember(values, values)
        kind = type(values)
        return self.remember(values, tuple.__new__(kind, parts))

    def _namespace(self, value: types.SimpleNamespace, name: str) -> Any:
        copy = self.remember(value, types.SimpleNamespace())
        copy.__dict__.update({key: self.copy(part, f"{name}.{key}") for key, part in value.__dict__.items()})
        return copy

    def _object(self, value: Any, name: str) -> Any:
        """An instance of a class written in Python: its attributes are copied."""
        kind = type(value)
        attributes = getattr(value, "__dict__", None)
        if is_foreign(value) or not isinstance(attributes, dict):
            return self.remember(value, value)
        copy = self.remember(value, object.__new__(kind))
        for slot in slots(kind):
            if hasattr(value, slot):
                object.__setattr__(copy, slot, self.copy(getattr(value, slot), f"{name}.{slot}"))
        for key, part in attributes.items():
            copy.__dict__[key] = self.copy(part, f"{name}.{key}")
        return copy

    # ------------------------------------------------------------------------------- functions

    def _function(self, function: types.FunctionType, name: str) -> Any:
        """A function with its closure, defaults and the globals of a script or notebook that it uses."""
        from_user = not function.__code__.co_filename.startswith(LIBRARIES)
        if (
            function.__closure__ is None
            and function.__defaults__ is None
            and not function.__kwdefaults__
            and not from_user
        ):
            return self.remember(function, function)
        scope = dict(function.__globals__) if from_user else function.__globals__
        fresh = [
            (self.remember(old, types.CellType()), old)
            for old in function.__closure__ or ()
            if id(old) not in self.done
        ]
        cells = tuple(self.done[id(old)] for old in function.__closure__ or ())
        copy = types.FunctionType(function.__code__, scope, function.__name__, None, cells or None)
        self.remember(function, copy)
        if from_user:
            for key in global_names(function.__code__):
                if isinstance(part := function.__globals__.get(key), (nn.Module, types.FunctionType, *_CONTAINERS)):
                    scope[key] = self.attribute(part, key)
        for new, old in fresh:
            with contextlib.suppress(ValueError):  # a cell may be empty
                new.cell_contents = self.copy(old.cell_contents, name)
        return self._with_defaults(copy, function, name)

    def _with_defaults(self, copy: types.FunctionType, function: types.FunctionType, name: str) -> Any:
        copy.__defaults__ = self.copy(function.__defaults__, name)
        copy.__kwdefaults__ = self.copy(function.__kwdefaults__, name)
        copy.__dict__.update({key: self.copy(part, f"{name}.{key}") for key, part in function.__dict__.items()})
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        return copy

    def _method(self, method: types.MethodType, name: str) -> Any:
        return types.MethodType(self.copy(method.__func__, name), self.copy(method.__self__, name))

    def _partial(self, partial: functools.partial[Any], name: str) -> Any:
        parts = self.copy(partial.args, name), self.copy(dict(partial.keywords), name)
        return self.remember(partial, functools.partial(self.copy(partial.func, name), *parts[0], **parts[1]))


_RULES: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (nn.Module, _Copier._module),
    (Tensor, _Copier._tensor),
    (np.ndarray, _Copier._array),
    (torch.Generator, _Copier._generator),
    (dict, _Copier._mapping),
    ((list, set, collections.deque), _Copier._sequence),
    (tuple, _Copier._tuple),
    (types.FunctionType, _Copier._function),
    (types.MethodType, _Copier._method),
    (functools.partial, _Copier._partial),
    (types.SimpleNamespace, _Copier._namespace),
)


def _shallow(values: Any) -> Any:
    """A container of the same type with the same contents."""
    copy = values.copy()
    if type(copy) is not type(values):
        raise TypeError(f"{type(values).__name__}.copy() gives a {type(copy).__name__}")
    if hasattr(values, "__dict__"):
        copy.__dict__.update(values.__dict__)
    return copy


def is_foreign(value: Any) -> bool:
    """Whether an object is used as it is: of a package that is left alone, or with a way of its own to be copied.

    Args:
        value: The object.
    """
    kind = type(value)
    plain = all(getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__"))
    return kind.__module__.partition(".")[0] in _FOREIGN or not plain


def slots(kind: type) -> Iterable[str]:
    """The attributes of a class that its instances have no dictionary for.

    Args:
        kind: The class.

    Yields:
        Their names.
    """
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        yield from (s for s in ((names,) if isinstance(names, str) else names) if s not in ("__dict__", "__weakref__"))


def global_names(code: types.CodeType) -> Iterator[str]:
    """The global names that a function and those defined inside it use.

    Args:
        code: The code of the function.

    Yields:
        The names.
    """
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)
