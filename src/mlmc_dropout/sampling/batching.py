"""Masks of many passes -> their outputs: under vmap, on repeated rows, or one by one.

Under ``torch.func.vmap`` over the masks, what comes before the first dropout is computed a single
time and everything after it is batched. A model that cannot be batched so is run on repeated rows,
and failing that pass by pass. Each way has to reproduce the pass-by-pass loop before it is used.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.masks import bernoulli, derive, numbers, pass_keys
from mlmc_dropout.sampling.memory import MemoryWatch
from mlmc_dropout.sampling.outputs import Structure
from mlmc_dropout.sampling.sites import Site, outputs_close, play
from mlmc_dropout.sampling.tape import Replay, version

__all__ = ["Footprint", "Program", "arrange", "run_masks", "select_batching"]

Mode = Literal["vmap", "rows", "loop"]
Forward = Callable[[Any, Batch], Tensor]
Masks = Sequence[Tensor | None]

WORKING_SET = 6 << 20  # bytes a chunk of passes should touch: beyond the caches, larger chunks are slower
_VECTOR = 32  # entries that elementwise operations treat alike
_PASSES = 3  # of the comparison with the loop
_MANY = 64
_FILTERS = threading.Lock()  # warning filters belong to the whole process


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that T passes of n rows hold at once: n·per_row + T·(per_pass + n·per_pass_row).

    Attributes:
        per_row: Bytes per row that all passes share.
        per_pass: Bytes per pass, whatever the rows.
        per_pass_row: Bytes per pass and row.
    """

    per_row: float = 0.0
    per_pass: float = 0.0
    per_pass_row: float = 1.0

    def bytes(self, passes: int, rows: int) -> float:
        """Memory of a chunk.

        Args:
            passes: Number of passes T.
            rows: Number of rows n.

        Returns:
            The number of bytes.
        """
        return rows * self.per_row + passes * (self.per_pass + rows * self.per_pass_row)

    def rows_at_once(self, rows: int, limit: int, passes: int = 1) -> int:
        """How many rows fit into half the limit, so that there is room for more passes.

        Args:
            rows: Number of rows there are.
            limit: Memory limit in bytes.
            passes: Passes of each row that must fit; 1 by default.

        Returns:
            The number of rows, at least 1.
        """
        fit = (limit / 2 - passes * self.per_pass) / (self.per_row + passes * self.per_pass_row)
        return max(1, min(rows, int(fit)))

    def passes_at_once(self, rows: int, limit: int) -> int:
        """How many passes to run at once.

        Enough to keep the processor busy and to repay the work that they share, within the limit.

        Args:
            rows: Number of rows.
            limit: Memory limit in bytes.

        Returns:
            The number of passes, at least 1.
        """
        shared = rows * self.per_row
        size = min(limit - shared, max(WORKING_SET, shared))
        return max(1, int(size / (self.per_pass + rows * self.per_pass_row)))


@dataclass(frozen=True, slots=True)
class Program:
    """A model prepared for one kind of input: how to run it, and the sites it meets.

    Attributes:
        model: The isolated copy of the model.
        sites: All sites of a forward pass, in order.
        structure: Structure of the outputs.
        mode: How passes are batched: "vmap", "rows" (repeated rows) or "loop" (one by one).
        rows_independent: Whether rows can be computed in any parts and order.
        footprint: Memory of a chunk of passes.
        notes: Sentences that the user should read.
        replay: Records and replays the kernels of chunks.
    """

    model: Any
    sites: tuple[Site, ...]
    structure: Structure
    mode: Mode
    rows_independent: bool
    footprint: Footprint = Footprint()
    notes: tuple[str, ...] = ()
    replay: Replay = field(default_factory=Replay, repr=False, compare=False)

    @property
    def active(self) -> tuple[Site, ...]:
        """Sites where units are dropped."""
        return tuple(site for site in self.sites if site.active)

    @property
    def rows_split(self) -> bool:
        """Whether the rows can be computed in several parts."""
        return self.rows_independent and all(site.splits_by_row for site in self.active)

    def run_cached(self, function: Callable[[Masks], Any], inputs: Sequence[Any], masks: Masks) -> Any:
        """Compute ``function(masks)``; calls that repeat on the same inputs are recorded and replayed.

        Args:
            function: A function of the masks that depends on nothing else but ``inputs`` and the model.
            inputs: What identifies the function: tensors, or any objects.
            masks: Per site, masks (passes, *mask), or ``None``.

        Returns:
            The result of the function, the same bits either way.
        """
        if self.mode != "vmap":
            return function(masks)
        model = getattr(self.model, "__self__", self.model)  # a bound method has its module there
        weights = sum(map(version, model.parameters())) if isinstance(model, nn.Module) else 0
        return self.replay(function, (*inputs, weights), masks)

    @property
    def bytes_per_row(self) -> int:
        """Working memory of one pass of one row."""
        return max(1, int(self.footprint.per_pass_row))


# ------------------------------------------------------------------------------------- running


