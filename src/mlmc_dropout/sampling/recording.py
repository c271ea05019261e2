"""A pass of the model in which everything random is recorded or supplied.

:class:`Recorder` records the random calls of a pass at the mean masks; :class:`ModelRunner` runs the isolated copy of a
model: recorded, with our masks, or for real, with our numbers supplied to its kernels.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from mlmc_dropout.errors import ModelWarning, add_note_once, level_of_caller
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.interception import Interceptor, Normalised, apply_mask
from mlmc_dropout.sampling.isolation import Isolated
from mlmc_dropout.sampling.masks import bernoulli, derive, numbers, pass_keys
from mlmc_dropout.sampling.memory import MemoryWatch
from mlmc_dropout.sampling.outputs import Structure
from mlmc_dropout.sampling.randomness import KernelMode, location, running_module
from mlmc_dropout.sampling.sites import Site, forward_with_masks

__all__ = [
    "Call",
    "ModelRunner",
    "RandomCall",
    "Record",
    "SuppliedNumbers",
    "fresh_numbers",
    "hearing_warnings",
    "select_rows",
    "spaced_rows",
    "warn",
]

Call = Callable[[Any, Batch], Any]  # the model and its inputs -> its outputs as they are


@dataclass(frozen=True, slots=True)
class RandomCall:
    """One call that drops units or draws random numbers.

    Attributes:
        name: Name of the site.
        kind: Kind of site, as in ``Site.kind``.
        law: "bernoulli", "uniform" or "normal".
        p: The dropout rate.
        on: Whether units are dropped.
        shape: Shape of the mask.
        in_kernel: Whether only the kernel was seen, not the call from Python.
        where: The line of the user's code.
    """

    name: str
    kind: str
    law: str
    p: float
    on: bool
    shape: tuple[int, ...]
    in_kernel: bool
    where: str

    @property
    def identity(self) -> tuple[Any, ...]:
        """The properties that do not depend on the rows."""
        return self.name, self.kind, self.law, self.on, self.in_kernel, len(self.shape)


@dataclass(frozen=True, slots=True)
class Record:
    """The calls of one pass, and its outputs.

    Attributes:
        calls: The calls that drop units or draw random numbers, in order.
        output: The outputs, (rows, width).
        structure: Their structure.
        rows: Number of rows.
        training: Whether the pass ran in training mode.
        bytes: Peak memory of the pass.
        skipped: Names of what was left out of the outputs.
    """

    calls: list[RandomCall]
    output: Tensor
    structure: Structure
    rows: int
    training: bool
    bytes: int
    skipped: tuple[str, ...]


class Recorder(Interceptor):
    """Applies the mean mask at every site and records the sites met.

    Args:
        names: Names of modules by identity.
        fixed: Numbers to return at some sites, by index, instead of their mean.

    Attributes:
        calls: The calls recorded so far.
    """

    def __init__(self, names: Mapping[int, str], fixed: Mapping[int, float] | None = None) -> None:
        super().__init__()
        self.calls: list[RandomCall] = []
        self.fixed = fixed or {}
        self._names = names

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        """Record one dropout call and apply its mean mask.

        Args:
            kind: Kind of dropout, as in ``Site.kind``.
            x: The activation.
            p: The dropout rate.
            training: Whether torch would drop units here.
            shape: Shape of the mask.
            inplace: Whether torch would change ``x``.

        Returns:
            The activation at its mean mask.
        """
        owner = running_module()
        path = self._names.get(id(owner), "")
        name = path if isinstance(owner, nn.modules.dropout._DropoutNd) else f"{path}.{kind}".lstrip(".")
        self.calls.append(RandomCall(name or kind, kind, "bernoulli", float(p), training, shape, False, location()))
        if kind.endswith("alpha") and 0 < p < 1:
            return apply_mask(kind, x, torch.full(shape, 1.0 - p, dtype=x.dtype, device=x.device), p)
        return x

    def draw(
        self,
        law: str,
        p: float,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        in_kernel: bool = False,
    ) -> Tensor:
        """Record one call that draws random numbers and return their mean.

        Args:
            law: "bernoulli", "uniform" on [0, 1), or standard "normal".
            p: Probability of 0, for "bernoulli".
            shape: Shape of the numbers.
            dtype: Their type.
            device: Where they go.
            in_kernel: Whether only the kernel was seen, not the call from Python.

        Returns:
            The mean, or the fixed number of this site, in every entry.
        """
        owner = running_module()
        path = self._names.get(id(owner), "")
        is_path = type(owner).__name__.endswith(("DropPath", "StochasticDepth"))
        kind = "path" if is_path else law
        name = path if is_path else f"{path}.{kind}".lstrip(".")
        index = len(self.calls)
        self.calls.append(RandomCall(name or kind, kind, law, float(p), True, shape, in_kernel, location()))
        mean = {"uniform": 0.5, "normal": 0.0}.get(law, 1.0 - p)
        return torch.full(shape, self.fixed.get(index, mean), dtype=dtype, device=device)


class _KernelRecorder:
    """Records the draws of kernels."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def draw(self, law: str, p: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._recorder.draw(law, p, shape, dtype, device, in_kernel=True)


