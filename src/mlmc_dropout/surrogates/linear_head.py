"""The last dropout, averaged out in closed form where a linear head follows it (Rao–Blackwell).

If an output is affine in the units of its last dropout site, then, conditional on all earlier masks, its mean
and variance over the last ones are known: with z the slope of the output in each keep bit and ξ = keep − q,
a pass D becomes h = D − Σ z ξ, and s² = p q Σ z². So μ = E h and μ2 = E s² + Var h. Where every output is averaged over
the masks of a site, they need not be drawn at all: h is the pass that has them at their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import vmap

from mlmc_dropout.sampling import streams
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.interception import apply_mask
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.sampler import DropoutSampler, Program
from mlmc_dropout.sampling.sites import Site
from mlmc_dropout.surrogates.derivatives import expandable
from mlmc_dropout.surrogates.expansion import by_row
from mlmc_dropout.surrogates.linear import Linearisation, SiteProbe
from mlmc_dropout.surrogates.scale import binary_scale, is_usual

__all__ = ["Head", "heads_of", "held_sites", "outputs_by_head", "reduced_passes", "whole_and_reduced_passes"]

_CHECKS = 2  # random passes that confirm that a head is affine
_CHECK_ROWS = 8
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Head:
    """A site after which only linear operations follow, for some of the outputs.

    Attributes:
        site: The site.
        jacobian: ∂output/∂(output of the site), (rows, width, units); zero for the other outputs.
        outer: A power of two of the size of the jacobian, (rows, width).
        inner: The same of what units contribute to the output, over the jacobian, (rows, 1).
        usual: Whether all of these are 1, since squares fit anyhow.
    """

    site: Site
    jacobian: Tensor
    outer: Tensor
    inner: Tensor
    usual: bool

    @classmethod
    def of(cls, site: Site, jacobian: Tensor, in_masks: Tensor | None) -> Head:
        """With the powers of two that squares need.

        Args:
            site: The site.
            jacobian: ∂output/∂(output of the site), zero for outputs that it is not the head of.
            in_masks: ∂output/∂(keep bits of the site) at the mean mask, which tells the size of the units.

        Returns:
            The head.
        """
        size = jacobian.abs().amax(dim=-1)
        effect = size if in_masks is None else in_masks.abs().amax(dim=-1)
        outer = binary_scale(size)
        inner = torch.where(size > 0, effect / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)
        inner = binary_scale(inner.amax(dim=-1, keepdim=True))
        return cls(site, jacobian, outer, inner, is_usual(outer) and is_usual(inner))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What passes with the head averaged out depend on."""
        return (self.jacobian,) if self.usual else (self.jacobian, self.outer, self.inner)

    @property
    def outputs(self) -> Tensor:
        """Which outputs it is the head of, bool (width,)."""
        return self.jacobian.abs().amax(dim=(0, 2)) > 0

    def select(self, rows: Tensor) -> Head:
        """The head at some of the rows.

        Args:
            rows: Places of the rows.

        Returns:
            Their head.
        """
        return Head(self.site, self.jacobian[rows], self.outer[rows], self.inner[rows], self.usual)

    def joined(self, other: Head) -> Head:
        """The head at these rows and at others.

        Args:
            other: The same head at other rows.

        Returns:
            The head at all of them.
        """
        jacobian, outer, inner = (
            torch.cat([getattr(self, name), getattr(other, name)]) for name in ("jacobian", "outer", "inner")
        )
        return Head(self.site, jacobian, outer, inner, self.usual and other.usual)

    def for_outputs(self, outputs: Tensor) -> Head:
        """The head of some of its outputs only.

        Args:
            outputs: Which, bool (width,).

        Returns:
            Their head.
        """
        return replace(self, jacobian=self.jacobian * outputs[None, :, None])

    def variance(self, z: Tensor) -> Tensor:
        """Σ (jacobian z)², in double precision.

        Args:
            z: Slopes of the units in their keep bits, (rows, units).

        Returns:
            The sums, (rows, width).
        """
        if self.usual:
            return _per_row(self.jacobian.square(), z.square()).double()
        scaled = _per_row((self.jacobian / self.outer[..., None]).square(), (z / self.inner).square())
        return scaled.double() * (self.outer.double() * self.inner.double()).square()


