"""8 · The result of a run: estimates, their standard errors, and diagnostics.

``value``   the result itself, statistics of levels, and how the run ended
``arrays``  names of its arrays, and arrays in the structure of a model's outputs
``saving``  to a file; ``loading`` from one, with checks
``text``    for terminals; ``export``: for xarray and pandas
"""

from mlmc_dropout.result.loading import load_result
from mlmc_dropout.result.value import LevelStats, Result, Status

__all__ = ["LevelStats", "Result", "Status", "load_result"]
