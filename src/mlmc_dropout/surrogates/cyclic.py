"""The expansion on cyclic designs of masks: many samples for little more than the price of one.

In a design of T samples every unit follows a pattern of T places, in which pT are marked (one more with the probability
that makes the rate right), from a place s of its own on: in sample t it is dropped if place (t + s) mod T is marked.
The pattern is drawn anew for every design and site; s is uniform and independent from unit to unit, so that the masks
of each single sample have the right law, while the main effect of every unit cancels over the design, as in a Latin
hypercube. Units with the same s drop together, so that G = Σ g ξ needs the sums of g over units of each s, once per
design, and a product with a circulant matrix of T × 2T: about U/T + 2T operations a sample and output instead of U.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlmc_dropout.sampling.masks import bernoulli, derive, random_bytes, words
from mlmc_dropout.sampling.sites import Site
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.surrogates.linear import Expansion

__all__ = ["SAMPLES", "cyclic_values", "operations_per_sample"]

SAMPLES = 32  # T; a power of 2 below 256, so that bits of a byte are uniform
_SCATTERED = 4.0  # an addition at a place that is looked up takes as long as so many of a matrix product
_PATTERN, _PLACE, _EXTRA = 0x70617474, 0x706C6163, 0x65787472  # what derived keys are for


def operations_per_sample(expansion_units: int, width: int) -> float:
    """Floating-point operations of a sample of one row.

    Args:
        expansion_units: Units that the expansion depends on.
        width: Outputs.

    Returns:
        The number, that of drawing included, in operations of matrix products.
    """
    return expansion_units * (_SCATTERED * width + 8.0) / SAMPLES + 4.0 * SAMPLES * width


def cyclic_values(source: Source, expansion: Expansion, keys: Tensor) -> Tensor:
    """G on cyclic designs.

    Args:
        source: The passes of some rows.
        expansion: Their expansion.
        keys: One key per design.

    Returns:
        G, (designs · SAMPLES, rows, width).
    """
    total: Tensor | None = None
    for site, g in zip(expansion.sites, expansion.gradients, strict=True):
        if g is not None:
            part = _of_site(source, site, g, derive(keys.to(g.device), site.index))
            total = part if total is None else total + part
    if total is None:
        return expansion.variance.new_zeros(len(keys) * SAMPLES, *expansion.variance.shape)
    return total.flatten(0, 1)


def _of_site(source: Source, site: Site, g: Tensor, keys: Tensor) -> Tensor:
    """Σ g ξ over the units of one site, (designs, SAMPLES, rows, width)."""
    certain, chance = divmod(site.p * SAMPLES, 1.0)
    dropped = _patterns(derive(keys, _PATTERN), int(certain), bool(chance)).to(g.dtype)
    sums = _sums(g, _places(source, site, g.shape[-1], keys, chance), dropped.shape[-1])
    drops = torch.einsum("dtb,dnkb->dtnk", dropped, sums)
    return site.p * g.sum(dim=-1) - drops


def _patterns(keys: Tensor, certain: int, more: bool) -> Tensor:
    """Whether a unit that starts at place s is dropped in sample t, (designs, t, s); s + SAMPLES has one drop more."""
    order = words(keys, SAMPLES).argsort(dim=-1)
    rank = order.argsort(dim=-1)  # of each place of the pattern
    t = torch.arange(SAMPLES, device=keys.device)
    ranks = rank[:, (t[:, None] + t[None, :]) % SAMPLES]
    marked = ranks < certain
    return torch.cat([marked, ranks < certain + 1], dim=-1) if more else marked


def _places(source: Source, site: Site, units: int, keys: Tensor, chance: float) -> Tensor:
    """Where each unit starts, (designs, rows or 1, units); those with an extra drop are counted on from SAMPLES."""
    own = site.row_axis is not None and source.sampler.masks == "independent"
    rows, first = (source.batch.rows, source.row_numbers) if own else (1, 0)
    places = random_bytes(derive(keys, _PLACE), units, rows, first).bitwise_and(SAMPLES - 1).long()
    if chance:
        places += SAMPLES * bernoulli(derive(keys, _EXTRA), units, 1.0 - chance, rows, first)
    return places


def _sums(g: Tensor, places: Tensor, blocks: int) -> Tensor:
    """Σ g over the units of each place, (designs, rows, width, blocks)."""
    rows, width, units = g.shape
    designs = len(places)
    if places.shape[1] == 1 and rows > 1:  # one mask for all rows
        member = torch.zeros(designs, units, blocks, dtype=g.dtype, device=g.device)
        member.scatter_(2, places[:, 0, :, None], 1.0)
        return torch.einsum("nku,dub->dnkb", g, member)
    sums = torch.zeros(designs, rows, width, blocks, dtype=g.dtype, device=g.device)
    index = places[:, :, None, :].expand(designs, rows, width, units)
    return sums.scatter_add_(3, index, g.expand(designs, rows, width, units))