def outputs_by_head(heads: Sequence[Head]) -> dict[int, Tensor]:
    """The outputs for which the masks of each head's site are averaged out.

    Args:
        heads: The heads.

    Returns:
        By index of site, bool (width,).
    """
    return {head.site.index: head.outputs for head in heads}


def held_sites(program: Program, heads: Sequence[Head]) -> tuple[int, ...]:
    """Heads whose masks may stay at their mean: all outputs are averaged over them, and other masks make the passes.

    Args:
        program: The prepared model.
        heads: Confirmed heads.

    Returns:
        Indices of their sites.
    """
    alone = len(program.active) == len(heads)
    plain = [head for head in heads if not _is_alpha(head.site) and bool(head.outputs.all())]
    return () if alone else tuple(head.site.index for head in plain)


def _is_alpha(site: Site) -> bool:
    """Whether dropped units become something else than 0, so that a mean mask is not the identity."""
    return site.kind.endswith("alpha")


def slope(site: Site, x: Tensor) -> Tensor:
    """The derivative of a site's output with respect to its keep bits, unit by unit.

    Args:
        site: The site.
        x: Its input.

    Returns:
        The derivative, of the shape of ``x``.
    """
    if not _is_alpha(site):
        return x * (1.0 / (1.0 - site.p))
    one = torch.ones((), dtype=x.dtype, device=x.device)
    return apply_mask(site.kind, x, one, site.p) - apply_mask(site.kind, x, one - one, site.p)


def heads_of(
    sampler: DropoutSampler, program: Program, batch: Batch, derivatives: Linearisation, seed: int
) -> tuple[Head, ...]:
    """For each output its last site, if the output is affine in it.

    Candidates are read from autograd's graph and confirmed, once for a model, by passes with redrawn masks.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        derivatives: Derivatives at the mean mask.
        seed: Seed of the passes that confirm.

    Returns:
        The confirmed heads.
    """
    if program.mode != "vmap":
        return ()
    heads: list[Head] = []
    taken: Tensor | None = None  # outputs that depend on a later site
    for site, jacobian in reversed(list(zip(program.sites, derivatives.in_outputs, strict=True))):
        if site.active and not expandable(site):  # earlier sites are followed by more than linear operations
            break
        if not site.active or jacobian is None:
            if (
                site.active and (g := derivatives.in_masks[site.index]) is not None
            ):  # such as feature dropout: never a head
                last = g.abs().amax(dim=(0, 2)) > 0
                taken = last if taken is None else taken | last
            continue
        outputs = jacobian.abs().amax(dim=(0, 2)) > 0
        affine = derivatives.affine[site.index]
        assert affine is not None
        taken, outputs = (outputs, outputs) if taken is None else (taken | outputs, outputs & ~taken)
        outputs = outputs & affine.to(outputs.device)
        if outputs.any():
            slopes = derivatives.in_masks[site.index]
            heads.append(Head.of(site, jacobian * outputs[None, :, None], slopes))
    proved = program.facts.setdefault("heads", {})  # by site, the outputs that were looked at, and those that passed
    confirmed = []
    for head in heads:
        seen, affine = proved.get(head.site.index, (~head.outputs, None))
        if (head.outputs & ~seen).any():
            affine = _prove(sampler, program, batch, head, seed)
            proved[head.site.index] = head.outputs, affine
        if (head.outputs & affine).any():
            confirmed.append(head.for_outputs(affine))
    return tuple(confirmed)


