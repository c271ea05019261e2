"""The expansion on cyclic designs of masks: many samples for little more than the price of one.

In a design of T samples every unit follows a pattern of T places, in which pT are marked (one more with the probability
that makes the rate right), from a place s of its own on: in sample t it is dropped if place (t + s) mod T is marked.
The pattern is drawn anew for every design and rate; s is uniform and independent from unit to unit, so that the masks
of each single sample have the right law, while the main effect of every unit cancels over the design, as in a Latin
hypercube. Units with the same s drop together, so that G = Σ g ξ needs the sums of g over units of each s, once per
design, and a product with a circulant matrix of T × T. Units with one drop more have sums of their own, of which every
sample needs one: about U/T + T operations a sample and output instead of U, whatever the number of sites.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlmc_dropout.sampling.masks import bernoulli, derive, random_bytes, words
from mlmc_dropout.sampling.sites import Site
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.surrogates.expansion import Expansion, units_first

__all__ = ["SAMPLES", "cyclic_values", "operations_per_sample"]

SAMPLES = 32  # T; a power of 2 below 256, so that bits of a byte are uniform
_FEWEST, _MOST, _NUMBERS = 4, 16, 1 << 19  # designs that are computed at once, by the numbers they give
_SCATTERED = 4.0  # an addition at a place that is looked up takes as long as so many of a matrix product
_PATTERN, _PLACE, _EXTRA = 0x70617474, 0x706C6163, 0x65787472  # what derived keys are for


def operations_per_sample(expansion_units: int, width: int, rates: int = 1, rows_alike: int = 1) -> float:
    """Floating-point operations of a sample of one row.

    Args:
        expansion_units: Units that the expansion depends on.
        width: Outputs.
        rates: Different rates of dropout among them.
        rows_alike: Rows that have the same masks, which are then drawn and looked up once.

    Returns:
        The number, that of drawing included, in operations of matrix products.
    """
    scattered = _SCATTERED * width if rows_alike == 1 else float(width)
    return expansion_units * (scattered + 8.0 / rows_alike) / SAMPLES + rates * 2.0 * SAMPLES * width


def cyclic_values(source: Source, expansion: Expansion, keys: Tensor) -> Iterator[Tensor]:
    """G on cyclic designs.

    Args:
        source: The passes of some rows.
        expansion: Their expansion.
        keys: One key per design.

    Yields:
        G of some designs, (designs · SAMPLES, rows, width).
    """
    rates = _by_rate(expansion)
    if not rates:
        yield expansion.variance.new_zeros(len(keys) * SAMPLES, *expansion.variance.shape)
    elif source.sampler.masks == "shared":
        yield from _shared_values(source, rates, keys)
    else:
        for some in keys.split(_designs_at_once(expansion.variance.numel())):
            parts = (_of_rate(source, sites, some) for sites in rates)
            yield functools.reduce(torch.add, parts).flatten(0, 1)


Sites = Sequence[tuple[Site, Tensor]]


def _by_rate(expansion: Expansion) -> list[Sites]:
    """Sites and their coefficients; those of one rate together, which follow the same patterns."""
    found: dict[float, list[tuple[Site, Tensor]]] = {}
    for site, g in zip(expansion.sites, expansion.gradients, strict=True):
        if g is not None:
            found.setdefault(site.p, []).append((site, g))
    return list(found.values())


def _designs_at_once(numbers: int) -> int:
    """Designs of samples of so many numbers each: enough for the calls to count little, few enough for caches."""
    return min(max(_NUMBERS // (SAMPLES * numbers), _FEWEST), _MOST)


def _shared_values(source: Source, rates: Sequence[Sites], keys: Tensor) -> Iterator[Tensor]:
    """The same where all rows have one mask, a few designs at a time; outputs lie before rows in memory."""
    rows, width, _ = rates[0][0][1].shape
    drawn = [_Drawn.of(source, sites, keys) for sites in rates]
    laid_out = [[units_first(g).flatten(1) for _, g in sites] for sites in rates]
    for some in torch.arange(len(keys)).split(_designs_at_once(rows * width)):
        found = drawn[0].centred.new_zeros(len(some), SAMPLES, width * rows)
        for total, design in zip(found, some.tolist(), strict=True):
            for of_rate, coefficients in zip(drawn, laid_out, strict=True):
                sums = total.new_zeros(of_rate.blocks * SAMPLES, width * rows)
                for g, places in zip(coefficients, of_rate.places, strict=True):
                    sums.index_add_(0, places[design, 0], g)
                total += of_rate.values(design, sums)
        yield found.flatten(0, 1).unflatten(1, (width, rows)).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Designs of all sites of one rate.

    Attributes:
        places: Per site, where its units start, (designs, rows or 1, units); from SAMPLES on, with a drop more.
        centred: p, less 1 where a unit that starts at s is dropped in sample t, (designs, t, s).
        extra: The s of units that have their further drop in sample t, (designs, t).
        blocks: 2 if there are such units, else 1.
    """

    places: tuple[Tensor, ...]
    centred: Tensor
    extra: Tensor
    blocks: int

    @classmethod
    def of(cls, source: Source, sites: Sites, keys: Tensor) -> _Drawn:
        first, like = sites[0]
        keys = keys.to(like.device)
        certain, chance = divmod(first.p * SAMPLES, 1.0)
        marked, extra = _patterns(derive(derive(keys, first.index), _PATTERN), int(certain))
        places = tuple(_places(source, site, g.shape[-1], derive(keys, site.index), chance) for site, g in sites)
        return cls(places, first.p - marked.to(like.dtype), extra, 2 if chance else 1)

    def values(self, design: int, sums: Tensor) -> Tensor:
        """G of one design from sums of coefficients, (blocks · SAMPLES, …) -> (SAMPLES, …)."""
        if self.blocks == 1:
            return self.centred[design] @ sums
        often = sums[SAMPLES:]
        return self.centred[design] @ (sums[:SAMPLES] + often) - often[self.extra[design]]


