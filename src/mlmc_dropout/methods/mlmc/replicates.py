"""The replicates themselves: Y, ΔY, V and ΔV of every level, for those who want to look at more than their moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mlmc_dropout.methods.mlmc.allocation import check_counts
from mlmc_dropout.methods.mlmc.estimator import MLMC, coupled_prefixes
from mlmc_dropout.methods.mlmc.ladder import Ladder
from mlmc_dropout.methods.mlmc.summary import Levels
from mlmc_dropout.sampling.outputs import Transform
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source

__all__ = ["LevelReplicates", "replicates"]


@dataclass(frozen=True, slots=True)
class LevelReplicates:
    """The M replicates of a level.

    Every array is (M, N, *out), or a dict or tuple of such where the model returns several.

    Attributes:
        fidelity: T_ℓ.
        Y: Means Y(T_ℓ).
        V: Sample variances V(T_ℓ).
        dY: Increments ΔY; Y itself at level 0.
        dV: Increments ΔV; V itself at level 0.
    """

    fidelity: int
    Y: Any
    V: Any
    dY: Any
    dV: Any


def replicates(
    model: Callable[..., Any],
    x: Any,
    *,
    ladder: Ladder | Sequence[int] = (4, 8, 16),
    counts: Sequence[int],
    levels: Levels = "nested",
    transform: Transform | None = None,
    masks: Literal["independent", "shared"] = "independent",
    seed: int = 0,
) -> tuple[LevelReplicates, ...]:
    """What Algorithm 1 appends to its arrays, level by level: the same passes as in ``estimate`` with these counts.

    Everything is held in memory, Σ M_ℓ values of each kind per output component.

    Args:
        model: Any ``nn.Module`` or callable of tensors.
        x: Inputs, as for ``estimate``.
        ladder: Fidelities T_0 < … < T_L.
        counts: Replicates M_ℓ per level.
        levels: "nested" (Algorithm 1), "independent" or "uncoupled".
        transform: Applied to the output of each pass.
        masks: "independent" or "shared".
        seed: Names the masks.

    Returns:
        One entry per level.

    Raises:
        InputError: If an argument cannot work.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        >>> coarse, fine = replicates(model, torch.zeros(5, 1), ladder=(4, 8), counts=(6, 3))
        >>> coarse.Y.shape, bool(np.allclose(fine.dY, fine.Y - coarse.Y[:3]))
        ((6, 5, 1), True)
    """
    chosen = ladder if isinstance(ladder, Ladder) else Ladder(ladder)
    chosen.require_variances()
    method = MLMC(chosen, levels, check_counts(chosen, counts))
    sampler = DropoutSampler(model, masks, transform=transform)
    row, parts, structure = 0, [], None
    for batch in sampler.batches(x):
        program = sampler.prepare(batch)
        structure = program.structure
        parts.append(_matrices(method, Source(sampler, program, batch, seed, row)))
        row += batch.rows
    assert structure is not None
    collected = []
    for T, level in zip(chosen.fidelities, zip(*parts, strict=True), strict=True):
        kinds = (np.concatenate(kind, axis=1) for kind in zip(*level, strict=True))
        collected.append(LevelReplicates(T, *map(structure.unflatten, kinds)))
    return tuple(collected)


def _matrices(method: MLMC, source: Source) -> list[list[Any]]:
    """Per level Y, V, ΔY and ΔV of one batch, (M, rows, width) each, in the order of the replicates."""
    tasks, _ = method.bind(source).extend({}, method.min_cost())
    found: list[list[tuple[int, list[Any]]]] = [[] for _ in method.ladder]
    for task in tasks:
        for level, coarse, fine in coupled_prefixes(source, method, task):
            increments = [fine.Y, fine.V] if coarse is None else [fine.Y - coarse.Y, fine.V - coarse.V]
            found[level].append((task.first, [fine.Y, fine.V, *increments]))
    ordered = [[values for _, values in sorted(level, key=lambda entry: entry[0])] for level in found]
    return [[np.concatenate(kind) for kind in zip(*level, strict=True)] for level in ordered]
