"""7 · One file per method."""

from mlmc_dropout.estimators.base import Estimates, LevelEstimate, Method, Source, State, Task, merge_states
from mlmc_dropout.estimators.mlmc import MLMC
from mlmc_dropout.estimators.pooled import Pooled

__all__ = ["MLMC", "Estimates", "LevelEstimate", "Method", "Pooled", "Source", "State", "Task", "merge_states"]
