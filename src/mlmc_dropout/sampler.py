"""3 · Names of passes -> stochastic passes of the model, many at once.

Masks are drawn for a chunk of passes and the model runs once under ``torch.func.vmap`` over them:
what comes before the first dropout is computed a single time, everything after it is batched. A
model that cannot be batched so is run on repeated rows, and failing that pass by pass. Each way is
compared with the pass-by-pass loop on the same masks before it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from mlmc_dropout.data import Batch, Structure, batches_of
from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.masks import bernoulli, derive, latin_hypercube, pass_keys
from mlmc_dropout.sites import Site, find_sites, play

__all__ = ["DropoutSampler", "FallbackWarning", "Program"]

MaskMode = Literal["independent", "shared"]
Mode = Literal["vmap", "rows", "loop"]

WORKING_SET = 1 << 24  # bytes a chunk of passes should touch: beyond the caches, larger chunks are slower
DEFAULT_MEMORY_LIMIT = 1 << 29


class FallbackWarning(UserWarning):
    """The model could not be batched over passes and runs in a slower way; results are the same."""


@dataclass(frozen=True, slots=True)
class Program:
    """A model made ready for one kind of input: how to run it, and the sites it meets."""

    model: Any
    sites: tuple[Site, ...]
    structure: Structure
    mode: Mode
    rows_independent: bool
    bytes_per_row: int  # working memory of one pass of one row

    @property
    def active(self) -> tuple[Site, ...]:
        """Sites where units are dropped."""
        return tuple(site for site in self.sites if site.active)


class DropoutSampler:
    """A trained model as a source of stochastic passes; the model itself is left exactly as found.

    ``masks``: ``"independent"`` gives every input row its own mask, ``"shared"`` one mask per pass
    for all rows (smooth sample paths; the moments at each input are the same). ``include`` and
    ``exclude`` are glob patterns on site names, ``rates`` overrides the dropout rate (a number, or
    pattern -> rate), ``transform`` is applied to each pass's output, ``memory_limit`` bounds the
    bytes that a chunk of passes needs.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    >>> sampler = DropoutSampler(model)
    >>> x = torch.zeros(3, 2)
    >>> [(site.name, site.p, site.shape) for site in sampler.sites(x)]
    [('2', 0.2, (1, 8))]
    >>> sampler.sample(x, passes=100, seed=0).shape
    torch.Size([100, 3, 1])
    """

    def __init__(
        self,
        model: Callable[..., Any],
        masks: MaskMode = "independent",
        *,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        rates: float | Mapping[str, float] | None = None,
        transform: Callable[[Any], Any] | None = None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        if masks not in ("independent", "shared"):
            raise InputError(f"unknown masks {masks!r}; use 'independent' or 'shared'")
        if not callable(model):
            raise InputError(f"the model must be an nn.Module or a callable of tensors: got {type(model).__name__}")
        if memory_limit < 1:
            raise InputError(f"memory_limit is a number of bytes: got {memory_limit}")
        self.model = model
        self.masks: MaskMode = masks
        self.include, self.exclude, self.rates = include, exclude, rates
        self.transform = transform
        self.memory_limit = int(memory_limit)
        parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.device = None if parameter is None else parameter.device
        self.dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else None

    # ------------------------------------------------------------------------------- public

    def batches(self, x: Any) -> Iterator[Batch]:
        """The inputs as batches on the model's device."""
        return batches_of(x, self.device, self.dtype)

    def sites(self, x: Any) -> tuple[Site, ...]:
        """The dropout sites a forward pass on ``x`` meets."""
        return self.prepare(next(self.batches(x))).sites

    def sample(self, x: Any, passes: int, seed: int = 0, *, stream: int = 0, replicate: int = 0, first: int = 0) -> Any:
        """Passes ``(seed, stream, replicate, first .. first + passes)``: tensor(s) (passes, N, *out)."""
        if passes < 1:
            raise InputError(f"passes must be at least 1: got {passes}")
        keys = pass_keys(seed, stream, replicate, np.arange(first, first + passes))
        outputs, row = [], 0
        for batch in self.batches(x):
            program = self.prepare(batch)
            outputs.append(self.run(program, batch, keys, first_row=row))
            row += batch.rows
        return _unflatten(program.structure, torch.cat(outputs, dim=1))

    def prepare(self, batch: Batch) -> Program:
        """Look at the model on a few rows of ``batch``; refuse what cannot be controlled."""
        found = find_sites(self.model, self._forward, batch, self.include, self.exclude, self.rates)
        if not any(site.active for site in found.sites):
            met = [f"{site.name} (p={site.p})" for site in found.sites]
            raise ModelError(
                f"no active dropout was found: the forward pass meets {met or 'no dropout at all'}; "
                "MC dropout needs at least one site with 0 < p < 1 that is not excluded"
            )
        with torch.no_grad():
            structure = Structure.of(self._call(found.model, batch[:1]), 1)
        program = Program(found.model, found.sites, structure, "loop", found.rows_independent, found.bytes_per_row)
        self._check_shared(program)
        return self._fastest(program, batch)

    def run(
        self,
        program: Program,
        batch: Batch,
        keys: Tensor,
        first_row: int = 0,
        chunk: int | None = None,
        designs: int | None = None,
    ) -> Tensor:
        """The passes named by ``keys``: (len(keys), rows, width), in the model's dtype.

        With ``designs = T`` each key names a whole stratified design of T passes, and the result has
        ``len(keys)·T`` passes.
        """
        rows = self._rows_at_once(program, batch.rows, 1 if designs is None else designs)
        pieces = []
        for start in range(0, batch.rows, rows):
            part = batch[start : start + rows]
            size = chunk or self._passes_at_once(program, part.rows)
            pieces.append(torch.cat(list(self._chunks(program, part, keys, first_row + start, size, designs))))
        return torch.cat(pieces, dim=1) if len(pieces) > 1 else pieces[0]

    # ---------------------------------------------------------------------------- internals

    def _call(self, model: Any, batch: Batch) -> Any:
        output = model(*batch.args, **batch.kwargs)
        return output if self.transform is None else self.transform(output)

    def _forward(self, model: Any, batch: Batch) -> Tensor:
        output = self._call(model, batch)
        return Structure.of(output, batch.rows).flatten(output)

    def _check_shared(self, program: Program) -> None:
        if self.masks == "shared":
            for site in program.active:
                if not site.splits_by_row or not program.rows_independent:
                    raise ModelError(
                        f"masks='shared' needs to know which units belong to which input row, which is not clear at "
                        f"{site.name!r}; use masks='independent'"
                    )

    def _rows_at_once(self, program: Program, rows: int, passes: int) -> int:
        """All rows, unless ``passes`` passes of them would break the memory limit and rows can be cut."""
        if not program.rows_independent or not all(site.splits_by_row for site in program.active):
            return rows
        return int(min(rows, max(1, self.memory_limit // (program.bytes_per_row * passes))))

    def _passes_at_once(self, program: Program, rows: int) -> int:
        size = min(self.memory_limit, max(WORKING_SET, program.bytes_per_row))
        return int(max(1, size // (program.bytes_per_row * rows)))

    def _chunks(
        self, program: Program, batch: Batch, keys: Tensor, first_row: int, size: int, designs: int | None
    ) -> Iterator[Tensor]:
        if designs is None:
            count = -(-len(keys) // size)
            for part in torch.tensor_split(keys, count):
                masks = [self.draw(site, part, batch.rows, first_row) for site in program.sites]
                yield self.run_masks(program, batch, masks)
            return
        for key in keys.split(1):
            whole = [self.draw(site, key, batch.rows, first_row, designs) for site in program.sites]
            for part in torch.tensor_split(torch.arange(designs), -(-designs // size)):
                a, b = int(part[0]), int(part[-1]) + 1
                yield self.run_masks(program, batch, [None if m is None else m[a:b] for m in whole])

    def draw(self, site: Site, keys: Tensor, rows: int, first_row: int, designs: int | None = None) -> Tensor | None:
        """Keep masks of a site for several passes: uint8 (passes, *mask), rows of length 1 where shared."""
        if not site.active:
            return None
        per_row = site.row_axis is not None and self.masks == "independent"
        device = self.device or torch.device("cpu")
        own = derive(keys.to(device), site.index)
        count, start = (rows, first_row) if per_row else (1, 0)
        if designs is None:
            keep = bernoulli(own, site.units, site.p, count, start)
        else:
            keep = latin_hypercube(own, designs, site.units, site.p, count, start).flatten(0, 1)
        return _arrange(keep, site, rows if per_row else 1)

    def run_masks(self, program: Program, batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
        """A chunk of passes with explicit masks: (passes, rows, width)."""
        with torch.no_grad():
            return self._run_in(program.mode, program, batch, masks)

    def _run_in(self, mode: Mode, program: Program, batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
        if mode == "vmap":
            return self._run_vmap(program, batch, masks)
        if mode == "rows":
            return self._run_rows(program, batch, masks)
        passes = next(len(m) for m in masks if m is not None)
        return torch.stack([self._run_single(program, batch, masks, t) for t in range(passes)])

    def _run_single(self, program: Program, batch: Batch, masks: Sequence[Tensor | None], t: int) -> Tensor:
        own = [None if m is None else m[t] for m in masks]
        return play(program.model, self._forward, batch.map(torch.clone, batch.rows), program.sites, own, inplace=True)  # type: ignore[no-any-return]

    def _run_vmap(self, program: Program, batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
        given = [m for m in masks if m is not None]

        def one(*chosen: Tensor) -> Tensor:
            left = iter(chosen)
            own = [None if m is None else next(left) for m in masks]
            fresh = batch.map(torch.clone, batch.rows)
            return play(program.model, self._forward, fresh, program.sites, own)  # type: ignore[no-any-return]

        return vmap(one, randomness="error")(*given)

    def _run_rows(self, program: Program, batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
        passes = next(len(m) for m in masks if m is not None)
        tiled = batch.map(lambda t: t.repeat(passes, *(1,) * (t.dim() - 1)), passes * batch.rows)
        own = [None if m is None else _tile(m, site, batch.rows) for m, site in zip(masks, program.sites, strict=True)]
        out = play(program.model, self._forward, tiled, program.sites, own, inplace=True)
        return out.reshape(passes, batch.rows, -1)  # type: ignore[no-any-return]

    def _fastest(self, program: Program, batch: Batch) -> Program:
        """The first of vmap and repeated rows that reproduces the loop on two rows and three passes."""
        probe = batch[:2]
        keys = pass_keys(0, 0, 0, range(3))
        masks = [self.draw(site, keys, probe.rows, 0) for site in program.sites]
        expected = self.run_masks(program, probe, masks)
        modes: list[Mode] = ["vmap"]
        if program.rows_independent and all(s.row_axis is not None for s in program.active):
            modes.append("rows")
        reasons: list[str] = []
        for mode in modes:
            candidate = Program(
                program.model, program.sites, program.structure, mode, program.rows_independent, program.bytes_per_row
            )
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    got = self.run_masks(candidate, probe, masks)
                if torch.allclose(got, expected, rtol=1e-3, atol=1e-5, equal_nan=True):
                    if reasons:
                        _say(f"passes run on repeated rows, not under vmap ({reasons[0]})")
                    return candidate
                reasons.append(f"{mode} gives other outputs than a loop")
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
                reasons.append(f"{mode}: {str(error).splitlines()[0][:200]}")
        _say(f"passes run one by one ({'; '.join(reasons)})")
        return program


def _say(message: str) -> None:
    warnings.warn(f"{message}; results are the same, only slower", FallbackWarning, stacklevel=5)


def _arrange(keep: Tensor, site: Site, rows: int) -> Tensor:
    """From (passes, rows, units) to (passes, *mask of all rows)."""
    passes = len(keep)
    if site.row_axis is None or rows == 1:
        return keep.reshape(passes, *site.shape)
    axis = site.row_axis
    split = keep.reshape(passes, rows, *site.shape).movedim(1, axis + 1)
    return split.flatten(axis + 1, axis + 2)


def _tile(mask: Tensor, site: Site, rows: int) -> Tensor:
    """From (passes, *mask of all rows) to the mask of the rows of all passes, pass after pass."""
    axis = site.row_axis or 0
    own = mask
    if mask.shape[axis + 1] != site.shape[axis] * rows:  # shared over rows
        own = mask.unsqueeze(axis + 1).expand(*mask.shape[: axis + 1], rows, *mask.shape[axis + 1 :])
        own = own.flatten(axis + 1, axis + 2)
    return own.movedim(0, axis).flatten(axis, axis + 1)


def _unflatten(structure: Structure, matrix: Tensor) -> Any:
    if structure.kind == "tensor":
        return matrix.reshape(*matrix.shape[:-1], *structure.shape)
    sizes = [part.width for part in structure.parts]
    values = [_unflatten(p, m) for p, m in zip(structure.parts, matrix.split(sizes, dim=-1), strict=True)]
    return dict(zip(structure.keys, values, strict=True)) if structure.kind == "dict" else tuple(values)
