"""The coarse level S of some rows: what a sample of it costs, and its features, alone or beside those of passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.methods.base import Rows
from mlmc_dropout.methods.prepared_rows import PreparedRows, as_array
from mlmc_dropout.quantities.questions import Observation
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.surrogates.cyclic import SAMPLES, cyclic_values, operations_per_sample
from mlmc_dropout.surrogates.expansion import Expansion
from mlmc_dropout.surrogates.linear import Linearisation, expansion_of, pass_operations

__all__ = ["DESIGN", "CoarseRows", "both_levels", "coarse_cost", "coarse_features"]

Array = NDArray[np.float64]

DESIGN = SAMPLES  # coarse samples of a design
_PER_OUTPUT = 40.0  # reading an output, in operations of a matrix product
_LEAST_COST = 0.0002  # of a coarse sample: nothing is free


@dataclass(frozen=True, slots=True, eq=False)
class CoarseRows:
    """The coarse level of some rows.

    Attributes:
        passes: What passes and their companions G are computed with.
        centre: Outputs at the mean mask, (rows, width).
        outputs: Indices of the outputs that are expanded; ``None``: all.
    """

    passes: PreparedRows
    centre: Tensor
    outputs: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, rows: slice, source: Source, slopes: Linearisation, outputs: tuple[int, ...] | None = None
    ) -> CoarseRows:
        """From derivatives.

        Args:
            rows: Which rows of the batch.
            source: Their passes.
            slopes: Their derivatives.
            outputs: Indices of the outputs that were differentiated; ``None``: all.

        Returns:
            The coarse level.
        """
        expansion, centre = expansion_of(source.program, slopes), slopes.at_mean
        if source.sampler.masks == "shared":
            expansion, centre = expansion.units_first(), centre.t().contiguous().t()
        return cls(PreparedRows(rows, (), expansion), centre, outputs)

    def values(self, G: Tensor) -> Tensor:
        """The coarse level S from the expansion G.

        Args:
            G: Of the outputs that are expanded, (samples, rows, outputs).

        Returns:
            All outputs, (samples, rows, width).
        """
        centre = self.centre.to(G)
        if self.outputs is None:
            return G + centre  # in this order: laid out as G is
        S = centre.expand(len(G), -1, -1).clone()
        S[..., list(self.outputs)] += G
        return S

    def origin(self, observation: Observation) -> Array:
        """The main numbers at the mean mask.

        Args:
            observation: What is observed.

        Returns:
            Them, (rows, main width).
        """
        plain = replace(observation, questions=(), with_squares=False)
        main, _ = plain.observe(self.centre.double().cpu()[None], are_passes=False)
        return np.asarray(main[0].numpy())

    @property
    def rows(self) -> slice:
        """Which rows of the batch."""
        return self.passes.rows

    def select(self, rows: Rows, start: int) -> CoarseRows:
        """The coarse level of some of these rows.

        Args:
            rows: Places among these rows.
            start: Place of the first of them in the batch that is made of the rows selected.

        Returns:
            The same of these rows.
        """
        places = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.centre.device)
        centre = self.centre.t().index_select(1, places).t()  # laid out as it is
        return CoarseRows(self.passes.select(rows, start), centre, self.outputs)

    def joins(self, other: CoarseRows) -> bool:
        """Whether the rows after these can be computed together with them.

        Args:
            other: The coarse level of the rows after these.
        """
        return self.passes.joins(other.passes)

    def joined(self, other: CoarseRows) -> CoarseRows:
        """The coarse level of these rows and of those after them.

        Args:
            other: The coarse level of the rows after these.

        Returns:
            The joint one.
        """
        return CoarseRows(self.passes.joined(other.passes), torch.cat([self.centre, other.centre]), self.outputs)

    @property
    def expansion(self) -> Expansion:
        """G as a function of the masks."""
        assert isinstance(self.passes.surrogate, Expansion)
        return self.passes.surrogate


def coarse_cost(source: Source, outputs: tuple[int, ...] | None = None) -> float:
    """What a coarse sample costs beside a pass, by their floating-point operations.

    Args:
        source: The passes of the inputs.
        outputs: Indices of the outputs that are expanded; ``None``: all.

    Returns:
        c_0, in passes; 1 where the operations of a pass cannot be counted.
    """
    width, active = source.program.structure.width, source.program.active
    units, rates = sum(site.units for site in active), len({site.p for site in active})
    alike = source.batch.rows if source.sampler.masks == "shared" else 1
    operations = pass_operations(source.sampler, source.program, source.batch)
    expanded = width if outputs is None else len(outputs)
    spent = operations_per_sample(units, expanded, rates, alike) + _PER_OUTPUT * width
    return float(np.clip(spent / operations, _LEAST_COST, 1.0)) if operations else 1.0


def coarse_features(
    source: Source, rows: CoarseRows, observation: Observation, designs: NDArray[np.int64], stream: int
) -> Array:
    """Features of the coarse level, averaged over cyclic designs of masks.

    Args:
        source: The passes of these rows.
        rows: Their coarse level.
        observation: What is observed.
        designs: Numbers of the designs.
        stream: Number of the random stream.

    Returns:
        Means over designs, (designs, rows, features).
    """
    found = []
    locations = None if source.locations is None else torch.from_numpy(source.locations)
    origin = torch.from_numpy(rows.origin(observation))
    for G in cyclic_values(source, rows.expansion, pass_keys(source.seed, stream, designs, 0)):
        S = rows.values(G.double())  # as passes are: rounding must not tell the two levels apart
        _, features = observation.observe(S.cpu(), locations, are_passes=False, origin=origin, together=DESIGN)
        assert features is not None
        found.append(features.numpy())
    return observation.put_in_place(np.concatenate(found))


def both_levels(
    source: Source, rows: CoarseRows, observation: Observation, numbers: range, stream: int = 0
) -> list[Array]:
    """Passes and the coarse level at the same masks.

    Args:
        source: The passes of some rows.
        rows: The coarse level of these rows.
        observation: What is observed.
        numbers: Which passes.
        stream: Number of the random stream.

    Returns:
        Main numbers and features of passes, and of the coarse level: four arrays (passes, rows, …).
    """
    keys = pass_keys(source.seed, stream, 0, np.asarray(numbers))
    chunks = list(source.design_chunks(keys, 1))
    D = np.concatenate([as_array(rows.passes.outputs(source, masks)) for masks in chunks])
    source.check(D)
    # The expansion of all passes at once: how its sums are rounded must not depend on the chunks.
    masks = [None if site[0] is None else torch.cat(site) for site in zip(*chunks, strict=True)]
    S = rows.values(rows.expansion.values(masks, source.batch.rows).double()).cpu().numpy()
    locations = None if source.locations is None else torch.from_numpy(source.locations)
    origin = torch.from_numpy(rows.origin(observation))
    levels = ((D, True), (S, False))
    seen = [observation.observe(torch.from_numpy(v), locations, passes, origin) for v, passes in levels]
    main, of_D, main_S, of_S = (array.numpy() for pair in seen for array in pair if array is not None)
    return [main, of_D, main_S, observation.put_in_place(of_S)]
