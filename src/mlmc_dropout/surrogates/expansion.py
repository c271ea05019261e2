"""The first-order expansion of a network in its masks, whose mean and variance are known.

Let q = 1 − p be a unit's probability to be kept, ξ = keep − q its centred mask, and g the gradient
of an output with respect to it. Then G = Σ g ξ has mean 0 and variance Σ g² p q, exactly. It shares
its masks with the real passes, so that subtracting it removes much of their variance and adds no bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmc_dropout.sampling.sites import Site
from mlmc_dropout.surrogates.scale import binary_scale

__all__ = ["Expansion", "by_row", "cat_or_none", "contract", "units_first"]

_CONVERTED = 1 << 19  # numbers that bits of masks become at once


@dataclass(frozen=True, slots=True)
class Expansion:
    """First-order expansion G = Σ g ξ, with mean 0 and a known variance.

    Attributes:
        sites: The sites of the program.
        gradients: g per site, (rows, width, units), or ``None``.
        variance: Var G = Σ g² p (1−p), (rows, width), in double precision.
    """

    sites: tuple[Site, ...]
    gradients: tuple[Tensor | None, ...]
    variance: Tensor

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What :meth:`values` depends on."""
        return *self.gradients, self.variance

    def select(self, rows: Tensor) -> Expansion:
        """The expansion at some of the rows.

        Args:
            rows: Places of the rows.

        Returns:
            Their expansion.
        """
        gradients = tuple(None if g is None else _rows_of(g, rows) for g in self.gradients)
        return Expansion(self.sites, gradients, self.variance[rows])

    def units_first(self) -> Expansion:
        """The same, laid out for masks that all rows share: sums over units then are matrix products."""
        gradients = tuple(None if g is None else units_first(g).permute(2, 1, 0) for g in self.gradients)
        return Expansion(self.sites, gradients, self.variance)

    @staticmethod
    def beside(parts: Sequence[Expansion]) -> Expansion:
        """Expansions at different rows, as one at all of them.

        Args:
            parts: The expansions.

        Returns:
            The expansion at all rows, in the given order.
        """
        gradients = tuple(cat_or_none(group) for group in zip(*(part.gradients for part in parts), strict=True))
        return Expansion(parts[0].sites, gradients, torch.cat([part.variance for part in parts]))

    def values(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """G for a chunk of masks.

        Args:
            masks: Per site, keep bits (passes, *mask), or ``None``.
            rows: Number of input rows.

        Returns:
            G, (passes, rows, width).
        """
        return self._contract(masks, self.gradients, rows)

    def squares(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """The part of G² that comes from single units: Σ g²(ξ² − p(1−p)), where ξ² − p(1−p) = (2p − 1)ξ.

        Args:
            masks: Per site, keep bits (passes, *mask), or ``None``.
            rows: Number of input rows.

        Returns:
            The sums, (passes, rows, width).
        """
        pairs = [(s, g) for s, g in zip(self.sites, self.gradients, strict=True)]
        sizes = [g.abs().amax(dim=-1) for _, g in pairs if g is not None]
        scale = binary_scale(torch.stack(sizes).amax(dim=0)) if sizes else torch.ones_like(self.variance)
        squares = [None if g is None else (2 * s.p - 1) * (g / scale[..., None]).square() for s, g in pairs]
        return self._contract(masks, squares, rows).double() * scale.double().square()

    def _contract(self, masks: Sequence[Tensor | None], coefficients: Sequence[Tensor | None], rows: int) -> Tensor:
        if all(mask is None or c is None for mask, c in zip(masks, coefficients, strict=True)):
            passes = next(len(m) for m in masks if m is not None)
            return self.variance.new_zeros(passes, *self.variance.shape)
        return contract(self.sites, masks, coefficients, rows)


def units_first(g: Tensor) -> Tensor:
    """Coefficients as (units, width, rows) in memory; no copy is made where they lie like that.

    Args:
        g: Coefficients, (rows, width, units).

    Returns:
        The same numbers, (units, width, rows).
    """
    return g.permute(2, 1, 0).contiguous()


def _rows_of(g: Tensor, rows: Tensor) -> Tensor:
    """Coefficients of some rows, laid out as they were."""
    return units_first(g).index_select(2, rows).permute(2, 1, 0) if _has_units_first(g) else g[rows]


def _has_units_first(g: Tensor) -> bool:
    return g.permute(2, 1, 0).is_contiguous() and not g.is_contiguous()


def cat_or_none(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Tensors of different rows, one after the other.

    Args:
        tensors: The tensors; all of them are there, or none is.

    Returns:
        The joint tensor, or ``None``.
    """
    there = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(there) if there else None


def by_row(mask: Tensor, site: Site, rows: int) -> Tensor:
    """Rearrange masks so that the rows have an axis of their own.

    Args:
        mask: Masks of all rows, (passes, *mask).
        site: The site that they belong to.
        rows: Number of input rows.

    Returns:
        The masks, (passes, rows, units); (passes, 1, units) where all rows share one mask.
    """
    axis = (site.row_axis or 0) + 1
    mask_rows = rows if mask.shape[axis] == site.shape[axis - 1] * rows else 1
    split: Tensor = mask.unflatten(axis, (mask_rows, -1))
    return split.movedim(axis, 1).flatten(2)


def contract(
    sites: Sequence[Site], masks: Sequence[Tensor | None], coefficients: Sequence[Tensor | None], rows: int
) -> Tensor:
    """Σ c ξ over the units of all sites.

    Args:
        sites: The sites.
        masks: Per site, keep bits (passes, *mask), or ``None``.
        coefficients: Per site, c (rows, k, units), or ``None``; at least one is not ``None``.
        rows: Number of input rows.

    Returns:
        The sums, (passes, rows, k).
    """
    parts = []
    for site, keep, c in zip(sites, masks, coefficients, strict=True):
        if keep is not None and c is not None:
            bits = by_row(keep, site, rows)
            if bits.shape[1] == 1 and _has_units_first(c):
                centred = bits[:, 0].to(c.dtype) - (1.0 - site.p)
                parts.append((centred @ units_first(c).flatten(1)).unflatten(1, c.shape[1::-1]).transpose(1, 2))
                continue
            if bits.shape[1] == 1:  # one mask for all rows
                total = torch.einsum("tu,nku->tnk", bits[:, 0].to(c.dtype), c)
            elif c.shape[1] == 1:
                total = (bits.to(c.dtype) * c[None, :, 0]).sum(dim=-1, keepdim=True)
            else:
                total = _row_products(bits, c)
            parts.append(total - (1.0 - site.p) * c.sum(dim=-1))
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)


def _row_products(bits: Tensor, c: Tensor) -> Tensor:
    """Σ c bits over units, (passes, rows, k): a few rows at a time, so that converted bits stay in the caches."""
    at_once = max(1, _CONVERTED // (bits.shape[0] * bits.shape[2]))
    products = [
        torch.bmm(some, few.to(c.dtype).permute(1, 2, 0))  # several times as fast as einsum
        for some, few in zip(c.split(at_once), bits.split(at_once, dim=1), strict=True)
    ]
    return (products[0] if len(products) == 1 else torch.cat(products)).permute(2, 0, 1)
