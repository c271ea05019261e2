"""The second order of the expansion, in the few directions where the gradient changes most.

Networks bend along few directions of mask space: the matrix of second derivatives, with hundreds of
rows, is nearly of rank three or four. Gradients at a handful of random masks show both, the
directions (where they scatter most: an active subspace, Constantine 2015) and the curvature along them
(how they follow the masks). What results is a quadratic form in independent masks, hence of known mean
and variance.
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
from mlmc_dropout.sampling.sites import Site, play
from mlmc_dropout.surrogates.derivatives import DerivativeError, differentiate, expandable, mean_mask
from mlmc_dropout.surrogates.linear import PASSES_OF_A_GRADIENT, by_row, contract, full_shape

__all__ = ["DIRECTIONS", "Quadratic", "fit_quadratic", "passes_in_memory"]

DIRECTIONS = 6  # the mean gradient's, and those in which gradients scatter most
_RIDGE = 2.0  # samples' worth of belief that there is no curvature


@dataclass(frozen=True, slots=True)
class Quadratic:
    """Q = s P_0 + ½ Σ B_ab (P_a P_b − δ_ab) with P_a = Σ d_a ξ, uncorrelated and of variance 1.

    Per site, ``directions`` d are (rows, width·K, units), the first that of the mean gradient, whose length
    s is ``slope`` (rows, width); ``bend`` B is (rows, width, K, K).
    """

    sites: tuple[Site, ...]
    directions: tuple[Tensor | None, ...]
    slope: Tensor
    bend: Tensor
    variance: Tensor

    def values(self, masks: Sequence[Tensor | None], rows: int) -> Tensor:
        """Q for a chunk of masks: (passes, rows, width)."""
        P: Tensor = contract(self.sites, masks, self.directions, rows).unflatten(-1, self.bend.shape[1:3])
        form = (torch.einsum("tnka,nkab->tnkb", P, self.bend) * P).sum(dim=-1)
        trace = self.bend.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        return self.slope * P[..., 0] + (form - trace) / 2


def passes_in_memory(program: Program, samples: int) -> int:
    """How many passes of a row take as much memory as its masks, gradients and directions."""
    units, width = sum(site.units for site in program.active if expandable(site)), program.structure.width
    numbers = units * (2 * samples * (width + 1) + 2 * DIRECTIONS * width)
    return max(PASSES_OF_A_GRADIENT, -(-8 * numbers // program.bytes_per_row))


def fit_quadratic(
    sampler: DropoutSampler,
    program: Program,
    batch: Batch,
    samples: int,
    served: Mapping[int, Tensor],
    seed: int,
    first_row: int = 0,
) -> tuple[Quadratic, float]:
    """The expansion of second order, from gradients at ``samples`` random masks, and its cost in passes.

    ``served``: per site the outputs over which its masks are averaged out; there they stay at their mean.
    """
    sites = [site for site in program.sites if expandable(site)]
    masks = _design(sampler, program, batch, samples, seed, first_row)
    gradients, cost = _gradients(sampler, program, batch, masks, served)
    scale = {site.index: math.sqrt(site.p * (1.0 - site.p)) for site in sites}
    # In units of standard deviations: masks z and gradients g, sites side by side.
    g = torch.cat([gradients[s.index] * scale[s.index] for s in sites], dim=-1)
    z = torch.cat([(by_row(masks[s.index], s, batch.rows) - (1.0 - s.p)) / scale[s.index] for s in sites], dim=-1)
    mean = g.mean(dim=0)
    V = _directions(g - mean, mean)
    B = _curvature(torch.einsum("qnu,nkua->qnka", z, V), torch.einsum("qnku,nkua->qnka", g, V))
    parts = iter(V.movedim(-1, -2).flatten(1, 2).split([site.units for site in sites], dim=-1))
    directions = tuple(next(parts) / scale[s.index] if s.index in scale else None for s in program.sites)
    slope = (mean * V[..., 0]).sum(dim=-1)
    return Quadratic(program.sites, directions, slope, B, _variance(sites, mean, V, B)), cost


def _design(
    sampler: DropoutSampler, program: Program, batch: Batch, samples: int, seed: int, first_row: int
) -> dict[int, Tensor]:
    """One stratified design of masks, every row with its own, as numbers."""
    key = pass_keys(seed, streams.CURVATURE, 0, 0)
    dtype = torch.promote_types(sampler.dtype or torch.get_default_dtype(), torch.float32)
    found = {}
    for site in program.sites:
        keep = sampler.draw(site, key, batch.rows, first_row, samples)
        if keep is not None:
            found[site.index] = keep.to(dtype).expand(samples, *full_shape(site, batch.rows))
    return found


def _gradients(
    sampler: DropoutSampler,
    program: Program,
    batch: Batch,
    masks: Mapping[int, Tensor],
    served: Mapping[int, Tensor],
) -> tuple[dict[int, Tensor], float]:
    """Per site the gradients (samples, rows, width, units) at the given masks, and the cost in passes."""
    samples, width = len(next(iter(masks.values()))), program.structure.width
    groups: dict[tuple[int, ...], list[int]] = {}
    for output in range(width):
        averaged = tuple(site for site, outputs in served.items() if outputs[output])
        groups.setdefault(averaged, []).append(output)
    size = max(1, sampler.passes_at_once(program, batch.rows) // PASSES_OF_A_GRADIENT)
    found = {
        site.index: masks[site.index].new_zeros(samples, batch.rows, width, site.units)
        for site in program.sites
        if expandable(site)
    }
    cost = 0.0
    for averaged, outputs in groups.items():
        at = {s: m.new_full(m.shape, mean_mask(program.sites[s])) if s in averaged else m for s, m in masks.items()}
        for start in range(0, samples, size):
            some = slice(start, min(start + size, samples))
            given = {s: m[some].clone().requires_grad_(s in found) for s, m in at.items()}
            per_output, weight = _backward(sampler, program, batch, given, outputs)
            cost += weight * (some.stop - some.start)
            for output, gradients in zip(outputs, per_output, strict=True):
                for site, gradient in zip(found, gradients, strict=True):
                    if gradient is not None and site not in averaged:  # some outputs do not see some sites
                        found[site][some, :, output] = by_row(gradient, program.sites[site], batch.rows)
    return found, cost


def _backward(
    sampler: DropoutSampler, program: Program, batch: Batch, masks: Mapping[int, Tensor], outputs: Sequence[int]
) -> tuple[list[tuple[Tensor | None, ...]], float]:
    """Gradients of each output in the masks that ask for them, for several passes at once, and the cost of one pass."""
    given = list(masks.values())
    wanted = [m for m in given if m.requires_grad]

    def one(*chosen: Tensor) -> Tensor:
        own = dict(zip(masks, chosen, strict=True))
        fresh = batch.map(torch.clone, batch.rows)
        given = [own.get(s.index) for s in program.sites]
        fills = program.mode != "vmap"
        return play(program.model, sampler._forward, fresh, program.sites, given, fills=fills)  # type: ignore[no-any-return]

    def together() -> Tensor:
        return vmap(one, randomness="error")(*given)

    def apart() -> Tensor:
        return torch.stack([one(*(m[t] for m in given)) for t in range(len(given[0]))])

    if program.mode == "vmap":
        try:
            return differentiate(together, wanted, outputs)
        except DerivativeError:  # some operations can be batched, or differentiated, but not both
            pass
    return differentiate(apart, wanted, outputs)


def _directions(scatter: Tensor, mean: Tensor) -> Tensor:
    """Orthonormal directions (rows, width, units, K): the mean gradient's, then those of most scatter."""
    gram = torch.einsum("qnku,rnku->nkqr", scatter, scatter).double()
    leading = torch.linalg.eigh(gram).eigenvectors[..., 1 - DIRECTIONS :].flip(-1).to(scatter.dtype)
    columns = torch.einsum("qnku,nkqa->nkua", scatter, leading)
    size = columns.norm(dim=-2, keepdim=True).clamp_min(torch.finfo(scatter.dtype).tiny)
    basis: Tensor = torch.linalg.qr(torch.cat([mean.unsqueeze(-1), columns / size], dim=-1)).Q
    return basis


def _curvature(P: Tensor, slopes: Tensor) -> Tensor:
    """The symmetric B that best explains how slopes follow masks, slope = const + B P: (rows, width, K, K)."""
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


def _variance(sites: Sequence[Site], mean: Tensor, V: Tensor, B: Tensor) -> Tensor:
    """Var(Q) for independent masks z of variance 1, with M = V B Vᵀ the matrix of the form.

    Var(½ zᵀMz) = ½ tr M² + ¼ Σ M_uu² (kurtosis − 3), Cov(gᵀz, ½ zᵀMz) = ½ Σ g_u M_uu skewness.
    """
    diagonal = torch.einsum("nkua,nkab,nkub->nku", V, B, V)
    skewness = torch.cat([V.new_full((s.units,), (2 * s.p - 1) / math.sqrt(s.p * (1 - s.p))) for s in sites])
    excess = torch.cat([V.new_full((s.units,), 1 / (s.p * (1 - s.p)) - 6) for s in sites])
    per_unit = mean.square() + diagonal.square() * excess / 4 + mean * diagonal * skewness
    return per_unit.sum(dim=-1) + B.square().sum(dim=(-2, -1)) / 2