class ModelRunner:
    """Runs the copy of a model: recorded, with our masks, or for real.

    Args:
        copy: The isolated copy.
        call: ``call(model, batch)`` returns the outputs as they are.
        names: Names of modules by identity.

    Attributes:
        training: Whether passes run in training mode.
        on: Which sites are on, if the other mode decides that; else ``None``.
    """

    def __init__(self, copy: Isolated, call: Call, names: Mapping[int, str]) -> None:
        self.copy, self.call, self.names = copy, call, names
        self.training = True
        self.on: list[bool] | None = None  # which sites are on, if the other mode decides that

    def matrix(self, model: Any, batch: Batch) -> Tensor:
        """Call the model.

        Args:
            model: The model.
            batch: The inputs.

        Returns:
            The outputs, (rows, width).
        """
        output = self.call(model, batch)
        return Structure.of(output, batch.rows).flatten(output)

    def record(self, batch: Batch, fixed: Mapping[int, float] | None = None) -> Record:
        """Record a pass at the mean masks.

        Args:
            batch: The inputs.
            fixed: Numbers to use at some sites, by index, instead of their mean.

        Returns:
            The record.
        """
        self.copy.set_mode(self.training, keep_dropout=True)
        recorder, memory = Recorder(self.names, fixed), MemoryWatch()
        with torch.no_grad(), memory, KernelMode(_KernelRecorder(recorder)), recorder:
            try:
                output = self.call(self.copy.model, batch.map(torch.clone, batch.rows))
            except Exception as error:
                met = f"after the dropout site {recorder.calls[-1].name!r}" if recorder.calls else "before any dropout"
                add_note_once(error, f"in the first pass, {met}")
                raise
            structure = Structure.of(output, batch.rows)
            matrix = structure.flatten(output).clone()
        calls = recorder.calls
        if self.on is not None and len(calls) == len(self.on):
            calls = [replace(call, on=on) for call, on in zip(calls, self.on, strict=True)]
        skipped = Structure.skipped(output)
        return Record(calls, matrix, structure, batch.rows, self.training, memory.peaks[0], skipped)

    def run_with_masks(self, sites: Sequence[Site], batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
        """Run our pass with explicit masks.

        Args:
            sites: The sites, in order.
            batch: The inputs.
            masks: Per site, its mask, or ``None``.

        Returns:
            The outputs, (rows, width).
        """
        with torch.no_grad():
            fresh = batch.map(torch.clone, batch.rows)
            return forward_with_masks(self.copy.model, self.matrix, fresh, sites, masks, writes=True).clone()  # type: ignore[no-any-return]

    def run_real(self, batch: Batch) -> tuple[Tensor, list[SuppliedNumbers]]:
        """Run a real pass in training mode, in which kernels get numbers of ours.

        Args:
            batch: The inputs.

        Returns:
            The outputs, (rows, width), and the numbers that kernels got, in order.
        """
        self.copy.set_mode(training=True)
        supplier = _TestNumbers()
        fresh = batch.map(torch.clone, batch.rows)
        with torch.no_grad(), _without_fused_kernels(batch.device), KernelMode(supplier), Normalised():
            return self.matrix(self.copy.model, fresh).clone(), supplier.supplied


# ------------------------------------------------------------------------------------- numbers


@dataclass(frozen=True, slots=True)
class SuppliedNumbers:
    """Numbers supplied to a kernel.

    Attributes:
        law: "bernoulli", "uniform" or "normal".
        p: Probability of 0 that the kernel asked for, with "bernoulli".
        values: The numbers.
        where: The line of the user's code.
    """

    law: str
    p: float
    values: Tensor
    where: str


class _TestNumbers:
    """Supplies fair coins, uniform and normal numbers to kernels, and keeps them."""

    def __init__(self) -> None:
        self.supplied: list[SuppliedNumbers] = []

    def draw(self, law: str, p: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        values = fresh_numbers(len(self.supplied), law, shape, device)
        self.supplied.append(SuppliedNumbers(law, p, values, location()))
        return values.to(dtype)


def fresh_numbers(index: int, law: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Numbers for tests that depend on an index only.

    Args:
        index: Number of the draw.
        law: "bernoulli" (fair coins), "uniform" or "normal".
        shape: Shape of the numbers.
        device: Where they go.

    Returns:
        The numbers.
    """
    key = derive(pass_keys(0, 0, 0, 0, device), index)
    units = torch.Size(shape).numel()
    drawn = bernoulli(key, units, 0.5) if law == "bernoulli" else numbers(key, law, units)
    return drawn.reshape(shape)


@contextlib.contextmanager
def _without_fused_kernels(device: torch.device) -> Iterator[None]:
    """Split attention and recurrent kernels, which draw numbers inside, into parts to which numbers can be supplied."""
    if device.type == "cpu":  # has no fused ones
        yield
        return
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield


# ---------------------------------------------------------------------------------------- helpers


def select_rows(batch: Batch, rows: int) -> Batch:
    """Select rows at equal distances, the first and the last among them; they repeat where there are too few.

    Args:
        batch: The inputs.
        rows: Number of rows to select.

    Returns:
        A batch of these rows.
    """
    chosen = spaced_rows(batch, rows)
    return batch.map(lambda t: t[chosen], rows)


def spaced_rows(batch: Batch, rows: int) -> Tensor:
    """Indices of rows at equal distances.

    Args:
        batch: The inputs.
        rows: Number of rows to select.

    Returns:
        The indices, int64 (rows,).
    """
    return torch.linspace(0, batch.rows - 1, rows).round().long().to(batch.device)


_HEARD: ContextVar[list[str] | None] = ContextVar("heard", default=None)


@contextlib.contextmanager
def hearing_warnings() -> Iterator[list[str]]:
    """Collect what :func:`warn` says, besides saying it.

    Yields:
        The list of messages.
    """
    heard: list[str] = []
    token = _HEARD.set(heard)
    try:
        yield heard
    finally:
        _HEARD.reset(token)


def warn(message: str) -> None:
    """Warn about the model, at the line of the first caller outside this package.

    Args:
        message: What the user should know, and the remedy.
    """
    heard = _HEARD.get()
    if heard is not None:
        heard.append(message)
    warnings.warn(message, ModelWarning, stacklevel=level_of_caller())
