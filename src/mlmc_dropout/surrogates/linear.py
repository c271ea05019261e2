"""A coarse level whose moments are known: the network's first-order expansion in its masks.

Let q = 1 − p be a unit's probability to be kept, ξ = keep − q its centred mask, and g the gradient
of an output with respect to it. Then G = Σ g ξ has mean 0 and variance Σ g² p q, exactly. It shares
its masks with the real passes, so that subtracting it removes much of their scatter and no truth.

Sites whose draws are not keep bits (uniform numbers, normals) are left out: they stay at their mean where gradients are
taken, and G is a function of the other sites only, which leaves its moments as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.sampler import DropoutSampler, Program
from mlmc_dropout.sampling.sites import Player, Site
from mlmc_dropout.surrogates.affine_check import only_linear
from mlmc_dropout.surrogates.derivatives import differentiate, expandable, mean_mask

__all__ = [
    "Expansion",
    "Linearisation",
    "Probe",
    "by_row",
    "contract",
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

    rows: int
    device: torch.device | None
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
        return self._contract(masks, self.gradients, rows)

    def squares(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """What each unit for itself adds to G²: Σ g²(ξ² − p(1−p)), where ξ² − p(1−p) = (2p − 1)ξ."""
        pairs = zip(self.sites, self.gradients, strict=True)
        return self._contract(masks, [None if g is None else (2 * s.p - 1) * g.square() for s, g in pairs], rows)

    def _contract(self, masks: Sequence[Tensor | None], coefficients: Sequence[Tensor | None], rows: int) -> Tensor:
        if all(c is None for c in coefficients):
            passes = next(len(m) for m in masks if m is not None)
            return self.variance.new_zeros(passes, *self.variance.shape)
        return contract(self.sites, masks, coefficients, rows)


def supported(program: Program) -> bool:
    """Whether there are keep bits and each belongs to one input row, so that rows can be differentiated together."""
    axes = [s.row_axis for s in program.active if expandable(s)]
    split = all(s.splits_by_row for s in program.active) and not any(s.in_kernel for s in program.sites)
    return program.rows_independent and split and bool(axes) and None not in axes


def by_row(mask: Tensor, site: Site, rows: int) -> Tensor:
    """From (passes, *mask of all rows) to (passes, rows, units); rows is 1 where the mask is shared."""
    axis = (site.row_axis or 0) + 1
    own = rows if mask.shape[axis] == site.shape[axis - 1] * rows else 1
    split: Tensor = mask.unflatten(axis, (own, -1))
    return split.movedim(axis, 1).flatten(2)


def contract(
    sites: Sequence[Site], masks: Sequence[Tensor | None], coefficients: Sequence[Tensor | None], rows: int
) -> Tensor:
    """Σ c ξ over the units of all sites, c (rows, k, units) per site: (passes, rows, k); one site at least has c."""
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

    def __init__(
        self, sites: Sequence[Site], masks: Sequence[Tensor | None], nudges: dict[int, Tensor], fills: bool = True
    ) -> None:
        super().__init__(sites, masks, fills=fills)
        self.inputs: dict[int, Tensor] = {}
        self._nudges = nudges

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        index = self.met
        out = super().drop(kind, x, p, training, shape, inplace)
        self.inputs[index] = x
        return out + self._nudges[index] if index in self._nudges else out


def full_shape(site: Site, rows: int) -> list[int]:
    """The shape of a mask in which every row has its own, if rows have masks at all."""
    shape = list(site.shape)
    if site.row_axis is not None:
        shape[site.row_axis] *= rows
    return shape


def linearise(sampler: DropoutSampler, program: Program, batch: Batch) -> Linearisation:
    """Derivatives at the mean mask.

    One forward pass and one backward pass per output component; all rows share them. It works under
    ``no_grad`` and ``inference_mode``, too.

    Raises:
        DerivativeError: if the outputs cannot be differentiated.
    """
    dtype = sampler.dtype or torch.get_default_dtype()
    with torch.inference_mode(False):
        masks = [
            torch.full(full_shape(site, batch.rows), mean_mask(site), device=sampler.device, dtype=dtype)
            if site.active
            else None
            for site in program.sites
        ]
        return _derivatives(sampler, program, batch.map(torch.clone, batch.rows), masks)


_NO_NUDGE = ("feature", "bernoulli", "path")  # masks of whole channels, and those that the model itself applies


def _derivatives(
    sampler: DropoutSampler, program: Program, batch: Batch, masks: Sequence[Tensor | None]
) -> Linearisation:
    expanded = {
        site.index: m for site, m in zip(program.sites, masks, strict=True) if m is not None and expandable(site)
    }
    nudges = {
        index: torch.zeros_like(keep).requires_grad_()
        for index, keep in expanded.items()
        if not program.sites[index].kind.startswith(_NO_NUDGE)
    }
    wanted = [keep.requires_grad_() for keep in expanded.values()] + list(nudges.values())
    leaves: list[Tensor] = []

    def outputs() -> Tensor:
        with Probe(program.sites, masks, nudges):
            out = sampler._call(program.model, batch.map(torch.clone, batch.rows))
        leaves.extend(program.structure.leaves(out))
        return program.structure.flatten(out)

    per_output, cost = differentiate(outputs, wanted, range(program.structure.width))
    columns = iter(zip(*per_output, strict=True))
    in_masks = tuple(_stacked(next(columns), s, batch.rows) if s.index in expanded else None for s in program.sites)
    in_outputs = tuple(_stacked(next(columns), s, batch.rows) if s.index in nudges else None for s in program.sites)
    affine = tuple(
        torch.cat([torch.full((leaf[0].numel(),), only_linear(leaf, nudges[s.index])) for leaf in leaves])
        if s.index in nudges
        else None
        for s in program.sites
    )
    return Linearisation(batch.rows, sampler.device, in_masks, in_outputs, affine, cost)


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
    """The expansion over all sites but those averaged out: ``served`` has the outputs concerned, per site.

    Where no output depends on any site to first order it is 0, and so is its variance.
    """
    served = served or {}
    gradients: list[Tensor | None] = []
    variance = torch.zeros(derivatives.rows, program.structure.width, device=derivatives.device)
    for site, g in zip(program.sites, derivatives.in_masks, strict=True):
        if g is not None and site.index in served:
            g = g * ~served[site.index][None, :, None]
        gradients.append(g)
        if g is not None:
            variance = variance + g.square().sum(dim=-1) * (site.p * (1.0 - site.p))
    return Expansion(program.sites, tuple(gradients), variance)
