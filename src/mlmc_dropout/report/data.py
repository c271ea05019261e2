"""What a page shows besides the estimates: inputs, labels, names, and a few single passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlmc_dropout.errors import InputError, ResultFileError
from mlmc_dropout.files import read_archive, write_archive
from mlmc_dropout.report.names import check_class_names, class_words, is_classes, places
from mlmc_dropout.result import Result
from mlmc_dropout.result.arrays import leaves

__all__ = ["PageData", "class_numbers"]

Array = NDArray[Any]
MAX_FEATURES = 16  # of an input that is kept and shown as numbers
MAX_VALUES = 2_000_000  # of all inputs together
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError)


@dataclass(frozen=True, slots=True, eq=False)
class PageData:
    """What a page shows besides the estimates; everything is optional.

    Attributes:
        x: Inputs of a few numbers each, (inputs, features).
        feature_names: Names of the features.
        labels: True classes (inputs,), or true values (inputs, components).
        class_names: Names of the output components of a classifier.
        passes: Outputs of single passes of some inputs, (passes, some inputs, components).
        pass_rows: Which inputs these are.
        inputs: How many inputs were given, if they are one array, kept or not.
    """

    x: NDArray[np.float64] | None = None
    feature_names: tuple[str, ...] = ()
    labels: Array | None = None
    class_names: tuple[str, ...] = ()
    passes: NDArray[np.float64] | None = None
    pass_rows: tuple[int, ...] = ()
    inputs: int | None = None

    @classmethod
    def of(
        cls,
        x: Any = None,
        labels: Any = None,
        class_names: Sequence[str] = (),
        feature_names: Sequence[str] = (),
        passes: Mapping[int, Any] | None = None,
    ) -> PageData:
        """Read what users give.

        Args:
            x: Inputs of any kind; kept if they are one array of a few numbers each.
            labels: True classes or values, one per input.
            class_names: Names of the classes.
            feature_names: Names of the features; those of a data frame by default.
            passes: Some inputs by number, each with outputs of single passes, (passes, *out).

        Returns:
            What the page can show.
        """
        names = tuple(map(str, feature_names)) or tuple(map(str, getattr(x, "columns", ())))
        kept, counted = _table(x), len(x) if hasattr(x, "shape") and len(x.shape) else None
        rows = sorted(passes or {})
        drawn = (
            [np.reshape(np.asarray(passes[i], dtype=np.float64), (len(passes[i]), -1)) for i in rows] if passes else []
        )
        return cls(
            kept,
            names if kept is not None and len(names) == kept.shape[1] else (),
            None if labels is None else _labels(labels, tuple(map(str, class_names))),
            tuple(map(str, class_names)),
            np.stack(drawn, axis=1) if drawn else None,
            tuple(rows),
            counted,
        )

    def check(self, result: Result) -> None:
        """Refuse what does not belong to a result.

        Args:
            result: The result.

        Raises:
            InputError: If numbers of inputs, labels or class names do not fit.
        """
        rows, width = len(leaves(result.mean)[0]), result.structure.width
        inputs = self.inputs if self.x is None else len(self.x)
        for name, number in (("inputs", inputs), ("labels", None if self.labels is None else len(self.labels))):
            if number is not None and number != rows:
                raise InputError(f"there are {number} {name} for {rows} results; give one for each")
        check_class_names(result, self.class_names)
        if self.labels is None:
            return
        if is_classes(result) and self.labels.dtype.kind in "iu" and self.labels.size == rows * places(result):
            width = len(class_words(result))
            if self.labels.min() < 0 or self.labels.max() >= width:
                wrong = self.labels[(self.labels < 0) | (self.labels >= width)][0]
                raise InputError(f"the label {wrong} is no class: the model has {width} classes, 0 to {width - 1}")
        elif is_classes(result) and self.labels.dtype.kind in "iu":
            raise InputError(
                f"labels of shape {self.labels.shape} do not fit: every input has {places(result)} predictions of a "
                "class; give a whole number for each"
            )
        elif self.labels.ndim == 1 and self.labels.dtype.kind in "iu" and width > 1:
            if self.labels.min() < 0 or self.labels.max() >= width:
                wrong = self.labels[(self.labels < 0) | (self.labels >= width)][0]
                raise InputError(f"the label {wrong} is no class: the model has {width} outputs, 0 to {width - 1}")
        elif self.labels.size != rows * width:
            raise InputError(
                f"labels of shape {self.labels.shape} fit neither {width} classes (whole numbers, one per input) nor "
                f"{width} values per input; give one or the other"
            )

    def fitting(self, result: Result) -> tuple[PageData, list[str]]:
        """What belongs to a result; the rest is left out, so that no estimate is lost for want of a name.

        Args:
            result: The result.

        Returns:
            What fits, and sentences about what does not.
        """
        data, problems = self, []
        for empty in ({"class_names": ()}, {"labels": None}, {"x": None, "feature_names": (), "inputs": None}):
            kept = replace(PageData(), **{name: getattr(data, name) for name in empty})
            try:
                kept.check(result)
            except InputError as error:
                problems.append(f"{next(iter(empty)).replace('_', ' ')} are left out of the page: {error}")
                data = replace(data, **empty)
        return data, problems

    def save(self, path: Path) -> bool:
        """Write a file with everything that is there.

        Args:
            path: The file, ``.npz``.

        Returns:
            Whether there was anything to write.
        """
        arrays = {name: value for name in ("x", "labels", "passes") if (value := getattr(self, name)) is not None}
        header = {name: list(getattr(self, name)) for name in ("feature_names", "class_names", "pass_rows")}
        if not arrays and not any(header.values()):
            return False
        write_archive(path, header, arrays)
        return True

    @classmethod
    def load(cls, path: Path) -> PageData:
        """Read a file written by :meth:`save`; nothing in it is executed.

        Args:
            path: The file.

        Returns:
            Its content; nothing if there is no file.

        Raises:
            ResultFileError: If it is damaged.
        """
        if not path.is_file():
            return cls()
        try:
            header, arrays = read_archive(path)
            texts = {name: tuple(map(str, header[name])) for name in ("feature_names", "class_names")}
            return cls(
                arrays.get("x"),
                texts["feature_names"],
                arrays.get("labels"),
                texts["class_names"],
                arrays.get("passes"),
                tuple(map(int, header["pass_rows"])),
            )
        except _UNREADABLE as error:
            raise ResultFileError(f"{str(path)!r} is damaged or of another kind ({error})") from None


def class_numbers(labels: Sequence[str], class_names: Sequence[str]) -> NDArray[np.int64]:
    """Numbers of classes that are given by name.

    Args:
        labels: Names, one per input.
        class_names: Names of the classes, in the order of the outputs.

    Returns:
        The numbers.

    Raises:
        InputError: If names of classes are not known, or a label is none of them.
    """
    if not class_names:
        raise InputError(
            f"labels are names, as {labels[0]!r}; give class names in the order of the outputs as well, or numbers"
        )
    places = {name: number for number, name in enumerate(class_names)}
    unknown = next((label for label in labels if label.strip() not in places), None)
    if unknown is not None:
        raise InputError(f"the label {unknown!r} is none of the class names {', '.join(map(repr, class_names))[:200]}")
    return np.array([places[label.strip()] for label in labels], dtype=np.int64)


def _table(x: Any) -> NDArray[np.float64] | None:
    """The inputs as (inputs, features), if they are one array of a few numbers each."""
    if isinstance(x, Tensor):
        x = x.detach().cpu().double().numpy() if x.layout == torch.strided and not x.is_meta else None
    elif hasattr(x, "to_numpy"):
        x = x.to_numpy()
    elif isinstance(x, list):
        try:
            x = np.asarray(x)
        except (ValueError, TypeError):
            return None
    if not isinstance(x, np.ndarray) or not x.ndim or not len(x) or x.dtype.kind not in "fiub":
        return None
    table = x.reshape(len(x), -1)
    if not 1 <= table.shape[1] <= MAX_FEATURES or table.size > MAX_VALUES or not np.isfinite(table).all():
        return None
    return table.astype(np.float64)


def _labels(labels: Any, class_names: Sequence[str] = ()) -> Array:
    array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.dtype.kind in "UTO" and array.ndim == 1 and all(isinstance(label, str) for label in array):
        return class_numbers(array.tolist(), class_names)
    if not array.ndim or array.dtype.kind not in "fiub":
        raise InputError(
            f"labels are numbers or names of classes, one per input, or numbers, one per output: got {array.dtype} of "
            f"shape {array.shape}"
        )
    if array.dtype.kind == "f" and array.ndim == 1 and np.isfinite(array).all() and (array == np.round(array)).all():
        array = array.astype(np.int64)  # class numbers from a CSV file
    return array.astype(np.int64) if array.dtype.kind in "ub" else array
