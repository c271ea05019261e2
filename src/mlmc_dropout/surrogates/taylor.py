"""The second-order Taylor expansion of a network in its masks, at the mean mask, with all second derivatives.

Smooth networks are nearly quadratic in their masks: of what the first order leaves of their variance this expansion
leaves a small part. With ξ = keep − q the centred masks, g the gradient and H the matrix of second derivatives::

    Q = Σ g_u ξ_u + ½ Σ H_uv ξ_u ξ_v − ½ Σ H_uu p q

has mean 0 and a known variance. H takes one product with it per unit, and a value of Q beside a pass a product of its
own, which is counted (``value_cost``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.sampler import DropoutSampler, Program
from mlmc_dropout.sampling.sites import Site
from mlmc_dropout.surrogates.derivatives import count_second, differentiate_twice, expandable
from mlmc_dropout.surrogates.expansion import by_row
from mlmc_dropout.surrogates.linear import PASSES_OF_A_GRADIENT, MeanPass, derivative_cost, pass_operations
from mlmc_dropout.surrogates.quadratic import variance_of_form
from mlmc_dropout.surrogates.scale import binary_scale, is_usual

__all__ = ["Averaged", "Taylor", "fit_taylor", "taylor_bytes", "taylor_cost", "value_cost"]

_AT_ONCE, _AT_ONCE_OF_SHARED = 1 << 20, 1 << 23  # numbers of products with H that are held at once
_TOGETHER = 32  # passes: kernels round in other ways where there are fewer


@dataclass(frozen=True, slots=True)
class Taylor:
    """Second-order expansion Q = g·ξ + ½ ξᵀHξ − ½ Σ H_uu p q, with mean 0 and a known variance.

    Attributes:
        sites: The sites of the program.
        used: Whether each of them is part of g and H.
        gradient: g, (rows, width, units).
        matrix: H, (units, rows, width, units): masks that all rows share are multiplied with it as it lies there.
        constant: ½ Σ H_uu p q, (rows, width).
        variance: Var Q, (rows, width), in double precision.
    """

    sites: tuple[Site, ...]
    used: tuple[bool, ...]
    gradient: Tensor
    matrix: Tensor
    constant: Tensor
    variance: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What :meth:`values` depends on."""
        return self.gradient, self.matrix, self.constant

    def select(self, rows: Tensor) -> Taylor:
        """The expansion at some of the rows.

        Args:
            rows: Places of the rows.

        Returns:
            Their expansion.
        """
        gradient, constant, variance = (part[rows] for part in (self.gradient, self.constant, self.variance))
        return Taylor(self.sites, self.used, gradient, self.matrix[:, rows], constant, variance)

    @staticmethod
    def beside(parts: Sequence[Taylor]) -> Taylor:
        """Expansions at different rows, as one at all of them.

        Args:
            parts: The expansions.

        Returns:
            The expansion at all rows, in the given order.
        """
        named = ("gradient", "constant", "variance")
        gradient, constant, variance = (torch.cat([getattr(part, name) for part in parts]) for name in named)
        matrix = torch.cat([part.matrix for part in parts], dim=1)
        return Taylor(parts[0].sites, parts[0].used, gradient, matrix, constant, variance)

    def values(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """Q for a chunk of masks.

        Args:
            masks: Per site, keep bits (passes, *mask), or ``None``.
            rows: Number of input rows.

        Returns:
            Q, (passes, rows, width).
        """
        centred = [
            by_row(keep, site, rows).to(self.gradient.dtype) - (1.0 - site.p)
            for site, keep, used in zip(self.sites, masks, self.used, strict=True)
            if used and keep is not None
        ]
        several = max(len(bits[0]) for bits in centred)  # 1 where all rows share their masks
        bits = torch.cat([bits.expand(-1, several, -1) for bits in centred], dim=-1).transpose(0, 1)
        passes = bits.shape[1]
        xi = nn.functional.pad(bits, (0, 0, 0, -passes % _TOGETHER))
        numbers = _AT_ONCE if several > 1 else _AT_ONCE_OF_SHARED
        at_once = max(1, numbers // (passes * self.gradient[0].numel()))
        edges = [*range(0, rows, at_once), rows]
        sums = [self._sums(xi if several == 1 else xi[a:b], slice(a, b)) for a, b in pairwise(edges)]
        return torch.cat(sums)[:, :passes].transpose(0, 1) - self.constant

    def _sums(self, xi: Tensor, rows: slice) -> Tensor:
        """g·ξ + ½ ξᵀHξ at some rows, (rows, passes, width), for ξ of (rows, or 1, passes, units)."""
        gradient, matrix = self.gradient[rows], self.matrix[:, rows]
        width, units = gradient.shape[1:]
        if len(xi) == 1:
            product = (xi[0] @ matrix.flatten(1)).unflatten(-1, (-1, width, units)).transpose(0, 1)
        else:
            product = torch.bmm(xi, matrix.flatten(2).transpose(0, 1)).unflatten(-1, (width, units))
        return torch.add(gradient[:, None], product, alpha=0.5).mul_(xi[:, :, None]).sum(dim=-1)


Averaged = Mapping[int, Tensor]  # by index of site, bool (width,): outputs for which its masks are averaged out


def taylor_bytes(program: Program, averaged_out: Averaged) -> int:
    """Memory that g and H take for a row.

    Args:
        program: The prepared model.
        averaged_out: Masks that are averaged out; sites of which all outputs are have no part in the expansion.

    Returns:
        Bytes.
    """
    units = _units(program, averaged_out)
    return 4 * program.structure.width * units * (1 + units)


def taylor_cost(sampler: DropoutSampler, program: Program, batch: Batch, averaged_out: Averaged) -> float:
    """What all second derivatives cost, by operations counted once on one row.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        averaged_out: As for :func:`taylor_bytes`.

    Returns:
        The cost in passes.

    Raises:
        DerivativeError: If the outputs cannot be differentiated twice.
    """
    width, name = program.structure.width, "cost of a product with second derivatives"
    if name not in program.facts:
        with torch.inference_mode(False):
            probe = MeanPass(sampler, program, batch[:1].map(torch.clone, 1))
            program.facts[name] = count_second(probe.outputs, list(probe.expanded.values()))
    products = width * _units(program, averaged_out) * float(program.facts[name])
    return derivative_cost(sampler, program, batch, range(width)) + products


def value_cost(sampler: DropoutSampler, program: Program, batch: Batch, averaged_out: Averaged) -> float:
    """What a value of Q costs, by its product with H; infinite where operations of passes cannot be counted.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        averaged_out: As for :func:`taylor_bytes`.

    Returns:
        The cost in passes.
    """
    operations = pass_operations(sampler, program, batch)
    products = 2.0 * program.structure.width * _units(program, averaged_out) ** 2
    return products / operations if operations else math.inf


def _sites(program: Program, averaged_out: Averaged) -> list[Site]:
    """Sites that are part of the expansion of some output."""
    every = [site for site in program.sites if expandable(site)]
    return [site for site in every if site.index not in averaged_out or not averaged_out[site.index].all()] or every


def _units(program: Program, averaged_out: Averaged) -> int:
    return sum(site.units for site in _sites(program, averaged_out))


def fit_taylor(sampler: DropoutSampler, program: Program, batch: Batch, averaged_out: Averaged) -> tuple[Taylor, float]:
    """All second derivatives at the mean mask.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        averaged_out: As for :func:`taylor_bytes`; the expansion of an output leaves out what is averaged out for it.

    Returns:
        The expansion, and its cost in passes.

    Raises:
        DerivativeError: If the outputs cannot be differentiated twice.
    """
    sites = _sites(program, averaged_out)
    at_once = max(1, sampler.passes_at_once(program, batch.rows) // PASSES_OF_A_GRADIENT)

    def rows_first(derivatives: Sequence[Tensor]) -> Tensor:
        """Derivatives at all sites, (n, *mask) each, as (n, rows, units)."""
        return torch.cat([by_row(d, site, batch.rows) for d, site in zip(derivatives, sites, strict=True)], dim=-1)

    def compute(_: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """G and H of every output."""
        with torch.inference_mode(False):
            probe = MeanPass(sampler, program, batch.map(torch.clone, batch.rows))
            wanted = [probe.expanded[site.index] for site in sites]
            return differentiate_twice(probe.outputs, wanted, rows_first, at_once)

    name = f"second derivatives at {[site.index for site in sites]}, {at_once} at once"
    gradient, matrix = program.run_cached(compute, (name, *batch.values), ())
    kept = torch.cat([_kept(site, averaged_out.get(site.index), gradient) for site in sites], dim=-1)
    if not kept.all():
        gradient, matrix = gradient * kept, matrix * kept * kept.T[:, None, :, None]
    used = tuple(site in sites for site in program.sites)
    moments = _moments(sites, gradient, matrix)
    return Taylor(program.sites, used, gradient, matrix, *moments), taylor_cost(sampler, program, batch, averaged_out)


def _kept(site: Site, averaged_out: Tensor | None, gradient: Tensor) -> Tensor:
    """Which outputs have the units of a site in their expansion, (width, units)."""
    kept = torch.ones(gradient.shape[1], dtype=torch.bool) if averaged_out is None else ~averaged_out.cpu()
    return kept[:, None].expand(-1, site.units).to(gradient.device)


def _moments(sites: Sequence[Site], gradient: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """½ Σ H_uu p q, and the variance, both (rows, width)."""
    spread = torch.cat([gradient.new_full((site.units,), math.sqrt(site.p * (1.0 - site.p))) for site in sites])
    slopes = gradient * spread
    diagonal = matrix.diagonal(dim1=0, dim2=3) * spread.square()
    unit = binary_scale(torch.maximum(slopes.abs().amax(dim=-1), diagonal.abs().amax(dim=-1)))
    scaled = matrix if is_usual(unit) else matrix / unit[..., None]
    blocks = scaled.split([site.units for site in sites], dim=-1)
    norms = [torch.linalg.vector_norm(block, dim=-1).square() for block in blocks]  # (units, rows, width)
    squares = sum(norm * (site.p * (1.0 - site.p)) for norm, site in zip(norms, sites, strict=True))
    squares = torch.einsum("unk,u->nk", squares, spread.square())
    variance = variance_of_form(sites, slopes / unit[..., None], diagonal / unit[..., None], squares)
    return diagonal.sum(dim=-1) / 2, variance.double() * unit.double().square()