def run_masks(program: Program, forward: Forward, batch: Batch, masks: Masks) -> Tensor:
    """Run a chunk of passes with explicit masks.

    Args:
        program: The prepared model.
        forward: ``forward(model, batch)`` returns the outputs, (rows, width).
        batch: The inputs.
        masks: Per site, masks (passes, *mask), or ``None``.

    Returns:
        The outputs, (passes, rows, width).
    """
    with torch.no_grad():
        if program.mode == "rows":
            with contextlib.suppress(Exception):  # a model may not take as many rows as there are passes
                return _on_repeated_rows(program, forward, batch, masks, _nothing)
            return _one_by_one(program, forward, batch, masks, _nothing)
        return _RUN[program.mode](program, forward, batch, masks, _nothing)


def _nothing() -> None:
    """Nobody wants to know when masks are applied."""


def _one_by_one(program: Program, forward: Forward, batch: Batch, masks: Masks, started: Callable[[], None]) -> Tensor:
    passes = next(len(m) for m in masks if m is not None)
    out = []
    for t in range(passes):
        own = [None if m is None else m[t] for m in masks]
        fresh = batch.map(torch.clone, batch.rows)
        one = play(program.model, forward, fresh, program.sites, own, writes=True, started=started)
        out.append(one.clone())  # a model may return the same memory every time
    return torch.stack(out)


def _vmapped(program: Program, forward: Forward, batch: Batch, masks: Masks, started: Callable[[], None]) -> Tensor:
    def one(*chosen: Tensor) -> Tensor:
        left = iter(chosen)
        own = [None if m is None else next(left) for m in masks]
        fresh = batch.map(torch.clone, batch.rows)
        return play(program.model, forward, fresh, program.sites, own, started=started, fills=False)  # type: ignore[no-any-return]

    given = [m for m in masks if m is not None]
    if all(batch.rows * site.units % _VECTOR == 0 for site in program.active):
        return vmap(one, randomness="error")(*given)
    # The last few entries of a tensor are computed apart, with other rounding: let them be those of a pass too many.
    return vmap(one, randomness="error")(*(torch.cat([m, m[-1:]]) for m in given))[:-1]


def _on_repeated_rows(
    program: Program, forward: Forward, batch: Batch, masks: Masks, started: Callable[[], None]
) -> Tensor:
    passes = next(len(m) for m in masks if m is not None)
    if not all(site.splits_by_row for site in program.active):
        return _on_neighbouring_rows(program, forward, batch, masks, started)
    tiled = batch.map(lambda t: t.repeat(passes, *(1,) * (t.dim() - 1)), passes * batch.rows)
    own = [None if m is None else _tile(m, site, batch.rows) for m, site in zip(masks, program.sites, strict=True)]
    out = play(program.model, forward, tiled, program.sites, own, writes=True, started=started)
    return out.clone().reshape(passes, batch.rows, -1)  # type: ignore[no-any-return]


def _on_neighbouring_rows(
    program: Program, forward: Forward, batch: Batch, masks: Masks, started: Callable[[], None]
) -> Tensor:
    """All passes of a row side by side: in a packed sequence, every entry then has its passes as neighbours."""
    passes = next(len(m) for m in masks if m is not None)
    tiled = batch.map(lambda t: t.repeat_interleave(passes, 0), passes * batch.rows)
    own: list[Tensor | None] = []
    for site, mask in zip(program.sites, masks, strict=True):
        if mask is not None and site.row_axis is not None:
            axis = site.row_axis
            mask = mask.unflatten(axis + 1, (batch.rows, -1)).movedim(0, axis + 1).flatten(axis, axis + 2)
        elif mask is not None:
            mask = mask.movedim(0, 1).flatten(0, 1)
        own.append(mask)
    out = play(program.model, forward, tiled, program.sites, own, writes=True, started=started, check_shapes=False)
    return out.clone().reshape(batch.rows, passes, -1).transpose(0, 1)  # type: ignore[no-any-return]


_RUN: dict[Mode, Callable[..., Tensor]] = {"vmap": _vmapped, "rows": _on_repeated_rows, "loop": _one_by_one}


def arrange(keep: Tensor, site: Site, rows: int) -> Tensor:
    """Give masks the shape that their site expects.

    A mask shared by all rows is repeated only where the rows have several entries on the row axis.

    Args:
        keep: Drawn masks, (passes, rows or 1, units).
        site: Their site.
        rows: Number of input rows.

    Returns:
        The masks, (passes, *mask): along the row axis ``rows`` times as long as the site's shape, or once.
    """
    passes, drawn = keep.shape[:2]
    axis = site.row_axis
    if axis is None or (drawn == 1 and site.shape[axis] == 1) or rows == 1:
        return keep.reshape(passes, *site.shape)
    split = keep.reshape(passes, drawn, *site.shape).expand(-1, rows, *(-1,) * len(site.shape))
    return split.movedim(1, axis + 1).flatten(axis + 1, axis + 2)


