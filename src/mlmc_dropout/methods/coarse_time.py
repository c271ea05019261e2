"""Seconds of a coarse sample beside those of a pass, by a fixed model of a processor.

Operations alone flatter the coarse level: a pass is matrix products, and a coarse sample mostly looks up, exponentiates
and averages. Which of them pays must not depend on the machine or its load, so times are not measured but added up from
typical ones of a processor core; `benchmarks/coarse_times.py` prints them beside measured ones.
"""

from __future__ import annotations

from mlmc_dropout.sampling.source import Source
from mlmc_dropout.surrogates.linear import pass_operations

__all__ = ["time_of_sample", "times"]

# Nanoseconds, per input
_OPERATION = 1 / 60  # of matrix products and convolutions
_MASK = 6.0  # a unit of a mask: drawn, applied, and what is done beside it
_FEATURE = 8.0  # a number that is read off outputs and averaged
_SAMPLE = 200.0  # whatever a coarse sample is of
_LOOKED_UP, _ADDED = 0.05, 0.01  # a unit and output of the expansion, with masks of every row or of all rows


def times(source: Source, outputs: tuple[int, ...] | None = None) -> tuple[float, float]:
    """Nanoseconds of a pass and of a coarse sample of one input.

    Args:
        source: The passes of the inputs.
        outputs: Indices of the outputs that are expanded; ``None``: all.

    Returns:
        Both.
    """
    units = sum(site.units for site in source.program.active)
    expanded = source.program.structure.width if outputs is None else len(outputs)
    per_unit = _ADDED if source.sampler.masks == "shared" and source.batch.rows > 1 else _LOOKED_UP
    operations = pass_operations(source.sampler, source.program, source.batch)
    a_pass = _OPERATION * operations + _MASK * units + _FEATURE * source.observation.width
    return a_pass, _SAMPLE + _FEATURE * source.observation.squared().width + per_unit * units * expanded


def time_of_sample(source: Source, outputs: tuple[int, ...] | None = None) -> float:
    """Time of a coarse sample in passes.

    Args:
        source: The passes of the inputs.
        outputs: Indices of the outputs that are expanded; ``None``: all.

    Returns:
        The ratio.
    """
    a_pass, sample = times(source, outputs)
    return sample / a_pass
