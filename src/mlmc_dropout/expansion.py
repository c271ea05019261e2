"""A coarse level whose moments are known: the network's first-order expansion in its masks.

Let q = 1 − p be a unit's probability to be kept, ξ = keep − q its centred mask, and g the gradient
of an output with respect to it. Then G = Σ g ξ has mean 0 and variance Σ g² p q, exactly. It shares
its masks with the real passes, so that subtracting it removes much of their scatter and no truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mlmc_dropout.data import Batch
from mlmc_dropout.linearity import only_linear
from mlmc_dropout.sampler import DropoutSampler, Program
from mlmc_dropout.sites import Player, Site

__all__ = ["Expansion", "Linearisation", "Probe", "by_row", "expansion_of", "linearise", "supported"]


@dataclass(frozen=True, slots=True)
class Linearisation:
    """Derivatives of every output, row by row, averaged over some masks.

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

    def linear(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """G for a chunk of masks: (passes, rows, width)."""
        parts = [
            _contract(by_row(keep, site, rows).to(g.dtype), g) - (1.0 - site.p) * g.sum(dim=-1)
            for site, keep, g in zip(self.sites, masks, self.gradients, strict=True)
            if keep is not None and g is not None
        ]
        return torch.stack(parts).sum(dim=0)

    def variance_of_design_mean(self, passes: int) -> Tensor:
        """Variance of the mean of G over a stratified design: only the odd drop in pT is left to chance."""
        total = torch.zeros_like(self.variance)
        for site, g in zip(self.sites, self.gradients, strict=True):
            if g is not None:
                chance = min(site.p, 1.0 - site.p) * passes % 1.0
                total += g.square().sum(dim=-1) * (chance * (1.0 - chance) / passes**2)
        return total


def supported(program: Program) -> bool:
    """Whether every mask unit belongs to one input row, so that rows can be differentiated together."""
    return program.rows_independent and all(s.row_axis is not None and s.splits_by_row for s in program.active)


def by_row(mask: Tensor, site: Site, rows: int) -> Tensor:
    """From (passes, *mask of all rows) to (passes, rows, units); rows is 1 where the mask is shared."""
    axis = (site.row_axis or 0) + 1
    own = rows if mask.shape[axis] == site.shape[axis - 1] * rows else 1
    split: Tensor = mask.unflatten(axis, (own, -1))
    return split.movedim(axis, 1).flatten(2)


def _contract(bits: Tensor, g: Tensor) -> Tensor:
    """Σ_u bits[t, n, u] g[n, k, u]; one mask for all rows has n = 1."""
    if bits.shape[1] == 1:
        return torch.einsum("tu,nku->tnk", bits[:, 0], g)
    if g.shape[1] == 1:
        return (bits * g[None, :, 0]).sum(dim=-1, keepdim=True)
    return torch.einsum("tnu,nku->tnk", bits, g)


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


def _full_shape(site: Site, rows: int) -> list[int]:
    shape = list(site.shape)
    shape[site.row_axis or 0] *= rows
    return shape


def linearise(sampler: DropoutSampler, program: Program, batch: Batch, keys: Tensor | None = None) -> Linearisation:
    """Derivatives at the mean mask, or averaged over the random masks named by ``keys``.

    One forward pass and one backward pass per output component; all rows share them. It works under
    ``no_grad`` and ``inference_mode``, too.
    """
    with torch.inference_mode(False):
        return _linearise(sampler, program, batch.map(torch.clone, batch.rows), keys)


def _linearise(sampler: DropoutSampler, program: Program, batch: Batch, keys: Tensor | None) -> Linearisation:
    passes = 1 if keys is None else len(keys)
    sums: list[Linearisation] = []
    for t in range(passes):
        masks: list[Tensor | None] = []
        for site in program.sites:
            keep = None
            if site.active and keys is None:
                keep = torch.full(_full_shape(site, batch.rows), 1.0 - site.p, device=sampler.device)
            elif site.active and keys is not None:
                drawn = sampler.draw(site, keys[t : t + 1], batch.rows, 0)
                assert drawn is not None
                keep = drawn[0].expand(_full_shape(site, batch.rows))
            masks.append(None if keep is None else keep.to(sampler.dtype or torch.get_default_dtype()))
        sums.append(_derivatives(sampler, program, batch, masks))

    def mean(parts: Sequence[Tensor | None]) -> Tensor | None:
        return None if parts[0] is None else torch.stack([p for p in parts if p is not None]).mean(dim=0)

    return Linearisation(
        tuple(mean(p) for p in zip(*(s.in_masks for s in sums), strict=True)),
        tuple(mean(p) for p in zip(*(s.in_outputs for s in sums), strict=True)),
        sums[0].affine,
        sum(s.cost for s in sums),
    )


def _derivatives(
    sampler: DropoutSampler, program: Program, batch: Batch, masks: Sequence[Tensor | None]
) -> Linearisation:
    given = [None if m is None else m.detach().clone().requires_grad_() for m in masks]
    nudges = {
        site.index: torch.zeros_like(keep).requires_grad_()
        for site, keep in zip(program.sites, given, strict=True)
        if keep is not None and not site.kind.startswith("feature")
    }
    wanted = [m for m in given if m is not None] + list(nudges.values())
    forward, whole = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.enable_grad(), whole:
        with forward, Probe(program.sites, given, nudges):
            whole_output = sampler._call(program.model, batch.map(torch.clone, batch.rows))
        out = program.structure.flatten(whole_output)
        width = out.shape[1]
        per_output = [
            torch.autograd.grad(out[:, k].sum(), wanted, retain_graph=k + 1 < width, allow_unused=True)
            for k in range(width)
        ]
    columns = iter(zip(*per_output, strict=True))
    in_masks = tuple(_stacked(next(columns), s, batch.rows) if s.active else None for s in program.sites)
    in_outputs = tuple(_stacked(next(columns), s, batch.rows) if s.index in nudges else None for s in program.sites)
    leaves = program.structure.leaves(whole_output)
    affine = tuple(
        torch.cat([torch.full((leaf[0].numel(),), only_linear(leaf, nudges[s.index])) for leaf in leaves])
        if s.index in nudges
        else None
        for s in program.sites
    )
    flops = forward.get_total_flops()
    cost = whole.get_total_flops() / flops if flops else 1.0 + 2.0 * width
    return Linearisation(in_masks, in_outputs, affine, cost)


def _stacked(parts: Sequence[Tensor | None], site: Site, rows: int) -> Tensor | None:
    """One gradient per output -> (rows, width, units); ``None`` if no output depends on the site."""
    some = next((p for p in parts if p is not None), None)
    if some is None:
        return None
    filled = [torch.zeros_like(some) if p is None else p for p in parts]
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