def _tile(mask: Tensor, site: Site, rows: int) -> Tensor:
    """From (passes, *mask of all rows) to the mask of the rows of all passes, pass after pass."""
    axis = site.row_axis or 0
    own = mask
    if mask.shape[axis + 1] != site.shape[axis] * rows:  # shared over rows
        own = mask.unsqueeze(axis + 1).expand(*mask.shape[: axis + 1], rows, *mask.shape[axis + 1 :])
        own = own.flatten(axis + 1, axis + 2)
    return own.movedim(0, axis).flatten(axis, axis + 1)


# ------------------------------------------------------------------------------------ choosing


def select_batching(program: Program, forward: Forward, batch: Batch) -> tuple[Program, str]:
    """Choose how to batch passes: the first of vmap and repeated rows that reproduces the loop.

    They are compared on three passes of two rows (of all rows where masks follow them in no simple way), with
    fair-coin masks, so that a mask applied wrongly shows whatever the dropout rates are.

    Args:
        program: The model, run pass by pass.
        forward: ``forward(model, batch)`` returns the outputs, (rows, width).
        batch: The inputs.

    Returns:
        The program with its mode and its measured memory; and why it is not vmap, in words, or "".
    """
    probe, passes = batch[:2], _PASSES
    if not all(site.splits_by_row for site in program.active):
        probe, passes = batch, max(_PASSES, -(-_MANY // batch.rows))  # rows may change places where there are many
    masks = [_coins(site, probe.rows, batch.device, passes) for site in program.sites]
    expected = run_masks(program, forward, probe, masks)
    reasons: list[str] = []
    for mode in _candidates(program):
        candidate = replace(program, mode=mode)
        try:
            slow = _compare(candidate, forward, probe, masks, expected)
            if not slow:
                return replace(candidate, footprint=_measure(candidate, forward, batch)), "; ".join(reasons)
            reasons.append(slow)
        except Exception as error:  # whatever a model has against being batched
            reasons.append(f"{mode}: {str(error).splitlines()[0][:200]}")
    return replace(program, footprint=_measure(program, forward, batch)), "; ".join(reasons)


def _candidates(program: Program) -> tuple[Mode, ...]:
    of_weights = any(site.row_axis is None and site.splits_by_row for site in program.active)
    ways: list[Mode] = [] if any(site.in_kernel for site in program.active) else ["vmap"]
    return tuple(ways) if of_weights or not program.rows_independent else (*ways, "rows")


def _coins(site: Site, rows: int, device: torch.device, passes: int = _PASSES) -> Tensor | None:
    if not site.active:
        return None
    keys = derive(pass_keys(0, 0, 0, range(passes), device), site.index)
    own = rows if site.row_axis is not None else 1
    if site.law != "bernoulli":
        return arrange(numbers(keys, site.law, site.units, own), site, rows)
    return arrange(bernoulli(keys, site.units, 0.5, own), site, rows)


def _compare(candidate: Program, forward: Forward, probe: Batch, masks: Masks, expected: Tensor) -> str:
    """Empty if the candidate is right and fast, else what is wrong with it."""
    with _FILTERS, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        got = run_masks(candidate, forward, probe, masks)
    if not outputs_close(got, expected):
        return f"{candidate.mode} gives other outputs than a loop"
    drops = [str(w.message).splitlines()[0][:200] for w in heard if "performance drop" in str(w.message)]
    return f"{candidate.mode}: {drops[0]}" if drops else ""


def _measure(program: Program, forward: Forward, batch: Batch) -> Footprint:
    """Memory of a chunk, from runs on two and on three rows."""
    masks_per_row = sum(s.mask_bytes for s in program.active) + 2 * max(s.mask_bytes for s in program.active)
    if not program.rows_split or batch.rows < 3:
        rows = batch.rows if not program.rows_split else min(batch.rows, 2)
        fixed, growing = _peaks(program, forward, batch[:rows])
        return Footprint(fixed / rows, 0.0, growing / rows + masks_per_row)
    fixed, less = _peaks(program, forward, batch[:2])
    _, more = _peaks(program, forward, batch[:3])
    per_pass_row = max(more - less, 0.0)
    return Footprint(fixed / 2, max(less - 2 * per_pass_row, 0.0), per_pass_row + masks_per_row)


def _peaks(program: Program, forward: Forward, batch: Batch) -> tuple[float, float]:
    """Bytes that a chunk holds whatever its passes, and bytes per pass."""
    masks = [_coins(site, batch.rows, batch.device) for site in program.sites]
    started: list[bool] = []
    watch = MemoryWatch()

    def start() -> None:
        if not started:
            started.append(True)
            watch.stage()

    with torch.no_grad(), watch:
        _RUN[program.mode](program, forward, batch, masks, start)
    if program.mode == "rows":
        return 0.0, watch.peaks[0] / _PASSES
    return watch.peaks[0], watch.peaks[1] / _PASSES if program.mode == "vmap" else 0.0
