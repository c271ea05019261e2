"""The first-order expansion of a network in its masks, whose mean and variance are known.

Let q = 1 − p be a unit's probability to be kept, ξ = keep − q its centred mask, and g the gradient
of an output with respect to it. Then G = Σ g ξ has mean 0 and variance Σ g² p q, exactly. It shares
its masks with the real passes, so that subtracting it removes much of their variance and adds no bias.

Sites whose draws are not keep bits (uniform numbers, normals) are left out: they stay at their mean where gradients are
taken, and G is a function of the other sites only, which leaves its moments as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.sampler import DropoutSampler, Program
from mlmc_dropout.sampling.sites import MaskApplier, Site, full_shape
from mlmc_dropout.surrogates.affine_check import only_linear
from mlmc_dropout.surrogates.derivatives import count_cost, differentiate, expandable
from mlmc_dropout.surrogates.scale import binary_scale, sum_of_squares

__all__ = [
    "Expansion",
    "Linearisation",
    "SiteProbe",
    "by_row",
    "cat_or_none",
    "contract",
    "derivative_cost",
    "expansion_of",
    "has_derivatives",
    "linearise",
    "outputs_at_mean",
    "pass_operations",
    "supported",
    "units_first",
]

_CONVERTED = 1 << 19  # numbers that bits of masks become at once
_ROWS_COUNTED = 16  # linear maps compute so many rows at least (see sampling.interception)
PASSES_OF_A_GRADIENT = 4  # memory of a pass that keeps what its backward pass needs, in passes


@dataclass(frozen=True, slots=True)
class Linearisation:
    """Derivatives of every output at the mean mask, row by row.

    Attributes:
        rows: Number of rows.
        device: Where the tensors are.
        in_masks: Per site, derivatives of the outputs with respect to the keep bits, (rows, outputs, units); ``None``
            where nothing is dropped.
        in_outputs: Per site, derivatives with respect to the site's output, (rows, width, units) or ``None``.
        affine: Per site, bool (width,): whether only linear operations lie between the site and an output.
        cost: Cost of the derivatives in passes.
        at_mean: The outputs at the mean mask, (rows, width).
    """

    rows: int
    device: torch.device | None
    in_masks: tuple[Tensor | None, ...]
    in_outputs: tuple[Tensor | None, ...]
    affine: tuple[Tensor | None, ...]
    cost: float
    at_mean: Tensor


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


def supported(program: Program) -> bool:
    """Whether a program can be expanded.

    There must be keep bits, and each must belong to one input row, so that all rows can be differentiated together.

    Args:
        program: A prepared model.

    Returns:
        True if it can.
    """
    axes = [s.row_axis for s in program.active if expandable(s)]
    split = all(s.splits_by_row for s in program.active) and not any(s.in_kernel for s in program.sites)
    return program.rows_independent and split and bool(axes) and None not in axes


def has_derivatives(program: Program) -> bool:
    """Whether the model has been differentiated before.

    Args:
        program: A prepared model.
    """
    return "affine" in program.facts


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


# ------------------------------------------------------------------------------- derivatives


class SiteProbe(MaskApplier):
    """Stores the inputs of the sites and adds offsets to their outputs, with respect to which one can differentiate.

    Args:
        sites: All sites of the forward pass.
        masks: Their masks; ``None`` holds a site at its mean.
        offsets: Offsets by index of site.
        fills: Whether functions that fill a tensor with random numbers may do so: not under vmap.

    Attributes:
        inputs: The input of each site, by its index.
    """

    def __init__(
        self, sites: Sequence[Site], masks: Sequence[Tensor | None], offsets: dict[int, Tensor], fills: bool = True
    ) -> None:
        super().__init__(sites, masks, fills=fills)
        self.inputs: dict[int, Tensor] = {}
        self._offsets = offsets

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        """Apply a mask, store the input and add the offset.

        Args:
            kind: Kind of dropout.
            x: The activation.
            p: The dropout rate.
            training: Whether torch would drop units here.
            shape: Shape of the mask.
            inplace: Whether torch would change ``x``.

        Returns:
            The site's output.
        """
        index = self.sites_met
        out = super().drop(kind, x, p, training, shape, inplace)
        self.inputs[index] = x
        return out + self._offsets[index] if index in self._offsets else out


def linearise(
    sampler: DropoutSampler, program: Program, batch: Batch, outputs: Sequence[int] | None = None
) -> Linearisation:
    """Derivatives at the mean mask.

    They take one forward pass and one backward pass per output component, shared by all rows, and work under
    ``no_grad`` and ``inference_mode``, too.

    Args:
        sampler: The sampler of the model.
        program: The prepared model, see :func:`supported`.
        batch: The inputs.
        outputs: Indices of the outputs to differentiate; all by default.

    Returns:
        The derivatives.

    Raises:
        DerivativeError: If the outputs cannot be differentiated.
    """
    wanted = range(program.structure.width) if outputs is None else outputs
    cost = derivative_cost(sampler, program, batch, wanted)
    name, facts = f"derivatives of {list(wanted)}", program.facts

    def compute(_: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """The outputs, and the derivatives that exist."""
        with torch.inference_mode(False):
            probe = _MeanPass(sampler, program, batch.map(torch.clone, batch.rows))
            per_output = differentiate(probe.outputs, probe.wanted, wanted)
        columns = iter(zip(*per_output, strict=True))
        found = [
            _stack_outputs(next(columns), s, batch.rows) if s.index in part else None
            for part in (probe.expanded, probe.offsets)
            for s in program.sites
        ]
        facts[name] = tuple(derivative is not None for derivative in found)
        if "affine" not in facts:
            facts["affine"] = tuple(probe.affine_outputs(site) for site in program.sites)
        return probe.value, *(derivative for derivative in found if derivative is not None)

    value, *there = program.run_cached(compute, (name, *batch.values), ())
    remaining = iter(there)
    every = [next(remaining) if exists else None for exists in facts[name]]
    in_masks, in_outputs = tuple(every[: len(program.sites)]), tuple(every[len(program.sites) :])
    return Linearisation(batch.rows, sampler.device, in_masks, in_outputs, facts["affine"], cost, value)


def derivative_cost(sampler: DropoutSampler, program: Program, batch: Batch, outputs: Sequence[int]) -> float:
    """What the derivatives of some outputs cost, counted once for so many of a model, on one row.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.
        outputs: Indices of the outputs.

    Returns:
        The cost in passes, the forward pass included.

    Raises:
        DerivativeError: If the outputs cannot be differentiated.
    """
    name = f"cost of {len(outputs)}"
    if name not in program.facts:
        with torch.inference_mode(False):
            probe = _MeanPass(sampler, program, batch[:1].map(torch.clone, 1))
            program.facts[name] = count_cost(probe.outputs, probe.wanted, outputs)
    return float(program.facts[name])


def outputs_at_mean(sampler: DropoutSampler, program: Program, batch: Batch) -> Tensor:
    """A pass with all masks at their mean.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.

    Returns:
        The outputs, (rows, width).
    """
    with torch.no_grad():
        return _MeanPass(sampler, program, batch.map(torch.clone, batch.rows)).outputs()


def pass_operations(sampler: DropoutSampler, program: Program, batch: Batch) -> float:
    """Floating-point operations of a pass of one row, as far as torch counts them; counted once for a model.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.

    Returns:
        The number; 0 if none of the model's operations is counted.
    """
    if "operations" not in program.facts:
        counter, first = FlopCounterMode(display=False), [0] * _ROWS_COUNTED
        with torch.enable_grad(), counter:  # kernels that have derivatives are those that are counted
            _MeanPass(sampler, program, batch.map(lambda t: t[first], _ROWS_COUNTED)).outputs()
        program.facts["operations"] = counter.get_total_flops() / _ROWS_COUNTED
    return float(program.facts["operations"])


_NO_OFFSET = ("feature", "bernoulli", "path")  # masks of whole channels, and those that the model itself applies


class _MeanPass:
    """A pass at the mean mask whose masks, and offsets after the sites, can be differentiated with respect to."""

    def __init__(self, sampler: DropoutSampler, program: Program, batch: Batch) -> None:
        self._sampler, self._program, self._batch = sampler, program, batch
        dtype = sampler.dtype or torch.get_default_dtype()
        self._masks = [
            torch.full(full_shape(site, batch.rows), site.mean, device=sampler.device, dtype=dtype)
            if site.active
            else None
            for site in program.sites
        ]
        sites = [site for site in program.sites if expandable(site)]
        self.expanded = {s.index: m.requires_grad_() for s in sites if (m := self._masks[s.index]) is not None}
        self.offsets = {
            s.index: torch.zeros_like(self.expanded[s.index]).requires_grad_()
            for s in sites
            if not s.kind.startswith(_NO_OFFSET)
        }
        self._leaves: tuple[Tensor, ...] = ()
        self.value = torch.empty(0)

    @property
    def wanted(self) -> list[Tensor]:
        """What to differentiate with respect to: masks, then offsets."""
        return [*self.expanded.values(), *self.offsets.values()]

    def outputs(self) -> Tensor:
        """Run the pass: (rows, width)."""
        with SiteProbe(self._program.sites, self._masks, self.offsets):
            out = self._sampler.call(self._program.model, self._batch.map(torch.clone, self._batch.rows))
        self._leaves = tuple(self._program.structure.leaves(out))
        flat = self._program.structure.flatten(out)
        self.value = flat.detach()
        return flat

    def affine_outputs(self, site: Site) -> Tensor | None:
        """Which outputs only linear operations connect with the site, bool (width,)."""
        if site.index not in self.offsets:
            return None
        offset = self.offsets[site.index]
        return torch.cat([torch.full((leaf[0].numel(),), only_linear(leaf, offset)) for leaf in self._leaves])


def _stack_outputs(parts: Sequence[Tensor | None], site: Site, rows: int) -> Tensor | None:
    """One gradient per output -> (rows, width, units); ``None`` if no output depends on the site.

    At least in single precision, so that rounding in sums of many terms does not change their moments.
    """
    gradient = next((p for p in parts if p is not None), None)
    if gradient is None:
        return None
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    filled = [(torch.zeros_like(gradient) if p is None else p).to(dtype) for p in parts]
    return torch.stack([by_row(p[None], site, rows)[0] for p in filled], dim=1)


def expansion_of(
    program: Program, derivatives: Linearisation, averaged_out: Mapping[int, Tensor] | None = None
) -> Expansion:
    """The first-order expansion over all sites except those that are averaged out in closed form.

    Where no output depends on any site to first order it is 0, and so is its variance.

    Args:
        program: The prepared model.
        derivatives: Its derivatives at the mean mask.
        averaged_out: By index of site, bool (width,): the outputs for which its masks are averaged out; by default
            none.

    Returns:
        The expansion.
    """
    averaged_out = averaged_out or {}
    gradients: list[Tensor | None] = []
    known = next((g.shape[1] for g in derivatives.in_masks if g is not None), program.structure.width)
    variance = torch.zeros(derivatives.rows, known, device=derivatives.device, dtype=torch.float64)
    for site, g in zip(program.sites, derivatives.in_masks, strict=True):
        if g is not None and site.index in averaged_out:
            g = g * ~averaged_out[site.index][None, :, None]
        gradients.append(g)
        if g is not None:
            variance = variance + sum_of_squares(g) * (site.p * (1.0 - site.p))
    return Expansion(program.sites, tuple(gradients), variance)
