"""A coarse level whose moments are known: the network's first-order expansion in its masks.

Let q = 1 − p be a unit's probability to be kept, ξ = keep − q its centred mask, and g the gradient
of an output with respect to it. Then G = Σ g ξ has mean 0 and variance Σ g² p q, exactly. It shares
its masks with the real passes, so that subtracting it removes much of their scatter and no truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mlmc_dropout.engine.data import Batch
from mlmc_dropout.engine.sampler import DropoutSampler, Program
from mlmc_dropout.engine.sites import Player, Site
from mlmc_dropout.expansion.linearity import only_linear

__all__ = [
    "Expansion",
    "Linearisation",
    "Probe",
    "by_row",
    "contract",
    "differentiate",
    "expansion_of",
    "full_shape",
    "linearise",
    "supported",
]

PASSES_OF_A_GRADIENT = 4  # memory of a pass that keeps what its backward pass needs, in passes


@dataclass(frozen=True, slots=True)
class Linearisation:
    """Derivatives of every output at the mean mask, row by row.

    Per site: ``in_masks`` with respect to the keep bits, ``in_outputs`` with respect to the site's
    output (``None`` where nothing is dropped); both (rows, width, units). ``affine`` tells, per site and
    output, whether only linear operations lie between them. ``cost`` is in passes.
    """

    in_masks: tuple[Tensor | None, ...]
    in_outputs: tuple[Tensor | None, ...]
    affine: tuple[Tensor | None, ...]
    cost: float


@dataclass(frozen=True, slots=True)
class Expansion:
    """G = Σ g ξ: gradients per site, (rows, width, units) or ``None``, and G's variance (rows, width)."""

    sites: tuple[Site, ...]
    gradients: tuple[Tensor | None, ...]
    variance: Tensor

    def values(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """G for a chunk of masks: (passes, rows, width)."""
        return contract(self.sites, masks, self.gradients, rows)

    def squares(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """What each unit for itself adds to G²: Σ g²(ξ² − p(1−p)), where ξ² − p(1−p) = (2p − 1)ξ."""
        pairs = zip(self.sites, self.gradients, strict=True)
        return contract(self.sites, masks, [None if g is None else (2 * s.p - 1) * g.square() for s, g in pairs], rows)


def supported(program: Program) -> bool:
    """Whether every mask unit belongs to one input row, so that rows can be differentiated together."""
    return program.rows_independent and all(s.row_axis is not None and s.splits_by_row for s in program.active)


def by_row(mask: Tensor, site: Site, rows: int) -> Tensor:
    """From (passes, *mask of all rows) to (passes, rows, units); rows is 1 where the mask is shared."""
    axis = (site.row_axis or 0) + 1
    own = rows if mask.shape[axis] == site.shape[axis - 1] * rows else 1
    split: Tensor = mask.unflatten(axis, (own, -1))
    return split.movedim(axis, 1).flatten(2)


def contract(
    sites: Sequence[Site], masks: Sequence[Tensor | None], coefficients: Sequence[Tensor | None], rows: int
) -> Tensor:
    """Σ c ξ over the units of all sites, c (rows, k, units) per site: (passes, rows, k)."""
    parts = []
    for site, keep, c in zip(sites, masks, coefficients, strict=True):
        if keep is not None and c is not None:
            bits = by_row(keep, site, rows).to(c.dtype)
            if bits.shape[1] == 1:  # one mask for all rows
                total = torch.einsum("tu,nku->tnk", bits[:, 0], c)
            elif c.shape[1] == 1:
                total = (bits * c[None, :, 0]).sum(dim=-1, keepdim=True)
            else:
                total = torch.einsum("tnu,nku->tnk", bits, c)
            parts.append(total - (1.0 - site.p) * c.sum(dim=-1))
    return torch.stack(parts).sum(dim=0)


# ------------------------------------------------------------------------------- derivatives


class Probe(Player):
    """Notes the inputs of the sites and adds nudges to their outputs."""

    def __init__(self, sites: Sequence[Site], masks: Sequence[Tensor | None], nudges: dict[int, Tensor]) -> None:
        super().__init__(sites, masks, False)
        self.inputs: dict[int, Tensor] = {}
        self._nudges = nudges

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        index = self.met
        out = super().drop(kind, x, p, training, shape, inplace)
        self.inputs[index] = x
        return out + self._nudges[index] if index in self._nudges else out


def full_shape(site: Site, rows: int) -> list[int]:
    """The shape of a mask in which every row has its own."""
    shape = list(site.shape)
    shape[site.row_axis or 0] *= rows
    return shape


def linearise(sampler: DropoutSampler, program: Program, batch: Batch) -> Linearisation:
    """Derivatives at the mean mask.

    One forward pass and one backward pass per output component; all rows share them. It works under
    ``no_grad`` and ``inference_mode``, too.
    """
    dtype = sampler.dtype or torch.get_default_dtype()
    with torch.inference_mode(False):
        masks = [
            torch.full(full_shape(site, batch.rows), 1.0 - site.p, device=sampler.device, dtype=dtype)
            if site.active
            else None
            for site in program.sites
        ]
        return _derivatives(sampler, program, batch.map(torch.clone, batch.rows), masks)


def differentiate(
    forward: Callable[[], Tensor], wanted: Sequence[Tensor], outputs: Sequence[int]
) -> tuple[list[tuple[Tensor, ...]], float]:
    """Gradients of some outputs (the last axis of what ``forward`` gives), and their cost: operations over its own."""
    once, whole = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.inference_mode(False), torch.enable_grad(), whole:
        with once:
            out = forward()
        gradients = [
            torch.autograd.grad(out[..., k].sum(), wanted, retain_graph=k != outputs[-1], allow_unused=True)
            for k in outputs
        ]
    flops = once.get_total_flops()
    return gradients, whole.get_total_flops() / flops if flops else 1.0 + 2.0 * len(outputs)


def _derivatives(
    sampler: DropoutSampler, program: Program, batch: Batch, masks: Sequence[Tensor | None]
) -> Linearisation:
    given = [None if m is None else m.requires_grad_() for m in masks]
    nudges = {
        site.index: torch.zeros_like(keep).requires_grad_()
        for site, keep in zip(program.sites, given, strict=True)
        if keep is not None and not site.kind.startswith("feature")
    }
    wanted = [m for m in given if m is not None] + list(nudges.values())
    leaves: list[Tensor] = []

    def outputs() -> Tensor:
        with Probe(program.sites, given, nudges):
            out = sampler._call(program.model, batch.map(torch.clone, batch.rows))
        leaves.extend(program.structure.leaves(out))
        return program.structure.flatten(out)

    per_output, cost = differentiate(outputs, wanted, range(program.structure.width))
    columns = iter(zip(*per_output, strict=True))
    in_masks = tuple(_stacked(next(columns), s, batch.rows) if s.active else None for s in program.sites)
    in_outputs = tuple(_stacked(next(columns), s, batch.rows) if s.index in nudges else None for s in program.sites)
    affine = tuple(
        torch.cat([torch.full((leaf[0].numel(),), only_linear(leaf, nudges[s.index])) for leaf in leaves])
        if s.index in nudges
        else None
        for s in program.sites
    )
    return Linearisation(in_masks, in_outputs, affine, cost)


def _stacked(parts: Sequence[Tensor | None], site: Site, rows: int) -> Tensor | None:
    """One gradient per output -> (rows, width, units); ``None`` if no output depends on the site.

    At least in single precision: sums of many terms are to have the moments they are said to have.
    """
    some = next((p for p in parts if p is not None), None)
    if some is None:
        return None
    dtype = torch.promote_types(some.dtype, torch.float32)
    filled = [(torch.zeros_like(some) if p is None else p).to(dtype) for p in parts]
    return torch.stack([by_row(p[None], site, rows)[0] for p in filled], dim=1)


def expansion_of(program: Program, derivatives: Linearisation, served: Mapping[int, Tensor] | None = None) -> Expansion:
    """The expansion over all sites but those averaged out: ``served`` has the outputs concerned, per site."""
    served = served or {}
    gradients: list[Tensor | None] = []
    variance: Any = 0.0
    for site, g in zip(program.sites, derivatives.in_masks, strict=True):
        if g is not None and site.index in served:
            g = g * ~served[site.index][None, :, None]
        gradients.append(g)
        if g is not None:
            variance = variance + g.square().sum(dim=-1) * (site.p * (1.0 - site.p))
    return Expansion(program.sites, tuple(gradients), variance)
