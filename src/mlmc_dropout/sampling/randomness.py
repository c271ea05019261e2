"""Every kernel that draws random numbers, intercepted below all Python code and supplied with ours.

:class:`KernelMode` is a torch-dispatch mode: whichever way a kernel was called -- from a module, a function,
TorchScript or C++ -- it is dispatched here. Kernels of three laws can be supplied with numbers: Bernoulli, uniform
and normal (those of exponential numbers and of randomised leaky ReLU follow from uniform ones). All others are refused.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mlmc_dropout.errors import ModelError

__all__ = ["KernelMode", "Supplier", "draws", "location", "moved_generators", "running_module"]

aten = torch.ops.aten


class Supplier(Protocol):
    """Supplies random numbers to kernels."""

    def draw(self, law: str, p: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Draw random numbers.

        Args:
            law: "bernoulli" (keep bits), "uniform" on [0, 1), or standard "normal".
            p: Probability of 0, for "bernoulli".
            shape: Shape of the numbers.
            dtype: Their type.
            device: Where they go.

        Returns:
            The numbers.
        """


def draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a kernel call draws random numbers: torch marks all kernels that ever do.

    Args:
        func: The kernel.
        args: Positional arguments of the call.
        kwargs: Named arguments of the call.

    Returns:
        True if this call draws.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    arguments = _by_name(func, args, kwargs)
    if "attention" in func.name():
        return bool(arguments.get("dropout_p", 0.0))
    if func.overloadpacket is aten.native_dropout:
        return bool(arguments.get("train", True)) and arguments["p"] > 0
    return bool(arguments.get("training", True))  # rrelu_with_noise has such an argument


class KernelMode(TorchDispatchMode):
    """Gives kernels that draw random numbers those of a supplier.

    Args:
        supplier: Where the numbers come from.
    """

    def __init__(self, supplier: Supplier) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.supplier = supplier

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _composite(func):  # only in inference mode; the kernels it consists of may draw
            with self:
                return func.decompose(*args, **kwargs)
        if not draws(func, args, kwargs):
            return func(*args, **kwargs)
        rule = _KERNELS.get(func.overloadpacket)
        if rule is None:
            raise ModelError(
                f"the forward pass draws random numbers with {func.name()} at {location()}, which cannot be "
                "controlled; write it with torch.nn.functional.dropout, or remove it for inference"
            )
        return rule(self.supplier, func, _by_name(func, args, kwargs))


