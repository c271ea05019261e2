"""What ``estimate`` and ``evaluate`` read, who does the work, and what the user's own code makes of it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mlmc_dropout.cli.console import Output
from mlmc_dropout.cli.inputs import read_class_names, read_inputs, read_labels
from mlmc_dropout.cli.loading import read_model, read_transform, read_weights, with_weights
from mlmc_dropout.cli.words import as_options
from mlmc_dropout.errors import InputError, MLMCDropoutError, ModelError
from mlmc_dropout.quantities.class_axis import WITH_CLASSES, fitting_axis
from mlmc_dropout.sampling.sampler import DropoutSampler

__all__ = ["Files", "Material", "Work", "check_class_axis_told", "read_material", "run_model", "shows_progress"]

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Files:
    """What is read.

    Attributes:
        model: Name of the model.
        inputs: File of the inputs.
        weights: File of the state dict, or None.
        dtype: Type to convert inputs to, or None.
        labels: File of labels, or None.
        class_names: File of class names, or None.
        transform: Name of the transform, or None.
    """

    model: str
    inputs: Path
    weights: Path | None = None
    dtype: str | None = None
    labels: Path | None = None
    class_names: Path | None = None
    transform: str | None = None

    def plain(self) -> dict[str, str]:
        """What was given, by the names of the options."""
        names = ("model", "weights", "inputs", "dtype", "labels", "class_names", "transform")
        return {name: str(value) for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Work:
    """Who does it, and what is written.

    Attributes:
        out: The folder.
        workers: Number of processes.
        scheduler: Address of a Dask scheduler, or None.
        page: Whether to write the page.
        show: Whether to show it in a browser.
    """

    out: Path
    workers: int = 1
    scheduler: str | None = None
    page: bool = True
    show: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """What was read.

    Attributes:
        network: The model, with its weights.
        x: The inputs.
        labels: True classes or values, or None.
        class_names: Names of the classes; empty if not given.
        transform: What is applied to each pass, or None.
        doubt: A sentence about weights that may be random; empty if there is nothing to say.
    """

    network: Callable[..., Any]
    x: Any
    labels: Any
    class_names: tuple[str, ...]
    transform: Any
    doubt: str


def read_material(files: Files, seed: int) -> Material:
    """Read all files; the user's own code comes last.

    Args:
        files: What is read.
        seed: Seeds torch before the model is made.

    Returns:
        What they hold.

    Raises:
        InputError: If a file cannot be read, or files do not belong together.
        ModelError: If the model cannot be made.
    """
    x = read_inputs(files.inputs, files.dtype)
    names = () if files.class_names is None else read_class_names(files.class_names)
    labels = None if files.labels is None else _labels(files.labels, x, names)
    state = None if files.weights is None else read_weights(files.weights)
    transform = None if files.transform is None else read_transform(files.transform)
    network, doubt = read_model(files.model, seed, trained=state is not None)
    if state is not None and files.weights is not None:
        network = with_weights(network, state, files.weights)
    return Material(network, x, labels, names, transform, doubt or "")


def _labels(path: Path, x: Any, names: Sequence[str]) -> Any:
    labels = read_labels(path, names)
    first = next(iter(x.values())) if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x
    if len(labels) != len(first):
        raise InputError(f"there are {len(labels)} labels for {len(first)} inputs; give one for each")
    return labels


def run_model(call: Callable[[], _Found]) -> tuple[_Found, list[str]]:
    """Call something that runs the user's model; whatever that raises is bad input.

    Args:
        call: What to call.

    Returns:
        What it gave, and what was warned of on the way.

    Raises:
        ModelError: If the model fails.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = call()
        except MLMCDropoutError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
            first = (str(error).strip().splitlines() or [""])[0]
            where = ", ".join(getattr(error, "__notes__", ()))
            raise ModelError(
                f"the model fails on these inputs: {type(error).__name__}: {first}{f' ({where})' if where else ''}"
            ) from error
    said = (str(one.message) for one in caught if issubclass(one.category, UserWarning))
    return found, [as_options(message) for message in dict.fromkeys(said)]


def check_class_axis_told(material: Material, settings: Mapping[str, Any]) -> None:
    """Refuse outputs whose classes are, by names or labels, along another axis than the last.

    Args:
        material: Model, inputs, names and labels.
        settings: Arguments of ``estimate`` or ``evaluate``.

    Raises:
        InputError: If names or labels tell the axis, and it was not given.
    """
    names, labels = material.class_names, material.labels
    dense = np.shape(labels)[1:] if labels is not None else ()
    if settings["outputs"] not in WITH_CLASSES or settings["class_axis"] is not None or not (names or dense):
        return
    named = {name: settings[name] for name in ("include", "exclude", "rates")}
    sampler = DropoutSampler(material.network, transform=material.transform, **named)
    leaves = sampler.prepare(next(sampler.batches(material.x))).structure.names()
    sampler.release()
    shape = leaves[0][1]
    axis = fitting_axis(shape, dense, len(names)) if len(leaves) == 1 else None
    if axis is None or axis == len(shape):
        return
    told = [f"{len(names)} class names"] if names else []
    told += [f"labels of shape {np.shape(labels)}"] if dense else []
    raise InputError(
        f"an input has outputs of shape {shape}, and by the {' and '.join(told)} its classes are along axis {axis}: "
        f"add --class-axis {axis}"
    )


def shows_progress(output: Output) -> bool:
    """Whether somebody looks on.

    Args:
        output: Where findings are printed.
    """
    return output.prints_text and sys.stderr.isatty()
