"""The dropout sites of a model, and a forward pass with explicit masks for all of them."""

from __future__ import annotations

import contextlib
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.interception import Interceptor, apply_mask
from mlmc_dropout.sampling.randomness import KernelMode, location

__all__ = ["MaskApplier", "Site", "forward_with_masks", "full_shape", "outputs_close", "select_sites"]

Forward = Callable[[Any, Batch], Any]

_MEANS = {"uniform": 0.5, "normal": 0.0}
_MADE_BY_HAND = ("bernoulli", "path", "uniform", "normal")  # kinds of numbers that the model itself asks for


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a forward pass drops units, or draws other random numbers.

    Attributes:
        index: Its position in the forward pass.
        name: The module it belongs to; ``#2`` for the second use of one module, and so on.
        kind: "dropout", "feature", "alpha", "feature_alpha", "attention", "recurrent"; or numbers that the model draws
            by itself: "path" (stochastic depth), "bernoulli" (a hand-made mask), "uniform", "normal".
        p: The dropout rate; 0 where the law is not Bernoulli.
        shape: Shape of the mask of one input row. If the mask follows the rows in no simple way, as in packed
            sequences, ``splits_by_row`` is false and this is the shape of the mask of the whole batch.
        row_axis: In a mask for n rows this axis is n times as long; ``None``: the mask does not depend on the rows, as
            for dropout of weights.
        active: Whether anything is drawn there.
        splits_by_row: Whether it is known which entries of the mask belong to which row.
        law: "bernoulli", "uniform" or "normal".
        model_p: The rate that the model itself has there, before ``rates`` changed it.
        in_kernel: Whether only the kernel is seen, not the call from Python: such passes cannot be batched by vmap.
    """

    index: int
    name: str
    kind: str
    p: float
    shape: tuple[int, ...]
    row_axis: int | None
    active: bool = True
    splits_by_row: bool = True
    law: str = "bernoulli"
    model_p: float = 0.0
    in_kernel: bool = False

    @property
    def units(self) -> int:
        """Numbers in a mask, per input row where the rows have their own."""
        return int(torch.Size(self.shape).numel())

    @property
    def mask_bytes(self) -> int:
        """Bytes of such a mask."""
        return self.units * (1 if self.law == "bernoulli" else 4)

    @property
    def mean(self) -> float:
        """The mean of its numbers: 1 − p for keep bits."""
        return _MEANS.get(self.law, 1.0 - self.p)

    @property
    def made_by_hand(self) -> bool:
        """Whether the model asks for the numbers themselves and decides what to do with them."""
        return self.kind in _MADE_BY_HAND

    @property
    def expandable(self) -> bool:
        """Whether the network can be expanded in its masks."""
        return self.law == "bernoulli"


def outputs_close(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs agree up to rounding in their precision.

    Args:
        a: Outputs, whose last axis runs over the components.
        b: Outputs to compare with.

    Returns:
        True if they have the same shape and agree.
    """
    if a.shape != b.shape:
        return False
    tolerance = max(1e-4, 8.0 * torch.finfo(a.dtype).eps) if a.is_floating_point() else 0.0
    a, b = a.double(), b.double()
    scale = a.nan_to_num(0.0, 0.0, 0.0).abs().amax(dim=tuple(range(a.dim() - 1)))  # of each output component
    close = ((a - b).abs() <= tolerance * (a.abs() + scale)) | (a == b) | (a.isnan() & b.isnan())
    return bool(close.all())


# ------------------------------------------------------------------------------- selection of sites


def select_sites(
    sites: Sequence[Site],
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    rates: float | Mapping[str, float] | None = None,
) -> tuple[Site, ...]:
    """Apply the user's ``include``, ``exclude`` and ``rates``.

    Args:
        sites: The sites of the model.
        include: Glob patterns on names: all other sites are held at their mean.
        exclude: Glob patterns of sites that are held at their mean.
        rates: Another dropout rate for all sites, or by pattern.

    Returns:
        The sites with their rates, and ``active`` where anything is drawn.

    Raises:
        InputError: If a pattern matches no site, or asks for what the site cannot do.
        ModelError: If a rate is not in [0, 1).
    """
    names = [site.name for site in sites]
    for label, patterns in (("include", include), ("exclude", exclude), ("rates", rates)):
        if isinstance(patterns, str):
            raise InputError(f"{label} is a list of patterns: got the string {patterns!r}; write [{patterns!r}]")
        if patterns is None or isinstance(patterns, (int, float)):
            continue
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise InputError(f"{label}: no dropout site matches {pattern!r}; the sites are {names}")
    return tuple(_selected(site, include, exclude, rates) for site in sites)


def _selected(
    site: Site,
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    rates: float | Mapping[str, float] | None,
) -> Site:
    included = include is None or any(fnmatch.fnmatchcase(site.name, p) for p in include)
    excluded = exclude is not None and any(fnmatch.fnmatchcase(site.name, p) for p in exclude)
    on = included and not excluded
    p = _rate(site, rates)
    if not 0 <= p < 1:
        raise ModelError(
            f"the dropout rate at {site.name!r} is {p}, which drops everything or is no probability; use 0 <= p < 1"
        )
    if site.active and not on and site.law == "uniform":
        raise InputError(
            f"the uniform numbers that the model draws at {site.name!r} cannot be switched off from outside, because "
            "what it does with them is not known; switch that layer off in the model"
        )
    return replace(site, p=p, active=site.active and on and (p > 0 or site.law != "bernoulli"))