def _prove(sampler: DropoutSampler, program: Program, batch: Batch, head: Head, seed: int) -> Tensor:
    """For which outputs a head is one.

    Its masks alone are put to their mean, or redrawn: outputs must move by jacobian · slope · (change of masks).
    """
    part = batch[: min(batch.rows, _CHECK_ROWS)]
    keys = pass_keys(seed, streams.HEAD_CHECK, 0, range(2 * _CHECKS))
    drawn = [sampler.draw(site, keys[:_CHECKS], part.rows, 0) for site in program.sites]
    redrawn = list(drawn)
    held = held_sites(program, [head])
    redrawn[head.site.index] = None if held else sampler.draw(head.site, keys[_CHECKS:], part.rows, 0)
    head_of_part = [head.select(torch.arange(part.rows, device=head.jacobian.device))]
    h, s2 = reduced_passes(sampler, program, part, drawn, head_of_part)
    again, _ = reduced_passes(sampler, program, part, redrawn, head_of_part)
    scale = s2.sqrt().amax(dim=(0, 1)) + h.double().abs().amax(dim=(0, 1)) * 1e-3 + _TINY
    limit = 1e-9 if h.dtype == torch.float64 else 2e-4
    return ((h - again).abs().amax(dim=(0, 1)) <= limit * scale) & head.outputs


def reduced_passes(
    sampler: DropoutSampler,
    program: Program,
    batch: Batch,
    masks: Sequence[Tensor | None],
    heads: Sequence[Head],
) -> tuple[Tensor, Tensor]:
    """Passes with the heads' masks averaged out.

        h = D − Σ z ξ,  s² = p q Σ z²

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        masks: Per site, keep bits (passes, *mask), or ``None``: held at their mean.
        heads: The heads; without any, h is the output D and s² is 0.

    Returns:
        h and s², each (passes, rows, width), the latter in double precision.
    """
    return whole_and_reduced_passes(sampler, program, batch, masks, heads)[1:]


def whole_and_reduced_passes(
    sampler: DropoutSampler,
    program: Program,
    batch: Batch,
    masks: Sequence[Tensor | None],
    heads: Sequence[Head],
) -> tuple[Tensor, Tensor, Tensor]:
    """The same passes with all masks drawn, and with the heads' masks averaged out.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        masks: Per site, keep bits (passes, *mask), or ``None``: held at their mean, see :func:`held_sites`.
        heads: The heads.

    Returns:
        D, h and s², each (passes, rows, width); see :func:`reduced_passes`.
    """
    if not heads:
        out = sampler.run_masks(program, batch, masks)
        return out, out, torch.zeros_like(out)
    drawn = [m for m in masks if m is not None]

    def one_pass(*pass_masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        remaining = iter(pass_masks)
        by_site = [None if m is None else next(remaining) for m in masks]
        with (probe := SiteProbe(program.sites, by_site, {}, fills=False)):
            D = h = sampler.forward(program.model, batch.map(torch.clone, batch.rows))
        s2 = torch.zeros_like(h, dtype=torch.float64)
        for head in heads:
            site, keep = head.site, by_site[head.site.index]
            z = by_row(slope(site, probe.inputs[site.index])[None], site, batch.rows)[0].to(head.jacobian.dtype)
            if keep is not None:
                xi = by_row(keep[None], site, batch.rows)[0].to(z.dtype) - (1.0 - site.p)
                h = h - _per_row(head.jacobian, z * xi)
            s2 = s2 + (site.p * (1.0 - site.p)) * head.variance(z)
        return D, h, s2

    with torch.no_grad():
        return vmap(one_pass, randomness="error")(*drawn)


def _per_row(jacobian: Tensor, values: Tensor) -> Tensor:
    """Σ_u jacobian[n, k, u] values[n, u]."""
    if jacobian.shape[1] == 1:
        return (jacobian[:, 0] * values).sum(dim=-1, keepdim=True)
    return torch.einsum("nku,nu->nk", jacobian, values)
