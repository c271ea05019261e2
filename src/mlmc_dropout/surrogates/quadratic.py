"""The second-order expansion of a network in its masks, in the few directions in which the gradient changes most.

Networks curve along few directions of mask space: the matrix of second derivatives, with hundreds of
rows, has nearly rank three or four. Gradients at a handful of random masks show both the directions (those
in which gradients vary most: an active subspace, Constantine 2015) and the curvature along them (how gradients
change with the masks). The result is a quadratic form in independent masks, whose mean and variance are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.sampler import DropoutSampler, Program
from mlmc_dropout.sampling.sites import Site, forward_with_masks, full_shape
from mlmc_dropout.surrogates.derivatives import DerivativeError, Gradients, differentiate, expandable
from mlmc_dropout.surrogates.expansion import by_row, cat_or_none, contract
from mlmc_dropout.surrogates.linear import PASSES_OF_A_GRADIENT, derivative_cost
from mlmc_dropout.surrogates.scale import binary_scale, is_usual

__all__ = ["DIRECTIONS", "Quadratic", "fit_quadratic", "passes_in_memory", "variance_of_form"]

DIRECTIONS = 6  # the mean gradient's, and those in which gradients vary most
_RIDGE = 2.0  # weight of the prior that there is no curvature, in samples


@dataclass(frozen=True, slots=True)
class Quadratic:
    """Second-order expansion Q = Σ s_a P_a + ½ λ_a (P_a² − 1); P_a = Σ d_a ξ are uncorrelated, of variance 1.

    Attributes:
        sites: The sites of the program.
        directions: Per site, the K directions d in which the network curves by itself, (rows, width·K, units), or
            ``None``.
        slope: s, the mean gradient along each of them, (rows, width, K).
        curvature: λ, (rows, width, K).
        variance: Var Q, (rows, width), in double precision.
    """

    sites: tuple[Site, ...]
    directions: tuple[Tensor | None, ...]
    slope: Tensor
    curvature: Tensor
    variance: Tensor

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What :meth:`values` depends on."""
        return *self.directions, self.slope, self.curvature

    def select(self, rows: Tensor) -> Quadratic:
        """The expansion at some of the rows.

        Args:
            rows: Places of the rows.

        Returns:
            Their expansion.
        """
        directions = tuple(None if d is None else d[rows] for d in self.directions)
        return Quadratic(self.sites, directions, self.slope[rows], self.curvature[rows], self.variance[rows])

    @staticmethod
    def beside(parts: Sequence[Quadratic]) -> Quadratic:
        """Expansions at different rows, as one at all of them.

        Args:
            parts: The expansions.

        Returns:
            The expansion at all rows, in the given order.
        """
        directions = tuple(cat_or_none(group) for group in zip(*(part.directions for part in parts), strict=True))
        rest = (torch.cat([getattr(part, name) for part in parts]) for name in ("slope", "curvature", "variance"))
        return Quadratic(parts[0].sites, directions, *rest)

    def values(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """Q for a chunk of masks.

        Args:
            masks: Per site, keep bits (passes, *mask), or ``None``.
            rows: Number of input rows.

        Returns:
            Q, (passes, rows, width).
        """
        P: Tensor = contract(self.sites, masks, self.directions, rows).unflatten(-1, self.curvature.shape[1:])
        half = self.curvature / 2
        return torch.addcmul(self.slope, half, P).mul_(P).sum(dim=-1) - half.sum(dim=-1)


def passes_in_memory(program: Program, samples: int) -> int:
    """How many passes of a row take as much memory as the fit needs for it: masks, gradients and directions.

    Args:
        program: The prepared model.
        samples: Number of masks at which gradients are taken.

    Returns:
        The number of passes.
    """
    units, width = sum(site.units for site in program.active if expandable(site)), program.structure.width
    numbers = units * (2 * samples * (width + 1) + 2 * DIRECTIONS * width)
    return max(PASSES_OF_A_GRADIENT, -(-8 * numbers // program.bytes_per_row))


def fit_quadratic(
    sampler: DropoutSampler,
    program: Program,
    batch: Batch,
    samples: int,
    averaged_out: Mapping[int, Tensor],
    seed: int,
    first_row: int | Tensor = 0,
) -> tuple[Quadratic, float]:
    """Fit the second-order expansion to gradients at random masks.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        samples: Number of masks at which gradients are taken.
        averaged_out: By index of site, bool (width,): the outputs for which its masks are averaged out; for these the
            masks stay at their mean.
        seed: Seed of the masks.
        first_row: Number of the first row of the batch, 0 by default; or the numbers of all its rows.

    Returns:
        The expansion, and its cost in passes.

    Raises:
        DerivativeError: If the outputs cannot be differentiated.
    """
    every = [site for site in program.sites if expandable(site)]
    sites = [site for site in every if not _all(averaged_out.get(site.index))] or every
    masks = _design(sampler, program, batch, samples, seed, first_row)
    gradients, cost = _gradients(sampler, program, batch, masks, averaged_out)
    scale = {site.index: math.sqrt(site.p * (1.0 - site.p)) for site in sites}
    # Standardised masks z and the gradients g with respect to them, with all sites concatenated.
    g = torch.cat([gradients[s.index] * scale[s.index] for s in sites], dim=-1)
    z = torch.cat([(by_row(masks[s.index], s, batch.rows) - (1.0 - s.p)) / scale[s.index] for s in sites], dim=-1)
    unit = binary_scale(g.abs().amax(dim=(0, -1)))  # of the outputs, (rows, width)
    g = g if is_usual(unit) else g / unit[..., None]
    mean = g.mean(dim=0)
    V = _directions(g - mean, mean)
    B = _curvature(torch.einsum("qnu,nkua->qnka", z, V), torch.einsum("qnku,nkua->qnka", g, V))
    curvature, axes = torch.linalg.eigh(B)  # in the principal axes of B a value costs K products instead of K²
    V = V @ axes
    parts = iter(V.movedim(-1, -2).flatten(1, 2).split([site.units for site in sites], dim=-1))
    directions = tuple((next(parts) / scale[s.index]).contiguous() if s.index in scale else None for s in program.sites)
    slope = torch.einsum("nku,nkua->nka", mean, V)
    variance = _variance(sites, mean, V, curvature).double() * unit.double().square()
    return Quadratic(program.sites, directions, slope * unit[..., None], curvature * unit[..., None], variance), cost


def _all(outputs: Tensor | None) -> bool:
    """Whether masks are averaged out for every output."""
    return outputs is not None and bool(outputs.all())


def _design(
    sampler: DropoutSampler, program: Program, batch: Batch, samples: int, seed: int, first_row: int | Tensor
) -> dict[int, Tensor]:
    """One stratified design of masks, in which every row has its own, as floating-point numbers."""
    key = pass_keys(seed, streams.CURVATURE, 0, 0)
    dtype = torch.promote_types(sampler.dtype or torch.get_default_dtype(), torch.float32)
    masks = {}
    for site in program.sites:
        keep = sampler.draw(site, key, batch.rows, first_row, samples)
        if keep is not None:
            masks[site.index] = keep.to(dtype).expand(samples, *full_shape(site, batch.rows))
    return masks


def _gradients(
    sampler: DropoutSampler,
    program: Program,
    batch: Batch,
    masks: Mapping[int, Tensor],
    averaged_out: Mapping[int, Tensor],
) -> tuple[dict[int, Tensor], float]:
    """Per site the gradients (samples, rows, width, units) at these masks, and their cost in passes."""
    samples, width = len(next(iter(masks.values()))), program.structure.width
    groups: dict[tuple[int, ...], list[int]] = {}  # sites held at their mean -> outputs
    for output in range(width):
        held = tuple(site for site, outputs in averaged_out.items() if outputs[output])
        groups.setdefault(held, []).append(output)
    size = max(1, sampler.passes_at_once(program, batch.rows) // PASSES_OF_A_GRADIENT)
    gradients = {
        site.index: masks[site.index].new_zeros(samples, batch.rows, width, site.units)
        for site in program.sites
        if expandable(site)
    }
    cost_of_output = (derivative_cost(sampler, program, batch, range(width)) - 1.0) / width
    cost = float(samples * len(groups))  # of forward passes
    for held, outputs in groups.items():
        points = {s: m.new_full(m.shape, program.sites[s].mean) if s in held else m for s, m in masks.items()}
        for start in range(0, samples, size):
            chunk = slice(start, min(start + size, samples))
            leaves = {s: m[chunk].clone().requires_grad_(s in gradients) for s, m in points.items()}
            per_output = _backward(sampler, program, batch, leaves, outputs)
            cost += cost_of_output * len(outputs) * (chunk.stop - chunk.start)
            for output, per_site in zip(outputs, per_output, strict=True):
                for site, gradient in zip(gradients, per_site, strict=True):
                    if gradient is not None and site not in held:  # an output need not depend on every site
                        gradients[site][chunk, :, output] = by_row(gradient, program.sites[site], batch.rows)
    return gradients, cost


def _backward(
    sampler: DropoutSampler, program: Program, batch: Batch, masks: Mapping[int, Tensor], outputs: Sequence[int]
) -> Gradients:
    """Gradients of each output in the masks that require them, for several passes at once."""
    values = list(masks.values())
    wanted = [m for m in values if m.requires_grad]

    def one_pass(*pass_masks: Tensor) -> Tensor:
        by_index = dict(zip(masks, pass_masks, strict=True))
        fresh = batch.map(torch.clone, batch.rows)
        by_site = [by_index.get(s.index) for s in program.sites]
        fills = program.mode != "vmap"
        return forward_with_masks(program.model, sampler.forward, fresh, program.sites, by_site, fills=fills)  # type: ignore[no-any-return]

    def batched() -> Tensor:
        return vmap(one_pass, randomness="error")(*values)

    def one_by_one() -> Tensor:
        return torch.stack([one_pass(*(m[t] for m in values)) for t in range(len(values[0]))])

    if program.mode == "vmap":
        try:
            return differentiate(batched, wanted, outputs)
        except DerivativeError:  # some operations can be batched, or differentiated, but not both
            pass
    return differentiate(one_by_one, wanted, outputs)


def _directions(scatter: Tensor, mean: Tensor) -> Tensor:
    """Orthonormal directions (rows, width, units, K): the mean gradient's, then those of largest variance."""
    gram = torch.einsum("qnku,rnku->nkqr", scatter, scatter).double()
    leading = torch.linalg.eigh(gram).eigenvectors[..., 1 - DIRECTIONS :].flip(-1).to(scatter.dtype)
    columns = torch.einsum("qnku,nkqa->nkua", scatter, leading)
    size = columns.norm(dim=-2, keepdim=True).clamp_min(torch.finfo(scatter.dtype).tiny)
    basis: Tensor = torch.linalg.qr(torch.cat([mean.unsqueeze(-1), columns / size], dim=-1)).Q
    return basis


def _curvature(P: Tensor, slopes: Tensor) -> Tensor:
    """The symmetric B of the ridge regression slope = const + B P: (rows, width, K, K)."""
    K = P.shape[-1]
    a, b = torch.triu_indices(K, K, device=P.device)
    pair = torch.arange(len(a), device=P.device)
    P, slopes = P - P.mean(dim=0), slopes - slopes.mean(dim=0)
    design = P.new_zeros(*P.shape, len(a))  # (samples, rows, width, K, pairs)
    design[..., a, pair] = P[..., b]
    design[..., b, pair] = P[..., a]
    normal = torch.einsum("qnkaf,qnkag->nkfg", design, design).double()
    right = torch.einsum("qnkaf,qnka->nkf", design, slopes).double()
    entries = torch.linalg.solve(normal + _RIDGE * torch.eye(len(a), device=P.device), right).to(P.dtype)
    B = P.new_zeros(*P.shape[1:], K)
    B[..., a, b] = entries
    B[..., b, a] = entries
    return B


def _variance(sites: Sequence[Site], mean: Tensor, V: Tensor, curvature: Tensor) -> Tensor:
    """Var(Q) with M = V Λ Vᵀ the matrix of the form."""
    diagonal = torch.einsum("nkua,nka->nku", V.square(), curvature)
    return variance_of_form(sites, mean, diagonal, curvature.square().sum(dim=-1))


def variance_of_form(sites: Sequence[Site], slopes: Tensor, diagonal: Tensor, squares: Tensor) -> Tensor:
    """Var(gᵀz + ½ zᵀMz) for independent masks z of variance 1.

    Var(½ zᵀMz) = ½ tr M² + ¼ Σ M_uu² (kurtosis − 3), Cov(gᵀz, ½ zᵀMz) = ½ Σ g_u M_uu skewness.

    Args:
        sites: The sites of the units, in their order.
        slopes: g, (rows, width, units).
        diagonal: M_uu, (rows, width, units).
        squares: tr M², (rows, width).

    Returns:
        The variance, (rows, width).
    """
    new = slopes.new_full
    skewness = torch.cat([new((s.units,), (2 * s.p - 1) / math.sqrt(s.p * (1 - s.p))) for s in sites])
    excess = torch.cat([new((s.units,), 1 / (s.p * (1 - s.p)) - 6) for s in sites])
    per_unit = slopes.square() + diagonal.square() * excess / 4 + slopes * diagonal * skewness
    return per_unit.sum(dim=-1) + squares / 2
