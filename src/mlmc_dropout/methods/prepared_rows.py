"""What is computed once for some rows of a batch, before their passes: linear heads and a companion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.errors import ModelError
from mlmc_dropout.methods.base import Rows
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.surrogates.expansion import Expansion
from mlmc_dropout.surrogates.linear_head import Head, held_sites, whole_and_reduced_passes
from mlmc_dropout.surrogates.quadratic import Quadratic
from mlmc_dropout.surrogates.taylor import Taylor

__all__ = ["PreparedRows", "as_array", "check_squares", "selected"]

Array = NDArray[np.float64]


def as_array(values: Tensor) -> Array:
    """In double precision, for numpy.

    Args:
        values: Any tensor.

    Returns:
        An array of float64.
    """
    return np.asarray(values.double().cpu().numpy())


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRows:
    """What was computed for some rows of a batch.

    Attributes:
        rows: Which rows.
        heads: Linear heads whose masks are averaged out.
        surrogate: A companion of known moments, if there is one.
        without_heads: Why there can be no heads, if derivatives were missing.
    """

    rows: slice
    heads: tuple[Head, ...] = ()
    surrogate: Expansion | Quadratic | Taylor | None = None
    without_heads: str = ""

    def of(self, source: Source) -> Source:
        """The passes of these rows.

        Args:
            source: The passes of the whole batch.

        Returns:
            The part of it.
        """
        return source.part(self.rows)

    def select(self, rows: Rows, start: int) -> PreparedRows:
        """What was computed for some of these rows.

        Args:
            rows: Places among these rows.
            start: Place of the first of them in the batch that is made of the rows selected.

        Returns:
            The same of these rows; nothing is computed again.
        """
        places = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return replace(
            self,
            rows=slice(start, start + len(rows)),
            heads=tuple(head.select(places.to(head.jacobian.device)) for head in self.heads),
            surrogate=None
            if self.surrogate is None
            else self.surrogate.select(places.to(self.surrogate.variance.device)),
        )

    def joins(self, other: PreparedRows) -> bool:
        """Whether the rows after these can be computed together with them.

        Args:
            other: What was computed for the rows after these.
        """
        heads = [head.site.index for head in self.heads] == [head.site.index for head in other.heads]
        return heads and type(self.surrogate) is type(other.surrogate) and self.without_heads == other.without_heads

    def joined(self, other: PreparedRows) -> PreparedRows:
        """What was computed for these rows and for those after them, as one part.

        Args:
            other: What was computed for the rows after these.

        Returns:
            The joint part.
        """
        pairs = zip(self.heads, other.heads, strict=True)
        heads = tuple(mine.joined(theirs) for mine, theirs in pairs)
        surrogate = self.surrogate
        if surrogate is not None:
            surrogate = type(surrogate).beside([surrogate, other.surrogate])  # type: ignore[list-item]
        return replace(self, rows=slice(self.rows.start, other.rows.stop), heads=heads, surrogate=surrogate)

    def held(self, source: Source) -> tuple[int, ...]:
        """Sites whose masks need not be drawn: the heads', unless something is asked of whole passes.

        Args:
            source: The passes of these rows.

        Returns:
            Indices of the sites.
        """
        return held_sites(source.program, self.heads) if source.observation.plain else ()

    def outputs(self, source: Source, masks: Sequence[Tensor | None]) -> Tensor:
        """Passes as they are.

        Args:
            source: The passes of these rows.
            masks: A chunk of masks.

        Returns:
            The outputs in the model's type, (passes, rows, width).
        """

        def values(masks: Sequence[Tensor | None]) -> Tensor:
            return source.sampler.run_masks(source.program, source.batch, masks)

        out: Tensor = source.program.run_cached(values, ("outputs", *source.batch.values), masks)
        return out

    def passes(self, source: Source, masks: Sequence[Tensor | None]) -> tuple[Array | None, ...]:
        """Passes with the heads averaged out, and their companions.

        Args:
            source: The passes of these rows.
            masks: A chunk of masks, those of :meth:`held` sites ``None``.

        Returns:
            h, s² (``None`` without heads), G (``None`` without a companion) and the whole passes D, each (passes, rows,
            width); D is h where nothing is asked of whole passes.
        """
        if not self.heads and self.surrogate is None:
            D = source.as_numpy(self.outputs(source, masks))
            return D, None, None, D
        needs_whole = bool(self.heads) and not source.observation.plain

        def values(masks: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
            """Those of h, s², G and D that there are."""
            D, h, s2 = whole_and_reduced_passes(source.sampler, source.program, source.batch, masks, self.heads)
            G = () if self.surrogate is None else (self.surrogate.values(masks, source.batch.rows),)
            return h, *((s2,) if self.heads else ()), *G, *((D,) if needs_whole else ())

        sites = [head.site.index for head in self.heads]
        companion = () if self.surrogate is None else (type(self.surrogate).__name__, *self.surrogate.tensors)
        known = *(tensor for head in self.heads for tensor in head.tensors), *companion, *source.batch.values
        name = f"passes with heads at {sites}{', and as they are' if needs_whole else ''}"
        found = [as_array(t) for t in source.program.run_cached(values, (name, *known), masks)]
        h, *rest = found
        s2 = rest.pop(0) if self.heads else None
        G = None if self.surrogate is None else rest.pop(0)
        return h, s2, G, rest[0] if needs_whole else h


def check_squares(source: Source, outputs: Array, *squares: Array) -> None:
    """Refuse outputs whose squares do not fit double precision.

    Args:
        source: The passes of some rows.
        outputs: Outputs of passes.
        *squares: What was computed of squares of outputs.

    Raises:
        ModelError: If they are too large.
    """
    if all(np.isfinite(values.sum()) for values in squares):
        return
    raise ModelError(
        f"outputs of size {np.abs(outputs).max():.1e} have squares that float64 cannot hold, which their variance "
        "needs; scale the outputs"
    )


class _RowsPart(Protocol):
    """What was computed for some neighbouring rows of a batch."""

    @property
    def rows(self) -> slice:
        """Which rows."""

    def select(self, rows: Rows, start: int) -> Self:
        """The same for some of them, see :meth:`PreparedRows.select`."""

    def joins(self, other: Self) -> bool:
        """Whether the rows after these can be computed together with them."""

    def joined(self, other: Self) -> Self:
        """The same for these rows and for those after them."""


P = TypeVar("P", bound=_RowsPart)


def selected(parts: Sequence[P], rows: Rows) -> tuple[P, ...]:
    """What was computed for some rows of a batch; parts that have become small are joined.

    Args:
        parts: What was computed for all rows, part by part.
        rows: Places of the rows in the batch, in ascending order.

    Returns:
        The same for these rows.
    """
    most = max(part.rows.stop - part.rows.start for part in parts)
    edges = np.searchsorted(rows, [part.rows.start for part in parts] + [parts[-1].rows.stop])
    found: list[P] = []
    for part, (start, stop) in zip(parts, pairwise(edges.tolist()), strict=True):
        if start == stop:
            continue
        new = part.select(rows[start:stop] - part.rows.start, start)
        alone = stop - start == 1 or (found and found[-1].rows.stop - found[-1].rows.start == 1)
        if found and found[-1].joins(new) and (alone or stop - found[-1].rows.start <= most):
            new = found.pop().joined(new)
        found.append(new)
    return tuple(found)
