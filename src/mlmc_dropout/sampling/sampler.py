"""Names of passes -> stochastic passes of the model, many at once.

Masks are drawn for blocks of passes and the model is run on chunks of them (``batching``). The size of a chunk follows
from the memory that it needs (``memory``) and the limit; it affects the speed and nothing else.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mlmc_dropout.errors import InputError, ModelError, add_note_once
from mlmc_dropout.quantities.questions import Questions
from mlmc_dropout.sampling.batching import Program, arrange, run_masks, select_batching
from mlmc_dropout.sampling.census import take_census
from mlmc_dropout.sampling.dtypes import in_fitting_types
from mlmc_dropout.sampling.inputs import Batch, batches_of, even_parts
from mlmc_dropout.sampling.isolation import Isolated
from mlmc_dropout.sampling.keeping import Preparation, give_back, kind_of, lend, snapshot_of
from mlmc_dropout.sampling.masks import (
    bernoulli,
    bernoulli_of_sites,
    derive,
    designs_of_sites,
    latin_hypercube,
    numbers,
    pass_keys,
    stratified_numbers,
)
from mlmc_dropout.sampling.memory import keep_freed_memory
from mlmc_dropout.sampling.outputs import Structure, Transform, as_transform, composed
from mlmc_dropout.sampling.recording import hearing_warnings, warn
from mlmc_dropout.sampling.signature import Signature, check_model
from mlmc_dropout.sampling.sites import Site, select_sites

__all__ = ["DEFAULT_MEMORY_LIMIT", "ROWS_TOGETHER", "DropoutSampler", "FallbackWarning", "Program"]

MaskMode = Literal["independent", "shared"]

NOTHING_ELSE = Questions()  # than mean and variance
DEFAULT_MEMORY_LIMIT = 1 << 29
ROWS_TOGETHER = 16  # linear maps need no copy for chunks of such multiples (see linear_maps)
DRAWN_TOGETHER = 1 << 20  # bytes of masks of different sites: more do not fit the caches
DRAW_SET = 1 << 22  # bytes of masks drawn at once: fewer at a time would take more calls


class FallbackWarning(UserWarning):
    """The model could not be batched over passes and runs in a slower way; results are the same."""


class DropoutSampler:
    """A trained model as a source of stochastic passes; the model itself is never changed.

    Args:
        model: An ``nn.Module`` or a callable of tensors.
        masks: ``"independent"`` (default) gives every input row its own mask, ``"shared"`` one mask per pass for all
            rows (smooth sample paths; the moments at each input are the same).
        include: Glob patterns on site names; all other sites are held at their mean. All sites by default.
        exclude: Glob patterns of sites that are held at their mean. None by default.
        rates: Dropout rate that replaces that of the model: a number, or a mapping from pattern to rate.
        transform: Function applied to the output of each pass, or ``"softmax"`` or ``"sigmoid"``.
        memory_limit: Bytes that a chunk of passes may need; 512 MiB by default.
        questions: What estimates ask of the passes; :meth:`sample` does not depend on it.

    Attributes:
        calls: How often the model, or its copy, was called: passes that are replayed do not call it.

    Raises:
        InputError: If an argument has an invalid value.

    Examples:
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
        model: Any,
        masks: MaskMode = "independent",
        *,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None,
        rates: float | Mapping[str, float] | None = None,
        transform: Transform | None = None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        questions: Questions = NOTHING_ELSE,
    ) -> None:
        if masks not in ("independent", "shared"):
            raise InputError(f"unknown masks {masks!r}; use 'independent' or 'shared'")
        if not callable(model) and isinstance(getattr(model, "model", None), nn.Module):
            model = model.model  # a training run of ``pinn``: take its network
        check_model(model)
        if memory_limit < 1:
            raise InputError(f"memory_limit is a number of bytes: got {memory_limit}")
        self.model = model
        self.masks: MaskMode = masks
        self.include, self.exclude, self.rates = include, exclude, rates
        self.questions = questions
        self.transform = composed(as_transform(transform), questions.carries)
        self.memory_limit = int(memory_limit)
        self._warned = False
        self._in_use: list[Preparation] = []
        self.calls = 0
        parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.device = None if parameter is None else parameter.device
        self.dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else None

    # ------------------------------------------------------------------------------- public

    def batches(self, x: Any) -> Iterator[Batch]:
        """The inputs as batches on the model's device.

        Args:
            x: A tensor, array, tuple or dict of inputs, or an iterable of batches of these.

        Returns:
            An iterator of batches.
        """
        batches = batches_of(x, self.device, self.dtype, Signature.of(self.model))
        return in_fitting_types(batches, self.model, self.dtype)

    def sites(self, x: Any) -> tuple[Site, ...]:
        """The dropout sites that a forward pass meets.

        Args:
            x: The inputs; the first batch is used.

        Returns:
            The sites, in the order of the forward pass.

        Raises:
            ModelError: If there is no active dropout, or it cannot be controlled.
        """
        sites = self.prepare(next(self.batches(x))).sites
        self.release()
        return sites

    def sample(self, x: Any, passes: int, seed: int = 0, *, stream: int = 0, replicate: int = 0, first: int = 0) -> Any:
        """Run the passes ``(seed, stream, replicate, first .. first + passes)``.

        Args:
            x: A tensor, array, tuple or dict of inputs, or an iterable of batches of these.
            passes: Number of passes, at least 1.
            seed: Seed, any integer; 0 by default.
            stream: Number of the random stream; 0 by default.
            replicate: Number of the replicate; 0 by default.
            first: Number of the first pass; 0 by default.

        Returns:
            The outputs in the model's structure, each tensor (passes, N, *out) for N inputs.

        Raises:
            InputError: If ``passes`` is less than 1.
            ModelError: If there is no active dropout, or it cannot be controlled.
        """
        if passes < 1:
            raise InputError(f"passes must be at least 1: got {passes}")
        keys = pass_keys(seed, stream, replicate, np.arange(first, first + passes))
        outputs, row = [], 0
        for batch in self.batches(x):
            program = self.prepare(batch)
            outputs.append(self.run(program, batch, keys, first_row=row))
            row += batch.rows
        self.release()
        return _unflatten(program.structure, torch.cat(outputs, dim=1))

    def prepare(self, batch: Batch) -> Program:
        """Find the dropout sites of the model and the fastest way to run it on inputs of this kind.

        What was found before is used again if the model is what it was (``keeping``).

        Args:
            batch: The inputs.

        Returns:
            The prepared model.

        Raises:
            ModelError: If there is no active dropout, or it cannot be controlled.
        """
        kind = kind_of(batch, self.masks, repr((self.include, self.exclude, self.rates)), self.memory_limit)
        found = self._kept(kind, batch)
        if found is None:
            before = snapshot_of(self.model, self.transform)
            with hearing_warnings() as messages:
                program, copy = self._prepared(batch)
            found = Preparation(program, copy, kind, batch.rows, tuple(messages), before, snapshot_of(copy.model))
        self._in_use.append(found)
        self._say_fallback(found.program)
        return found.program

    def release(self) -> None:
        """Give back what was prepared by this thread, for the next call on the same model."""
        for preparation in [p for p in self._in_use if p.thread == threading.get_ident()]:
            self._in_use.remove(preparation)
            preparation.program.replay.rest()
            give_back(self.model, preparation, self.calls > 0)

    def _kept(self, kind: Hashable, batch: Batch) -> Preparation | None:
        """A preparation for these inputs: one in use by this thread, or a kept one."""
        me = threading.get_ident()
        for mine in [p for p in self._in_use if p.thread == me and p.fits(kind, batch.rows)]:
            self._in_use.remove(mine)
            if mine.is_of(self.model, self.transform):
                return mine if mine.confirmed(self.forward, batch, self.memory_limit) else None
        found = lend(self.model, self.transform, kind, batch.rows)
        if found is None or not found.confirmed(self.forward, batch, self.memory_limit):
            return None
        for message in found.messages:
            warn(message)
        return replace(found, thread=me)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_in_use": []}

    def _prepared(self, batch: Batch) -> tuple[Program, Isolated]:
        census = take_census(self.model, self.call, batch, self.memory_limit)
        sites = select_sites(census.sites, self.include, self.exclude, self.rates)
        if not any(site.active for site in sites):
            inactive = [f"{site.name} (p={site.p})" for site in sites]
            raise ModelError(
                f"no active dropout was found: the forward pass meets {inactive or 'no dropout at all'}; "
                "MC dropout needs at least one site with 0 < p < 1 that is not excluded"
            )
        notes = census.notes
        program = Program(census.copy.model, sites, census.structure, "loop", census.rows_independent, notes=notes)
        program, reason = select_batching(program, self.forward, batch)
        program.facts["not batched because"] = reason
        self._check_shared(program)
        self._check_memory(program, batch)
        return program, census.copy

    def _say_fallback(self, program: Program) -> None:
        reason = program.facts["not batched because"]
        if reason and not self._warned:
            self._warned = True
            how = "on repeated rows" if program.mode == "rows" else "one by one"
            warnings.warn(
                f"passes run {how} ({reason}); results are the same, only slower", FallbackWarning, stacklevel=4
            )

    def run(
        self,
        program: Program,
        batch: Batch,
        keys: Tensor,
        first_row: int | Tensor = 0,
        chunk: int | None = None,
        design_passes: int | None = None,
    ) -> Tensor:
        """Run the passes of these keys.

        Args:
            program: The prepared model.
            batch: The inputs.
            keys: One key per pass, or per design.
            first_row: Number of the first row of the batch, 0 by default; or the numbers of all its rows.
            chunk: Passes to run at once; by default as many as memory and caches allow.
            design_passes: If T, each key is that of a stratified design of T passes; ``None`` (default): of a pass.

        Returns:
            The outputs in the model's dtype, (passes, rows, width): len(keys) passes, or len(keys)·T.
        """
        rows = batch.rows
        if program.rows_split:
            rows = program.footprint.rows_at_once(batch.rows, self.memory_limit)
            if design_passes is not None:  # the masks of a design are drawn together
                rows = min(rows, max(1, int(self.memory_limit / 4 / self._mask_bytes(program, 1) / design_passes)))
        pieces = []
        for start, stop in even_parts(batch.rows, rows):
            part = batch[start:stop]
            size = chunk or self.passes_at_once(program, part.rows)
            numbers = first_row[start:stop] if isinstance(first_row, Tensor) else first_row + start
            chunks = list(self._chunks(program, part, keys, numbers, size, design_passes))
            pieces.append(torch.cat(chunks) if len(chunks) > 1 else chunks[0])
        return torch.cat(pieces, dim=1) if len(pieces) > 1 else pieces[0]

    # ---------------------------------------------------------------------------- internals

    def call(self, model: Any, batch: Batch) -> Any:
        """Call a model on a batch and apply the transform.

        Args:
            model: The model, or its copy.
            batch: The inputs.

        Returns:
            The outputs, in whatever structure they have.
        """
        self.calls += 1
        try:
            output = model(*batch.args, **batch.kwargs)
        except Exception as error:
            add_note_once(error, f"raised by the model when it was called on {batch.describe()}")
            raise
        try:
            return output if self.transform is None else self.transform(output)
        except Exception as error:
            add_note_once(error, f"raised by transform= on the output of {batch.describe()}")
            raise

    def forward(self, model: Any, batch: Batch) -> Tensor:
        """Call a model on a batch and flatten its outputs.

        Args:
            model: The model, or its copy.
            batch: The inputs.

        Returns:
            The outputs, (rows, width).
        """
        output = self.call(model, batch)
        return Structure.of(output, batch.rows).flatten(output)

    def _check_shared(self, program: Program) -> None:
        if self.masks == "shared" and not program.rows_split:
            unclear = [site.name for site in program.active if not site.splits_by_row]
            raise ModelError(
                "masks='shared' needs to know which units belong to which input row, which is not clear "
                f"at {unclear or 'any site, because rows influence each other'}; use masks='independent'"
            )

    def _check_memory(self, program: Program, batch: Batch) -> None:
        needed = program.footprint.bytes(1, batch.rows)
        if not program.rows_split and needed > self.memory_limit:
            warn(
                f"the {batch.rows} rows of a batch depend on each other and cannot be computed in parts: a pass needs "
                f"about {needed / 2**20:.3g} MiB, above the limit of {self.memory_limit / 2**20:.3g} MiB; give smaller "
                "batches or a larger memory_limit"
            )

    def mask_bytes_per_row(self, program: Program) -> int:
        """Memory of the masks of one pass that belong to one row.

        Args:
            program: The prepared model.

        Returns:
            The number of bytes; 0 where rows share their masks.
        """
        return self._mask_bytes(program, 1) if self.masks == "independent" else 0

    def _mask_bytes(self, program: Program, rows: int) -> int:
        """Bytes of the masks of one pass."""
        mask_rows = rows if self.masks == "independent" else 1
        return sum(site.mask_bytes * (mask_rows if site.row_axis is not None else 1) for site in program.active)

    def _chunks(
        self,
        program: Program,
        batch: Batch,
        keys: Tensor,
        first_row: int | Tensor,
        size: int,
        design_passes: int | None,
    ) -> Iterator[Tensor]:
        """Outputs of chunks of about ``size`` passes; masks are drawn for several chunks at once."""
        per_key = design_passes or 1
        if size > ROWS_TOGETHER:
            size -= size % ROWS_TOGETHER
        run = functools.partial(self.run_masks, program, batch)
        block = DRAW_SET // (self._mask_bytes(program, batch.rows) * per_key)
        block = max(block // size * size, -(-size // per_key), 1)
        for block_keys in keys.split(block):
            masks = self.draw_all(program, block_keys, batch.rows, first_row, design_passes)
            passes = len(block_keys) * per_key
            for part in torch.arange(passes).split(size):
                a, b = int(part[0]), int(part[-1]) + 1
                chunk_masks = [None if m is None else m[a:b] for m in masks]
                yield program.run_cached(run, ("outputs", *batch.values), chunk_masks)

    def draw_all(
        self,
        program: Program,
        keys: Tensor,
        rows: int,
        first_row: int | Tensor,
        design_passes: int | None = None,
        held: Sequence[int] = (),
    ) -> list[Tensor | None]:
        """Draw the masks of all sites; where they are few, those with one rate together.

        Args:
            program: The prepared model.
            keys: As for :meth:`draw`.
            rows: As for :meth:`draw`.
            first_row: As for :meth:`draw`.
            design_passes: As for :meth:`draw`.
            held: Indices of sites whose masks stay at their mean; none by default.

        Returns:
            Per site what :meth:`draw` returns, or ``None`` where it is held or not active.
        """
        keep_freed_memory(self.memory_limit // 2)
        masks: list[Tensor | None] = [None] * len(program.sites)
        alike: dict[tuple[Any, ...], list[Site]] = {}
        few = len(keys) * (design_passes or 1) * self._mask_bytes(program, rows) <= DRAWN_TOGETHER
        for site in program.active:
            if site.index in held:
                continue
            if few and site.law == "bernoulli" and site.splits_by_row:
                kind = (site.p,) if design_passes is None else (site.p, site.units, self._draws_rows(site))
                alike.setdefault(kind, []).append(site)
            else:
                masks[site.index] = self.draw(site, keys, rows, first_row, design_passes)
        keys = keys.to(self.device or torch.device("cpu"))
        for sites in alike.values():
            asked = [(s.index, s.units, *((rows, first_row) if self._draws_rows(s) else (1, 0))) for s in sites]
            if design_passes is None:
                found = bernoulli_of_sites(keys, sites[0].p, asked)
            else:
                found = designs_of_sites(keys, design_passes, sites[0].p, asked)
            for site, drawn in zip(sites, found, strict=True):
                masks[site.index] = arrange(drawn, site, rows)
        return masks

    def _draws_rows(self, site: Site) -> bool:
        """Whether every row has masks of its own."""
        return self.masks == "independent" and site.row_axis is not None

    def draw(
        self, site: Site, keys: Tensor, rows: int, first_row: int | Tensor, design_passes: int | None = None
    ) -> Tensor | None:
        """Draw the masks of a site for several passes.

        Args:
            site: The site.
            keys: One key per pass, or per design.
            rows: Number of input rows.
            first_row: Number of the first of them, or the numbers of all, int64 (rows,).
            design_passes: If T, each key is that of a stratified design of T passes; ``None`` (default): of a pass.

        Returns:
            Keep bits or numbers, (passes, *mask), with rows of length 1 where they are shared; ``None`` if the site is
            not active.
        """
        if not site.active:
            return None
        per_row = self._draws_rows(site)
        site_keys = derive(keys.to(self.device or torch.device("cpu")), site.index)
        if not site.splits_by_row:  # a mask of the whole batch: the next batch has another
            site_keys = derive(site_keys, first_row)
        count, start = (rows, first_row) if per_row else (1, 0)  # shared masks depend on no row
        dtype = self.dtype or torch.float32
        if site.law == "bernoulli" and design_passes is None:
            drawn = bernoulli(site_keys, site.units, site.p, count, start)
        elif site.law == "bernoulli":
            drawn = latin_hypercube(site_keys, design_passes or 1, site.units, site.p, count, start).flatten(0, 1)
        elif design_passes is None:
            drawn = numbers(site_keys, site.law, site.units, count, start, dtype)
        else:
            drawn = stratified_numbers(site_keys, site.law, design_passes, site.units, count, start, dtype).flatten(
                0, 1
            )
        return arrange(drawn, site, rows)

    def passes_at_once(self, program: Program, rows: int) -> int:
        """How many passes a chunk holds.

        Args:
            program: The prepared model.
            rows: Number of rows.

        Returns:
            The number of passes.
        """
        return program.footprint.passes_at_once(rows, self.memory_limit)

    def run_masks(self, program: Program, batch: Batch, masks: Sequence[Tensor | None]) -> Tensor:
        """Run a chunk of passes with explicit masks.

        Args:
            program: The prepared model.
            batch: The inputs.
            masks: Per site, masks (passes, *mask), or ``None``.

        Returns:
            The outputs, (passes, rows, width).
        """
        return run_masks(program, self.forward, batch, masks)


def _unflatten(structure: Structure, matrix: Tensor) -> Any:
    if structure.kind == "tensor":
        return matrix.reshape(*matrix.shape[:-1], *structure.shape)
    sizes = [part.width for part in structure.parts]
    values = [_unflatten(p, m) for p, m in zip(structure.parts, matrix.split(sizes, dim=-1), strict=True)]
    return dict(zip(structure.keys, values, strict=True)) if structure.kind == "dict" else tuple(values)
