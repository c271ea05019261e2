"""A result as a file: its format, its place, and how it is written."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlmc_dropout.errors import InputError
from mlmc_dropout.files import write_archive
from mlmc_dropout.quantities.storage import pack
from mlmc_dropout.result.arrays import ARRAYS, LEVEL_ARRAYS, as_matrix

if TYPE_CHECKING:
    from mlmc_dropout.result.value import Result

__all__ = ["EQUAL", "FORMAT", "UNSIGNED", "check_place", "npz", "save_result"]

FORMAT = 3
EQUAL = 2  # the format before, in which all inputs had the same passes
UNSIGNED = 1  # the one before that, without a digest of the contents
_OTHER_FILES = {
    ".nc": "result.to_xarray().to_netcdf(path)",
    ".csv": "result.to_dataframe().to_csv(path)",
    ".json": "result.to_dataframe().to_json(path)",
    ".parquet": "result.to_dataframe().to_parquet(path)",
}


def save_result(result: Result, path: str | os.PathLike[str]) -> Path:
    """Write a result, as :meth:`Result.save` says.

    Args:
        result: The result.
        path: The file; the suffix ``.npz`` is added where it is missing.

    Returns:
        The path of the file written.

    Raises:
        InputError: If there is no such folder, or the suffix is that of another kind of file.
    """
    path = npz(path)
    check_place(path)
    arrays = {name: as_matrix(getattr(result, name)) for name in ARRAYS if getattr(result, name) is not None}
    arrays["passes"] = result.passes
    for index, level in enumerate(result.levels):
        for name in LEVEL_ARRAYS:
            if getattr(level, name) is not None:
                arrays[f"level{index}.{name}"] = as_matrix(getattr(level, name))
    header = {
        "format": FORMAT,
        "cost": result.cost,
        "plain_passes": [None if math.isnan(passes) else passes for passes in result.plain_passes],
        "status": result.status.name,
        "method": result.method,
        "seed": result.seed,
        "notes": list(result.notes),
        "metadata": dict(result.metadata),
        "structure": result.structure.to_json(),
        "levels": [
            {n: getattr(lv, n) for n in ("label", "fidelity", "count", "cost", "telescoping")} for lv in result.levels
        ],
    }
    header["quantities"], quantities = pack(result.quantities)
    write_archive(path, header, arrays | quantities)
    return path


def check_place(path: Path) -> None:
    """Refuse a file in a folder that is not there.

    Args:
        path: The file.

    Raises:
        InputError: If its folder does not exist.
    """
    if not path.absolute().parent.is_dir():
        raise InputError(f"{str(path)!r}: there is no folder {str(path.parent)!r}; make it first")


def npz(path: str | os.PathLike[str]) -> Path:
    """The file that a result is kept in.

    Args:
        path: Its name; the suffix ``.npz`` may be missing.

    Returns:
        Its name with the suffix.

    Raises:
        InputError: If the suffix is that of another kind of file.
    """
    path = Path(path)
    other = _OTHER_FILES.get(path.suffix)
    if other is not None:
        raise InputError(f"{str(path)!r}: results are saved as .npz files; use {other}")
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
