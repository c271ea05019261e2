"""Quantities of users: any functions of arrays, tried before they are trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.base import Feature, Quantity, Question
from mlmc_dropout.quantities.jackknife import smooth
from mlmc_dropout.quantities.outputs import PAIR_OUTPUTS
from mlmc_dropout.quantities.view import View

__all__ = ["question_of"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Tree:
    """How arrays lie in a tuple or dict: their shapes, and where each of them is in a matrix."""

    keys: tuple[str, ...] | None  # of a dict
    single: bool
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, value: Any) -> _Tree:
        parts, keys = _parts(value)
        return cls(keys, not isinstance(value, (Mapping, tuple, list)), tuple(part.shape[1:] for part in parts))

    def split(self, matrix: Array) -> Any:
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        pieces = np.split(matrix, np.cumsum(sizes)[:-1], axis=-1)
        arrays = [p.reshape(len(matrix), *s) for p, s in zip(pieces, self.shapes, strict=True)]
        if self.single:
            return arrays[0]
        return tuple(arrays) if self.keys is None else dict(zip(self.keys, arrays, strict=True))


def question_of(quantity: Quantity, outputs: str, structure: Any) -> Question:
    """A user's quantity, ready to be asked.

    Args:
        quantity: Features and function.
        outputs: What the network returns.
        structure: Structure of the outputs.

    Returns:
        The question.

    Raises:
        InputError: If the functions fail on an example, or do not keep the inputs along the first axis.
    """
    example = _given(View(outputs, structure, torch.full((2, 3, structure.width), 0.5, dtype=torch.float64)))
    call, tree = _tried(quantity, example)

    def features(view: View) -> Tensor:
        rows = _matrix(call(_given(view)))
        return torch.from_numpy(rows.reshape(*view.carried.shape[:2], -1))

    name = f"features of {quantity.name}"  # features of one name are shared: no name of the library's own

    def combine(expected: Mapping[str, Array]) -> Array:
        means = expected[name]
        flat = means.reshape(-1, means.shape[-1])
        value = np.asarray(quantity.combine(tree.split(flat)), dtype=np.float64)
        return value.reshape(*means.shape[:2], *value.shape[1:])

    feature = Feature(name, features)
    trial = _matrix(call(example)).reshape(2, 3, -1)
    try:
        with np.errstate(all="ignore"):
            shape = combine({name: trial}).shape
    except Exception as error:
        raise InputError(
            f"combine= of the quantity {quantity.name!r} fails on expectations of its features: {error}"
        ) from error
    if shape[:2] != (2, 3):
        raise InputError(
            f"combine= of the quantity {quantity.name!r} does not keep the inputs along the first axis: use axis=-1"
        )
    return smooth(quantity.name, (feature,), combine)


def _given(view: View) -> Any:
    """What users' functions get: passes and inputs along one axis, in the structure of the outputs."""
    if view.outputs in PAIR_OUTPUTS:
        return tuple(part.flatten(0, 1).double().cpu().numpy() for part in view.pair)
    main = view.main.flatten(0, 1).double().cpu().numpy()
    return view.structure.unflatten(main)


def _tried(quantity: Quantity, example: Any) -> tuple[Callable[[Any], Any], _Tree]:
    """The features as a function of arrays: with arrays or with tensors inside, whichever works."""
    problems = []
    for call in (quantity.features, lambda given: quantity.features(_tensors(given))):
        try:
            with np.errstate(all="ignore"):
                found = call(example)
                parts, _ = _parts(found)
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")
            continue
        if all(len(part) == 6 for part in parts):
            return call, _Tree.of(found)
        problems.append(f"arrays {[part.shape for part in parts]} for 6 inputs; keep the inputs along the first axis")
    raise InputError(f"features= of the quantity {quantity.name!r} fails on outputs of 6 inputs: {problems[0]}")


def _tensors(given: Any) -> Any:
    if isinstance(given, dict):
        return {key: _tensors(value) for key, value in given.items()}
    return tuple(map(_tensors, given)) if isinstance(given, tuple) else torch.from_numpy(given)


def _parts(value: Any) -> tuple[list[Array], tuple[str, ...] | None]:
    if isinstance(value, Mapping):
        return [_array(part) for part in value.values()], tuple(value)
    if type(value) in (tuple, list):
        return [_array(part) for part in value], None
    return [_array(value)], None


def _array(value: Any) -> Array:
    values = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    if not values.ndim:
        raise TypeError("a single number; keep the inputs along the first axis, as with axis=-1")
    return values


def _matrix(value: Any) -> Array:
    parts: Sequence[Array] = _parts(value)[0]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=-1)
