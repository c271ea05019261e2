"""What is asked of a model from outside: random kernels in training, the honest loop, z-scores, before and after."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zoo
from outside.models import Case
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Agreement", "agreement", "differences", "honest_passes", "in_training", "matrix", "random_kernels", "walk"]

# --------------------------------------------------------------------------- the train-mode pass


@contextlib.contextmanager
def in_training(module: nn.Module) -> Iterator[None]:
    """``train()`` with normalisation in ``eval()``, and every flag as it was afterwards."""
    flags = [(part, part.training) for part in module.modules()]
    module.train()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.eval()
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag


def call(case: Case) -> Any:
    """One call of the model, as a user writes it, and the transform."""
    output = zoo.call(case.model, case.x)
    return output if case.transform is None else case.transform(output)


def rows(x: Any) -> int:
    """The number of input rows."""
    return len(next(leaf for leaf in _leaves(x) if leaf.dim()))


def matrix(output: Any, count: int, first: int = 0) -> Tensor:
    """All tensors of floats with ``count`` rows, side by side; what else a ModelOutput holds is left out.

    Args:
        output: A tensor, or containers of tensors.
        count: Number of rows.
        first: The axis that the rows are on; passes may stand before them.

    Returns:
        A tensor (…, rows, width).
    """
    fits = [part for part in _leaves(output) if part.dim() > first and part.shape[first] == count]
    parts = [part.reshape(*part.shape[: first + 1], -1) for part in fits if part.is_floating_point()]
    return torch.cat(parts, dim=-1)


def _leaves(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from itertools.chain.from_iterable(map(_leaves, output.values()))
    elif isinstance(output, (tuple, list)):
        yield from itertools.chain.from_iterable(map(_leaves, output))
    elif dataclasses.is_dataclass(output):
        yield from _leaves([getattr(output, field.name) for field in dataclasses.fields(output)])


def honest_passes(case: Case, passes: int, seed: int = 0) -> Tensor:
    """Passes (passes, rows, width) of the plain loop, with torch's own draws."""
    count = rows(case.x)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), in_training(case.trained):
        torch.manual_seed(seed)
        return torch.stack([matrix(call(case), count) for _ in range(passes)])


# ------------------------------------------------------------------------------- random kernels


class _Counter(TorchDispatchMode):
    """Names of the kernels that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _rate(func, args, kwargs) != 0.0:
            self.names.append(str(func))
        return func(*args, **kwargs)


def _rate(func: Any, args: Any, kwargs: Any) -> Any:
    """The dropout rate of an attention kernel, which draws nothing at 0; None for other kernels."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return 0.0 if given is None else float(given)
    return None


def random_kernels(case: Case) -> list[str]:
    """The kernels of one train-mode pass that draw random numbers, in order."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), in_training(case.trained):
        torch.manual_seed(0)
        with _Counter() as counter:
            call(case)
    return counter.names


# -------------------------------------------------------------------------------------- z-scores


@dataclass(frozen=True, slots=True)
class Agreement:
    """z-scores of two sets of passes, over the components that vary: root mean square and largest."""

    mean_rms: float
    mean_max: float
    variance_rms: float
    variance_max: float
    components: int

    @property
    def worst(self) -> float:
        """The larger root mean square."""
        return max(self.mean_rms, self.variance_rms)


def agreement(ours: Tensor, theirs: Tensor) -> Agreement:
    """z-scores of means and variances of passes (passes, rows, width)."""
    if ours.shape[1:] != theirs.shape[1:]:
        raise AssertionError(f"outputs of shape {tuple(ours.shape[1:])} against {tuple(theirs.shape[1:])}")
    a, b = (_moments(some.double().flatten(1).numpy()) for some in (ours, theirs))
    floor = 1e-10 * (np.square(b[0]) + b[1].max(initial=0.0))
    varies = np.maximum(a[1], b[1]) > floor
    if not np.allclose(a[0][~varies], b[0][~varies], rtol=1e-4, atol=1e-5):
        raise AssertionError("components that never vary have other values than in the honest loop")
    z = [(a[i] - b[i])[varies] / np.sqrt(a[i + 2] + b[i + 2])[varies] for i in (0, 1)]
    (mean_rms, mean_max), (variance_rms, variance_max) = map(_size, z)
    return Agreement(mean_rms, mean_max, variance_rms, variance_max, int(varies.sum()))


def _moments(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mean, variance, and the squared standard errors of both, the latter from fourth moments."""
    n = len(values)
    mean = values.mean(0)
    centred = values - mean
    variance = np.square(centred).sum(0) / (n - 1)
    fourth = (centred**4).mean(0)
    error = np.maximum(fourth - variance**2 * (n - 3) / (n - 1), 0) / n
    return mean, variance, variance / n, np.maximum(error, 1e-9 * variance**2)


def _size(z: np.ndarray) -> tuple[float, float]:
    if not len(z):
        return math.nan, math.nan
    return float(np.sqrt(np.mean(z**2))), float(np.abs(z).max())


# ----------------------------------------------------------------------------- before and after

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