@functools.cache
def _composite(func: Any) -> bool:
    """Whether a kernel is composed of others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a kernel call by name, defaults included."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.default_value is not None}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


# ------------------------------------------------------------------------------------- kernels


def _like(supplier: Supplier, law: str, p: float, x: Tensor) -> Tensor:
    return supplier.draw(law, p, tuple(x.shape), x.dtype, x.device)


def _bernoulli(supplier: Supplier, func: Any, a: dict[str, Any]) -> Tensor:
    x, p = a["self"], a.get("p", a["self"])
    if isinstance(p, Tensor):  # a probability for each entry
        value = (_like(supplier, "uniform", 0.0, x) < p).to(x.dtype)
    else:
        value = _like(supplier, "bernoulli", 1.0 - p, x).to(x.dtype)
    return x.copy_(value) if func.overloadpacket is aten.bernoulli_ else value


def _native_dropout(supplier: Supplier, func: Any, a: dict[str, Any]) -> tuple[Tensor, Tensor]:
    x, p = a["input"], a["p"]
    keep = _like(supplier, "bernoulli", p, x).to(x.dtype)
    return x * keep * (1.0 / (1.0 - p) if p < 1 else 0.0), keep.bool()


def _new(supplier: Supplier, func: Any, a: dict[str, Any]) -> Tensor:
    """New numbers, of a size or like a tensor."""
    law = "normal" if "randn" in func.name() else "uniform"
    if "self" in a:
        x = a["self"]
        return supplier.draw(law, 0.0, tuple(x.shape), a.get("dtype") or x.dtype, a.get("device") or x.device)
    dtype = a.get("dtype") or torch.get_default_dtype()
    return supplier.draw(law, 0.0, tuple(a["size"]), dtype, a.get("device") or torch.device("cpu"))


def _fill(law: str, change: Callable[[Tensor, dict[str, Any]], Tensor]) -> Callable[..., Tensor]:
    """In-place kernels: a function of standard numbers."""

    def rule(supplier: Supplier, func: Any, a: dict[str, Any]) -> Tensor:
        return a["self"].copy_(change(_like(supplier, law, 0.0, a["self"]), a))  # type: ignore[no-any-return]

    return rule


def _normal(supplier: Supplier, func: Any, a: dict[str, Any]) -> Tensor:
    mean, std = a["mean"], a["std"]
    like = next((t for t in (mean, std) if isinstance(t, Tensor)), None)
    if like is None:
        dtype = a.get("dtype") or torch.get_default_dtype()
        z = supplier.draw("normal", 0.0, tuple(a["size"]), dtype, a.get("device") or torch.device("cpu"))
        return mean + std * z  # type: ignore[no-any-return]
    shape = torch.broadcast_shapes(*(t.shape for t in (mean, std) if isinstance(t, Tensor)))
    return mean + std * supplier.draw("normal", 0.0, tuple(shape), like.dtype, like.device)  # type: ignore[no-any-return]


def _rrelu(supplier: Supplier, func: Any, a: dict[str, Any]) -> Tensor:
    x = a["self"]
    slope = a["lower"] + (a["upper"] - a["lower"]) * _like(supplier, "uniform", 0.0, x)
    slope = torch.where(x <= 0, slope, torch.ones_like(slope))
    a["noise"].copy_(slope)
    out: Tensor = x * slope
    return x.copy_(out) if func.overloadpacket is aten.rrelu_with_noise_ else out


_KERNELS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli: _bernoulli,
    aten.bernoulli_: _bernoulli,
    aten.native_dropout: _native_dropout,
    aten.rand: _new,
    aten.rand_like: _new,
    aten.randn: _new,
    aten.randn_like: _new,
    aten.uniform_: _fill("uniform", lambda u, a: a["from"] + (a["to"] - a["from"]) * u),
    aten.normal_: _fill("normal", lambda z, a: a["mean"] + a["std"] * z),
    aten.exponential_: _fill("uniform", lambda u, a: torch.log1p(-u) / -a["lambd"]),
    aten.normal: _normal,
    aten.rrelu_with_noise: _rrelu,
    aten.rrelu_with_noise_: _rrelu,
}


# ------------------------------------------------------------------------------------ location in the user's code


def _frames() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def running_module() -> nn.Module | None:
    """The innermost module being run, read off the Python stack."""
    owners = (frame.f_locals.get("self") for frame in _frames())
    return next((owner for owner in owners if isinstance(owner, nn.Module)), None)


_OURS = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)


def location() -> str:
    """The line of the user's code that is being run, for messages: ``MyLayer.forward, model.py line 12``."""
    for frame in _frames():
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, _TORCH, "<")) or file.startswith(("<stdin", "<ipython", "<string")):
            return f"{frame.f_code.co_qualname} ({Path(file).name}, line {frame.f_lineno})"
    return "the forward pass"


def moved_generators(run: Callable[[], Any]) -> list[str]:
    """Which global random generators a function uses, some of which no dispatch mode sees.

    Args:
        run: The function, called once.

    Returns:
        Names of the generators whose states changed: "torch", "numpy.random", "random".
    """
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 (to see who uses it)
    run()
    moved = {
        "torch": not torch.equal(before[0], torch.get_rng_state()),
        "numpy.random": not all(map(np.array_equal, before[1], np.random.get_state())),  # noqa: NPY002
        "random": before[2] != random.getstate(),
    }
    return [name for name, has_moved in moved.items() if has_moved]
