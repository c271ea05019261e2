"""A model prepared once and called on batch after batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import InputError, did_you_mean
from mlmc_dropout.estimate import estimate
from mlmc_dropout.quantities.storage import columns
from mlmc_dropout.result import Result

__all__ = ["Predictor"]

Array = NDArray[Any]

_FIELDS = ("mean", "variance", "mean_stderr", "variance_stderr")
_NOT_FOR_BATCHES = ("checkpoint", "checkpoint_interval", "progress")


class Predictor:
    """Calls :func:`estimate` on batch after batch with the same settings.

    What depends on the model only is found at the first call and kept as long as the model lives; a call costs its
    passes and little else. A result depends on the batch and the settings, not on earlier calls. Rows are numbered from
    0 in every batch, so that equal batches get equal masks.

    It can be pickled, with its model, and sent to workers.

    Args:
        model: Any ``nn.Module`` or callable of tensors.
        settings: Arguments of :func:`estimate`, such as ``budget=30``; all but those about checkpoints and progress.

    Raises:
        InputError: If a setting is unknown or makes no sense for batches.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Dropout(0.1),
        ...                             torch.nn.Linear(8, 1))
        >>> predictor = Predictor(model, budget=30)
        >>> predictor(torch.zeros(4, 2)).mean.shape, predictor(torch.zeros(7, 2)).mean.shape
        ((4, 1), (7, 1))
    """

    def __init__(self, model: Callable[..., Any], **settings: Any) -> None:
        unknown = [name for name in settings if name not in (estimate.__kwdefaults__ or {})]
        if unknown:
            hint = did_you_mean(unknown[0], estimate.__kwdefaults__ or {})
            raise InputError(
                f"unknown settings {unknown}{hint}; those of a Predictor are the named arguments of estimate"
            )
        for name in _NOT_FOR_BATCHES:
            if name in settings:
                raise InputError(f"{name}= is for one long run, not for batch after batch; use estimate")
        if all(
            settings.get(name) is None for name in ("budget", "tolerance", "tolerance_variance", "counts", "decision")
        ):
            raise InputError(
                "give a stop rule: budget= (passes per input), tolerance=, tolerance_variance= or decision="
            )
        self.model = model
        self.settings = settings

    def __call__(self, x: Any) -> Result:
        """Mean and variance of the predictions for a batch, with standard errors.

        Args:
            x: The inputs, as for :func:`estimate`.

        Returns:
            The result.
        """
        return estimate(self.model, x, **self.settings)

    def arrays(self, x: Any) -> dict[str, Array]:
        """The same as plain arrays, for functions that map over batches.

        Args:
            x: The inputs, as for :func:`estimate`.

        Returns:
            ``mean``, ``variance``, ``mean_stderr`` and ``variance_stderr``, rows first, and ``passes`` of every row.
            Where the model returns several outputs, their names follow a dot, as in ``mean.logits``. Quantities have
            names as ``entropy`` and ``entropy_stderr``.
        """
        result = self(x)
        found: dict[str, Array] = {}
        for name in _FIELDS:
            found.update(_flat(name, getattr(result, name)))
        found["passes"] = result.passes
        return found | dict(columns(result.quantities))

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"Predictor({type(self.model).__name__}{settings})"


def _flat(name: str, value: Any) -> dict[str, Array]:
    """Arrays of nested outputs by dotted names."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value)  # type: ignore[assignment]
    else:
        return {name: np.asarray(value)}
    return {path: array for key, part in parts for path, array in _flat(f"{name}.{key}", part).items()}
