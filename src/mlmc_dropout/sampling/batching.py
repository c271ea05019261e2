"""Masks of many passes -> their outputs: under vmap, on repeated rows, or one by one.

Under ``torch.func.vmap`` over the masks, what comes before the first dropout is computed once and everything
after it is batched. A model that cannot be batched in this way is run on repeated rows or, if that fails too, pass
by pass. Each mode has to reproduce the pass-by-pass loop before it is used.
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
from mlmc_dropout.sampling.memory import Footprint, measure_footprint, peak_memory
from mlmc_dropout.sampling.outputs import Structure
from mlmc_dropout.sampling.replay import Replay, version
from mlmc_dropout.sampling.sites import Site, forward_with_masks, outputs_close

__all__ = ["Program", "arrange", "run_masks", "select_batching"]

Mode = Literal["vmap", "rows", "loop"]
Forward = Callable[[Any, Batch], Tensor]
Masks = Sequence[Tensor | None]

_VECTOR = 32  # entries that elementwise operations process together
_PASSES = 3  # passes that are compared with the loop
_MANY_PASSES = 64  # passes times rows to compare, where rows may be reordered
_WARNING_FILTERS = threading.Lock()  # warning filters belong to the whole process


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
        facts: What has been found out about this model and kind of input, such as the cost of its derivatives.
    """

    model: Any
    sites: tuple[Site, ...]
    structure: Structure
    mode: Mode
    rows_independent: bool
    footprint: Footprint = field(default_factory=Footprint)
    notes: tuple[str, ...] = ()
    replay: Replay = field(default_factory=Replay, repr=False, compare=False)
    facts: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def active(self) -> tuple[Site, ...]:
        """Sites where units are dropped."""
        return tuple(site for site in self.sites if site.active)

    @property
    def rows_split(self) -> bool:
        """Whether the rows can be computed in several parts."""
        return self.rows_independent and all(site.splits_by_row for site in self.active)

    def run_cached(self, function: Callable[[Masks], Any], inputs: Sequence[Any], masks: Masks) -> Any:
        """Compute ``function(masks)``; calls that repeat on inputs of the same kind are recorded and replayed.

        Args:
            function: A function of the masks that depends on nothing else but ``inputs`` and the model.
            inputs: What it depends on, the inputs of the model last: tensors; numbers and words that name the function;
                any other objects, known by identity.
            masks: Per site, masks (passes, *mask), or ``None``.

        Returns:
            The result of the function, the same bits either way.
        """
        if self.mode != "vmap":
            return function(masks)
        if "parameters" not in self.facts:
            model = getattr(self.model, "__self__", self.model)  # the module of a bound method
            self.facts["parameters"] = tuple(model.parameters()) if isinstance(model, nn.Module) else ()
        weights = sum(map(version, self.facts["parameters"]))
        return self.replay(function, inputs, masks, weights)

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
            with contextlib.suppress(Exception):  # the model may not take that many rows
                return _on_repeated_rows(program, forward, batch, masks, _ignore)
            return _one_by_one(program, forward, batch, masks, _ignore)
        return _RUN[program.mode](program, forward, batch, masks, _ignore)


def _ignore() -> None:
    """Called before each mask is applied, where nothing depends on it."""


def _one_by_one(program: Program, forward: Forward, batch: Batch, masks: Masks, on_mask: Callable[[], None]) -> Tensor:
    passes = next(len(m) for m in masks if m is not None)
    out = []
    for t in range(passes):
        pass_masks = [None if m is None else m[t] for m in masks]
        fresh = batch.map(torch.clone, batch.rows)
        output = forward_with_masks(
            program.model, forward, fresh, program.sites, pass_masks, writes=True, on_mask=on_mask
        )
        out.append(output.clone())  # a model may return the same memory every time
    return torch.stack(out)


def _vmapped(program: Program, forward: Forward, batch: Batch, masks: Masks, on_mask: Callable[[], None]) -> Tensor:
    def one_pass(*pass_masks: Tensor) -> Tensor:
        remaining = iter(pass_masks)
        by_site = [None if m is None else next(remaining) for m in masks]
        fresh = batch.map(torch.clone, batch.rows)
        return forward_with_masks(program.model, forward, fresh, program.sites, by_site, on_mask=on_mask, fills=False)  # type: ignore[no-any-return]

    drawn = [m for m in masks if m is not None]
    if all(batch.rows * site.units % _VECTOR == 0 for site in program.active):
        return vmap(one_pass, randomness="error")(*drawn)
    # The last few entries of a tensor are computed separately and round differently: let an extra pass have them.
    return vmap(one_pass, randomness="error")(*(torch.cat([m, m[-1:]]) for m in drawn))[:-1]


def _on_repeated_rows(
    program: Program, forward: Forward, batch: Batch, masks: Masks, on_mask: Callable[[], None]
) -> Tensor:
    passes = next(len(m) for m in masks if m is not None)
    if not all(site.splits_by_row for site in program.active):
        return _on_neighbouring_rows(program, forward, batch, masks, on_mask)
    tiled = batch.map(lambda t: t.repeat(passes, *(1,) * (t.dim() - 1)), passes * batch.rows)
    tiled_masks = [
        None if m is None else _tile(m, site, batch.rows) for m, site in zip(masks, program.sites, strict=True)
    ]
    out = forward_with_masks(program.model, forward, tiled, program.sites, tiled_masks, writes=True, on_mask=on_mask)
    return out.clone().reshape(passes, batch.rows, -1)  # type: ignore[no-any-return]