def _rate(site: Site, rates: float | Mapping[str, float] | None) -> float:
    if rates is None:
        return site.p
    if isinstance(rates, (int, float)):
        new_rate: float | None = float(rates)
    else:
        new_rate = next((float(p) for pattern, p in rates.items() if fnmatch.fnmatchcase(site.name, pattern)), None)
    if new_rate is not None and site.made_by_hand:
        raise InputError(
            f"rates: the numbers at {site.name!r} ({site.kind}) are drawn and scaled by the model itself; "
            "change the rate in the model, or name the sites that rates= is meant for"
        )
    return site.p if new_rate is None else new_rate


# ------------------------------------------------------------------------------ running with masks


class MaskApplier(Interceptor):
    """Applies explicit masks, one per site in the order of the forward pass, and checks that the sites are as expected.

    Args:
        sites: All sites of the forward pass.
        masks: Their masks; ``None`` holds a site at its mean.
        writes: Whether dropout in place changes its argument, as torch would.
        on_mask: Called before each mask is applied.
        rows: Input rows of the pass, from which the shapes of masks follow; ``None``: shapes are not checked.
        fills: Whether functions that fill a tensor with random numbers may do so: not under vmap.

    Attributes:
        sites_met: Number of sites met so far.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        masks: Sequence[Tensor | None],
        writes: bool = False,
        on_mask: Callable[[], None] | None = None,
        rows: int | None = None,
        fills: bool = True,
    ) -> None:
        super().__init__()
        self._sites, self._masks, self._rows, self._on_mask = sites, masks, rows, on_mask
        self.fills, self._writes = fills, writes
        self.sites_met = 0

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        """Apply the mask of the next site.

        Args:
            kind: Kind of dropout, as in ``Site.kind``.
            x: The activation.
            p: The dropout rate that the model has here.
            training: Whether torch would drop units here.
            shape: Shape of the mask.
            inplace: Whether torch would change ``x``.

        Returns:
            The activation after dropout.
        """
        site, keep = self._next(kind, p, shape)
        if keep is None:
            return x
        out = apply_mask(kind, x, keep, site.p)
        return x.copy_(out) if inplace and self._writes else out

    def draw(self, law: str, p: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the numbers of the next site.

        Args:
            law: "bernoulli", "uniform" on [0, 1), or standard "normal".
            p: Probability of 0, for "bernoulli".
            shape: Shape of the numbers.
            dtype: Their type.
            device: Where they go.

        Returns:
            The numbers; their mean where the site is held at its mean.
        """
        site, numbers = self._next(law, p, shape)
        if numbers is None:
            return torch.full(shape, site.mean, dtype=dtype, device=device)
        numbers = numbers.to(dtype)
        return numbers if numbers.shape == torch.Size(shape) else numbers.expand(shape).clone()

    def _next(self, kind: str, p: float, shape: tuple[int, ...]) -> tuple[Site, Tensor | None]:
        site = self._sites[self.sites_met] if self.sites_met < len(self._sites) else None
        if site is None or kind not in (site.kind, site.law) or len(site.shape) != len(shape):
            raise ModelError(
                f"the forward pass met {kind} ({location()}, mask {shape}) where "
                f"{site.name if site else 'nothing'!r} was expected; its control flow must not change from pass to pass"
            )
        if self._rows is not None and shape != full_shape(site, self._rows):
            raise ModelError(
                f"the mask at {site.name!r} has the shape {shape} instead of {full_shape(site, self._rows)}: it "
                "depends on which rows are computed together; give rows of one kind, or one batch at a time"
            )
        if isinstance(p, (int, float)) and not math.isclose(p, site.model_p, abs_tol=1e-9):
            raise ModelError(
                f"the dropout rate at {site.name!r} changed from {site.model_p} to {p}: it depends on the rows or on "
                "earlier passes; use a fixed rate for inference"
            )
        mask = self._masks[self.sites_met]
        self.sites_met += 1
        if mask is not None and self._on_mask is not None:
            self._on_mask()
        return site, mask


def full_shape(site: Site, rows: int) -> tuple[int, ...]:
    """The shape of a mask in which every row has its own units, if the mask follows the rows.

    Args:
        site: The site.
        rows: Number of input rows.

    Returns:
        The shape.
    """
    if site.row_axis is None:
        return site.shape
    return tuple(n * rows if axis == site.row_axis else n for axis, n in enumerate(site.shape))


def forward_with_masks(
    model: Any,
    forward: Forward,
    batch: Batch,
    sites: Sequence[Site],
    masks: Sequence[Tensor | None],
    writes: bool = False,
    on_mask: Callable[[], None] | None = None,
    check_shapes: bool = True,
    fills: bool = True,
) -> Any:
    """Run one forward pass with an explicit mask for every site.

    Args:
        model: What ``forward`` calls.
        forward: ``forward(model, batch)`` returns the outputs.
        batch: The inputs.
        sites: The sites that the pass will meet, in order.
        masks: Their masks; ``None``: nothing is drawn there.
        writes: Let dropout in place change its argument, as torch would.
        on_mask: Called before each mask is applied.
        check_shapes: Whether masks must have the shapes that follow from the number of rows.
        fills: Let functions fill tensors with random numbers, as torch would: not under vmap.

    Returns:
        What ``forward`` returns.

    Raises:
        ModelError: If the pass meets other sites, rates or shapes.
    """
    applier = MaskApplier(sites, masks, writes, on_mask, batch.rows if check_shapes else None, fills)
    kernels = KernelMode(applier) if any(site.in_kernel for site in sites) else contextlib.nullcontext()
    with kernels, applier:
        out = forward(model, batch)
    if applier.sites_met != len(sites):
        raise ModelError(
            f"the forward pass met {applier.sites_met} dropout sites instead of {len(sites)}; its control flow must "
            "not change from pass to pass"
        )
    return out
