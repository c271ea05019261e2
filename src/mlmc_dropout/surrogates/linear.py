"""Derivatives of every output at the mean mask, row by row, and the first-order expansion that they make.

Sites whose draws are not keep bits (uniform numbers, normals) are left out: they stay at their mean where gradients are
taken, and the expansion is a function of the other sites only, which leaves its moments as they are.
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
from mlmc_dropout.surrogates.expansion import Expansion, by_row
from mlmc_dropout.surrogates.scale import sum_of_squares

__all__ = [
    "Linearisation",
    "MeanPass",
    "SiteProbe",
    "derivative_cost",
    "expansion_of",
    "has_derivatives",
    "linearise",
    "outputs_at_mean",
    "pass_operations",
    "supported",
]

_ROWS_COUNTED = 16  # linear maps compute so many rows at least (see sampling.linear_maps)
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
            probe = MeanPass(sampler, program, batch.map(torch.clone, batch.rows))
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
            probe = MeanPass(sampler, program, batch[:1].map(torch.clone, 1))
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
        return MeanPass(sampler, program, batch.map(torch.clone, batch.rows)).outputs()


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
            MeanPass(sampler, program, batch.map(lambda t: t[first], _ROWS_COUNTED)).outputs()
        program.facts["operations"] = counter.get_total_flops() / _ROWS_COUNTED
    return float(program.facts["operations"])


_NO_OFFSET = ("feature", "bernoulli", "path")  # masks of whole channels, and those that the model itself applies


class MeanPass:
    """A pass at the mean mask whose masks, and offsets after the sites, can be differentiated with respect to.

    Args:
        sampler: The sampler of the model.
        program: The prepared model.
        batch: The inputs.

    Attributes:
        expanded: Masks by index of site.
        offsets: Offsets by index of site, where there are any.
        value: The outputs of the latest call of :meth:`outputs`, (rows, width).
    """

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
        """Which outputs only linear operations connect with the site, bool (width,).

        Args:
            site: A site of the program.
        """
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
