"""A result from a file, all of whose contents are checked."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlmc_dropout.errors import ResultFileError
from mlmc_dropout.files import read_archive
from mlmc_dropout.quantities.storage import unpack
from mlmc_dropout.result.arrays import ARRAYS, LEVEL_ARRAYS
from mlmc_dropout.result.saving import EQUAL, FORMAT, UNSIGNED, npz
from mlmc_dropout.result.value import LevelStats, Result, Status
from mlmc_dropout.sampling.outputs import Structure

__all__ = ["load_result"]

MAX_COST = 1e18  # passes


def load_result(path: str | os.PathLike[str]) -> Result:
    """Read a result written by :meth:`Result.save`; nothing in the file is executed.

    Args:
        path: The file, whose suffix ``.npz`` may be left out, or a folder that ``mlmc-dropout estimate`` has written.

    Returns:
        The result.

    Raises:
        ResultFileError: If the file is missing, damaged, of another kind or of a newer format.
    """
    path = Path(path) if Path(path).exists() else npz(path)  # ``save`` adds the suffix
    if path.is_dir():  # a folder that the command ``estimate`` has written
        path = path / "result.npz"
    try:
        header, arrays = read_archive(path, {UNSIGNED: False, EQUAL: True, FORMAT: True})
        if header["format"] not in (UNSIGNED, EQUAL, FORMAT):
            raise ResultFileError(f"{path}: result format {header['format']} is not {FORMAT}; update mlmc-dropout")
        return _rebuild(header, arrays)
    except ResultFileError:
        raise
    except FileNotFoundError:
        raise ResultFileError(f"{path}: no such file") from None
    except Exception as error:  # whatever contents of the wrong kind lead to
        raise ResultFileError(f"{path} is not a result file of mlmc-dropout, or is damaged ({error})") from None


def _rebuild(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Result:
    structure = Structure.from_json(header["structure"])
    quantities = unpack(header.get("quantities", {}), arrays, len(arrays["mean"]))
    _check_contents(header, arrays, structure)
    unflatten = structure.unflatten
    estimates = {name: unflatten(arrays[name]) if name in arrays else None for name in ARRAYS}
    levels = tuple(
        LevelStats(**plain, **{n: unflatten(arrays[k]) for n in LEVEL_ARRAYS if (k := f"level{i}.{n}") in arrays})
        for i, plain in enumerate(header["levels"])
    )
    return Result(
        **estimates,
        cost=header["cost"],
        levels=levels,
        status=Status[header["status"]],
        method=header["method"],
        seed=header["seed"],
        notes=tuple(header["notes"]),
        metadata=header["metadata"],
        structure=structure,
        quantities=quantities,
        passes=arrays.get("passes"),
        plain_passes=_plain_passes(header),
    )


def _plain_passes(header: dict[str, Any]) -> tuple[float, float]:
    """Those of both moments; unknown in files of earlier versions."""
    mean, variance = (math.nan if each is None else each for each in header.get("plain_passes", (None, None)))
    if not all(isinstance(each, (int, float)) and not each < 0 for each in (mean, variance)):
        raise ValueError("passes of plain averaging that are no numbers")
    return mean, variance


def _check_contents(header: dict[str, Any], arrays: dict[str, NDArray[Any]], structure: Structure) -> None:
    """Refuse values that no result has, with a ``ValueError``."""
    shape = arrays["mean"].shape
    if len(shape) != 2 or shape[1] != structure.width:
        raise ValueError(f"a mean of shape {shape} for outputs of width {structure.width}")
    expected = {*ARRAYS, *(f"level{i}.{name}" for i in range(len(header["levels"])) for name in LEVEL_ARRAYS)}
    if header["format"] == FORMAT and "passes" not in arrays:
        raise ValueError("no passes of inputs")
    passes = arrays.get("passes", np.ones(shape[:1]))
    if passes.shape != shape[:1] or passes.dtype != np.float64 or not ((passes >= 1) & (passes < MAX_COST)).all():
        raise ValueError("passes that no input has had")
    for name, values in arrays.items():
        if name == "passes":
            continue
        kind = np.dtype(bool) if name.endswith("_reliable") else np.dtype(np.float64)
        if name not in expected or values.shape != shape or values.dtype != kind:
            raise ValueError(f"an array {name!r} of shape {values.shape} and dtype {values.dtype}")
    if not all(np.isfinite(arrays[name]).all() for name in ("mean", "variance")):
        raise ValueError("estimates that are not finite")
    if any((arrays[name] < 0).any() for name in ("mean_stderr", "variance_stderr")):
        raise ValueError("negative standard errors")
    kinds: dict[str, Any] = {"cost": (int, float), "seed": int, "method": str, "metadata": dict, "notes": list}
    for name, kind in kinds.items():
        if not isinstance(header[name], kind) or isinstance(header[name], bool):
            raise ValueError(f"{name} = {header[name]!r}")
    counts = [level[name] for level in header["levels"] for name in ("fidelity", "count")]
    costs = [level["cost"] for level in header["levels"]]
    if not 1 <= header["cost"] < MAX_COST or not all(0 <= value < MAX_COST for value in (*counts, *costs)):
        raise ValueError("costs or counts out of range")
    if not all(type(value) is int for value in counts) or any(isinstance(value, bool) for value in costs):
        raise ValueError("counts that are not whole numbers")
    if not all(isinstance(note, str) for note in header["notes"]):
        raise ValueError("notes that are no text")
