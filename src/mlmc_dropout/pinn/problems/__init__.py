"""The problems that come with the library, one per file."""

from __future__ import annotations

from collections.abc import Iterable

from mlmc_dropout.pinn.problem import Problem
from mlmc_dropout.pinn.problems.boundary_layer import BoundaryLayer
from mlmc_dropout.pinn.problems.poisson import Poisson
from mlmc_dropout.pinn.problems.source_inference import SourceInference

__all__ = ["BoundaryLayer", "Poisson", "SourceInference", "by_name"]


def by_name(extra: Iterable[type[Problem]] = ()) -> dict[str, type[Problem]]:
    """The known problems, and those of the user, by the names used in config files.

    Args:
        extra: Problem classes of the user; one with a known name takes its place.

    Returns:
        Name -> class.

    Examples:
        >>> list(by_name())
        ['boundary-layer', 'source-inference', 'poisson']
    """
    known: tuple[type[Problem], ...] = (BoundaryLayer, SourceInference, Poisson, *extra)
    return {problem.name: problem for problem in known}