def _on_neighbouring_rows(
    program: Program, forward: Forward, batch: Batch, masks: Masks, on_mask: Callable[[], None]
) -> Tensor:
    """All passes of a row next to each other: in a packed sequence, the passes of every entry then are neighbours."""
    passes = next(len(m) for m in masks if m is not None)
    tiled = batch.map(lambda t: t.repeat_interleave(passes, 0), passes * batch.rows)
    tiled_masks: list[Tensor | None] = []
    for site, mask in zip(program.sites, masks, strict=True):
        if mask is not None and site.row_axis is not None:
            axis = site.row_axis
            mask = mask.unflatten(axis + 1, (batch.rows, -1)).movedim(0, axis + 1).flatten(axis, axis + 2)
        elif mask is not None:
            mask = mask.movedim(0, 1).flatten(0, 1)
        tiled_masks.append(mask)
    out = forward_with_masks(
        program.model, forward, tiled, program.sites, tiled_masks, writes=True, on_mask=on_mask, check_shapes=False
    )
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
    passes, mask_rows = keep.shape[:2]
    axis = site.row_axis
    if axis is None or (mask_rows == 1 and site.shape[axis] == 1) or rows == 1:
        return keep.reshape(passes, *site.shape)
    split = keep.reshape(passes, mask_rows, *site.shape).expand(-1, rows, *(-1,) * len(site.shape))
    return split.movedim(1, axis + 1).flatten(axis + 1, axis + 2)


def _tile(mask: Tensor, site: Site, rows: int) -> Tensor:
    """From (passes, *mask of all rows) to the mask of the rows of all passes, pass after pass."""
    axis = site.row_axis or 0
    per_row = mask
    if mask.shape[axis + 1] != site.shape[axis] * rows:  # shared by all rows
        per_row = mask.unsqueeze(axis + 1).expand(*mask.shape[: axis + 1], rows, *mask.shape[axis + 1 :])
        per_row = per_row.flatten(axis + 1, axis + 2)
    return per_row.movedim(0, axis).flatten(axis, axis + 1)


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
        probe, passes = (
            batch,
            max(_PASSES, -(-_MANY_PASSES // batch.rows)),
        )  # packing reorders rows only where there are many
    masks = [_fair_masks(site, probe.rows, batch.device, passes) for site in program.sites]
    expected = run_masks(program, forward, probe, masks)
    reasons: list[str] = []
    for mode in _candidates(program):
        candidate = replace(program, mode=mode)
        try:
            problem = _compare(candidate, forward, probe, masks, expected)
            if not problem:
                return replace(candidate, footprint=_footprint(candidate, forward, batch)), "; ".join(reasons)
            reasons.append(problem)
        except Exception as error:  # models fail to be batched in many ways
            reasons.append(f"{mode}: {str(error).splitlines()[0][:200]}")
    return replace(program, footprint=_footprint(program, forward, batch)), "; ".join(reasons)


def _candidates(program: Program) -> tuple[Mode, ...]:
    drops_weights = any(site.row_axis is None and site.splits_by_row for site in program.active)
    modes: list[Mode] = [] if any(site.in_kernel for site in program.active) else ["vmap"]
    return tuple(modes) if drops_weights or not program.rows_independent else (*modes, "rows")


def _fair_masks(site: Site, rows: int, device: torch.device, passes: int = _PASSES) -> Tensor | None:
    if not site.active:
        return None
    keys = derive(pass_keys(0, 0, 0, range(passes), device), site.index)
    mask_rows = rows if site.row_axis is not None else 1
    if site.law != "bernoulli":
        return arrange(numbers(keys, site.law, site.units, mask_rows), site, rows)
    return arrange(bernoulli(keys, site.units, 0.5, mask_rows), site, rows)


def _compare(candidate: Program, forward: Forward, probe: Batch, masks: Masks, expected: Tensor) -> str:
    """What is wrong with the candidate; "" if it gives the same outputs and vmap has no slow fallback."""
    with _WARNING_FILTERS, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = run_masks(candidate, forward, probe, masks)
    if not outputs_close(output, expected):
        return f"{candidate.mode} gives other outputs than a loop"
    drops = [str(w.message).splitlines()[0][:200] for w in caught if "performance drop" in str(w.message)]
    return f"{candidate.mode}: {drops[0]}" if drops else ""


def _footprint(program: Program, forward: Forward, batch: Batch) -> Footprint:
    """Memory of a chunk of passes, masks included."""
    mask_sizes = [site.mask_bytes for site in program.active]

    def peaks(rows: int) -> tuple[float, float]:
        part = batch[:rows]
        masks = [_fair_masks(site, rows, batch.device) for site in program.sites]
        run = _RUN[program.mode]
        return _shared_and_per_pass(
            program.mode, peak_memory(lambda on_mask: run(program, forward, part, masks, on_mask))
        )

    return measure_footprint(peaks, batch.rows, program.rows_split, sum(mask_sizes) + 2 * max(mask_sizes))


def _shared_and_per_pass(mode: Mode, peaks: Sequence[int]) -> tuple[float, float]:
    """Bytes that a chunk holds whatever its passes, and bytes per pass."""
    if mode == "rows":
        return 0.0, peaks[0] / _PASSES
    return peaks[0], peaks[1] / _PASSES if mode == "vmap" else 0.0