def _of_rate(source: Source, sites: Sites, keys: Tensor) -> Tensor:
    """Σ g ξ over the units of all sites of one rate, (designs, SAMPLES, rows, width)."""
    drawn = _Drawn.of(source, sites, keys)
    rows, width, _ = sites[0][1].shape
    sums = drawn.centred.new_zeros(len(keys), rows, width, drawn.blocks * SAMPLES)
    for (_, g), places in zip(sites, drawn.places, strict=True):
        shape = (len(keys), *g.shape)
        sums.scatter_add_(3, places[:, :, None, :].expand(shape), g.expand(shape))
    if drawn.blocks == 1:
        return torch.einsum("dts,dnks->dtnk", drawn.centred, sums)
    often = sums[..., SAMPLES:]
    further = often.take_along_dim(drawn.extra[:, None, None, :], dim=-1).permute(0, 3, 1, 2)
    return torch.einsum("dts,dnks->dtnk", drawn.centred, sums[..., :SAMPLES] + often) - further


def _patterns(keys: Tensor, certain: int) -> tuple[Tensor, Tensor]:
    """Whether a unit that starts at place s is dropped in sample t, (designs, t, s).

    Units with one drop more have it in sample t if they start at the place that is returned beside, (designs, t).
    """
    order = words(keys, SAMPLES).argsort(dim=-1)
    rank = order.argsort(dim=-1)  # of each place of the pattern
    t = torch.arange(SAMPLES, device=keys.device)
    ranks = rank[:, (t[:, None] + t[None, :]) % SAMPLES]
    last = order[:, certain] if certain < SAMPLES else order[:, 0]
    return ranks < certain, (last[:, None] - t) % SAMPLES


def _places(source: Source, site: Site, units: int, keys: Tensor, chance: float) -> Tensor:
    """Where each unit starts, (designs, rows or 1, units); those with an extra drop are counted on from SAMPLES."""
    own = site.row_axis is not None and source.sampler.masks == "independent"
    rows, first = (source.batch.rows, source.row_numbers) if own else (1, 0)
    places = random_bytes(derive(keys, _PLACE), units, rows, first).bitwise_and(SAMPLES - 1).long()
    if chance:
        places += SAMPLES * bernoulli(derive(keys, _EXTRA), units, 1.0 - chance, rows, first)
    return places
