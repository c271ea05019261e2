"""What outputs and classes are called: by the names that users give, or by their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlmc_dropout.errors import InputError
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS
from mlmc_dropout.result import Result

__all__ = ["check_class_names", "class_words", "component_labels", "component_names", "is_classes", "is_pair", "place"]
__all__ += ["place_words", "places"]


def is_classes(result: Result) -> bool:
    """Whether outputs are class probabilities.

    Args:
        result: The estimate.
    """
    return result.metadata.get("outputs") in CLASS_OUTPUTS


def is_pair(result: Result) -> bool:
    """Whether every output is the probability of one of two classes.

    Args:
        result: The estimate.
    """
    return result.metadata.get("outputs") == "binary-logits"


def component_labels(result: Result) -> list[str]:
    """Names of the output components: ``u[0]``, or just ``0`` for a plain tensor of scalars.

    Args:
        result: The estimate.

    Returns:
        One name per component.
    """
    labels = []
    for leaf, shape in result.structure.names():
        for index in np.ndindex(shape):
            where = place(index)
            labels.append(f"{leaf}[{where}]" if leaf and where else leaf or where or "0")
    return labels


def place(index: Sequence[int]) -> str:
    """An index in words.

    Args:
        index: Whole numbers.

    Returns:
        As in ``3,14``; empty for none.
    """
    return ",".join(map(str, index))


def place_words(index: Sequence[int]) -> str:
    """A place in an output, for people.

    Args:
        index: Whole numbers.

    Returns:
        Rows and columns where there are two.

    Examples:
        >>> place_words((3, 14)), place_words((5,)), place_words((1, 2, 3))
        ('row 3, column 14', 'position 5', 'position 1,2,3')
    """
    return f"row {index[0]}, column {index[1]}" if len(index) == 2 else f"position {place(index)}"


def component_names(result: Result, class_names: Sequence[str] = ()) -> list[str]:
    """Names of the output components, with those of classes where they are known.

    Args:
        result: The estimate.
        class_names: One per component, one per class, or the two of a single probability.

    Returns:
        One name per component.
    """
    names, width = list(class_names), result.structure.width
    if len(names) == width:
        return names
    if is_pair(result):
        return class_words(result, names)[1:] if width == 1 else component_labels(result)
    if not names and not is_classes(result):
        return component_labels(result)
    names = class_words(result, names)
    if len(names) == width:
        return names
    shape = result.structure.names()[0][1]
    return [f"{names[index[-1]]} at {place_words(index[:-1])}" for index in np.ndindex(shape)]


def class_words(result: Result, class_names: Sequence[str] = ()) -> list[str]:
    """What the classes are called: two for probabilities that stand alone.

    Args:
        result: The estimate, of classes.
        class_names: Names that were given.

    Returns:
        One name per class.
    """
    names = list(class_names)
    if is_pair(result):
        if len(names) == 1 == result.structure.width:
            return [f"not {names[0]}", names[0]]
        return names if len(names) == 2 and result.structure.width != 2 else ["no", "yes"]
    shape = result.structure.names()[0][1]
    classes = shape[-1] if shape else 1
    return names if len(names) == classes else [f"class {i}" for i in range(classes)]


def places(result: Result) -> int:
    """Predictions of a class per input: 1, or as many as there are pixels, words or separate probabilities.

    Args:
        result: The estimate, of classes.
    """
    return result.structure.width if is_pair(result) else result.structure.width // result.structure.names()[0][1][-1]


def check_class_names(result: Result, names: Sequence[str]) -> None:
    """Refuse names that belong neither to components nor to classes.

    Args:
        result: The estimate.
        names: The names.

    Raises:
        InputError: If their number is wrong.
    """
    width = result.structure.width
    allowed = {width}
    if is_pair(result):
        allowed.add(2)
    elif is_classes(result):
        allowed.add(result.structure.names()[0][1][-1])
    if names and len(names) not in allowed:
        what = f"{min(allowed)} {'classes' if is_classes(result) else 'outputs'}"
        raise InputError(f"there are {len(names)} class names for {what}; give one for each")
