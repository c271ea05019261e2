"""The folder of an estimate: written in one go, readable without executing anything.

result.npz   estimates, standard errors, levels (``mlmc_dropout.load_result``)
result.csv   the same estimates, one line per input and output component
quantities.csv  labels, entropies and so on, one line per input, where such were asked for
result.nc    the same as NetCDF, when xarray and a NetCDF writer are installed
page.npz     what the page shows besides: inputs of a few numbers each, labels, names, some passes
run.json     what was asked, how long it took, versions
report.html  the page
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mlmc_dropout.errors import InputError, MissingExtraError, ResultFileError
from mlmc_dropout.files import replacing
from mlmc_dropout.quantities.storage import columns
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.names import class_words, component_labels, component_names
from mlmc_dropout.report.numbers import matrix
from mlmc_dropout.result import Result, load_result
from mlmc_dropout.result.arrays import leaves

__all__ = ["FORMAT", "INFO", "Folder", "read_folder", "write_folder", "write_somewhere"]

FORMAT = "mlmc-dropout estimate 1"
INFO, RESULT, TABLE, QUANTITIES, NETCDF, DATA, PAGE = (
    "run.json",
    "result.npz",
    "result.csv",
    "quantities.csv",
    "result.nc",
    "page.npz",
    "report.html",
)
_COLUMNS = ("mean", "variance", "mean_stderr", "variance_stderr", "S2_mean", "S2_variance")
MOST_PLACES = 16  # values of a quantity that stand in one line


@dataclass(frozen=True, slots=True)
class Folder:
    """An estimate as its folder holds it.

    Attributes:
        path: The folder.
        result: The estimate.
        info: Request, warnings, time and versions, as in ``run.json``.
        data: What the page shows besides.
    """

    path: Path
    result: Result
    info: Mapping[str, Any]
    data: PageData

    @property
    def has_files(self) -> bool:
        """Whether tables were written beside the page; not for a page about a result in memory."""
        return "format" in self.info


def write_folder(path: Path, result: Result, info: Mapping[str, Any], x: Any = None) -> list[str]:
    """Write the folder of an estimate; each file appears complete or not at all.

    Args:
        path: The folder; it is made if need be.
        result: The estimate.
        info: Title, command, request, warnings and time, as plain data.
        x: The inputs, kept where they are a few numbers each, or all that the page shall show besides.

    Returns:
        Names of the files written.
    """
    path.mkdir(parents=True, exist_ok=True)
    result.save(path / RESULT)
    names = [RESULT]
    data = x if isinstance(x, PageData) else PageData.of(x)
    with replacing(path / TABLE) as scratch:
        write_csv(result, scratch, data.class_names)
    names.append(TABLE)
    (path / QUANTITIES).unlink(missing_ok=True)
    if lines := quantity_lines(result, data.class_names):
        with replacing(path / QUANTITIES) as scratch:
            _write_lines(scratch, lines)
        names.append(QUANTITIES)
    if _netcdf(result, path / NETCDF):
        names.append(NETCDF)
    (path / DATA).unlink(missing_ok=True)
    if data.save(path / DATA):
        names.append(DATA)
    written = {"format": FORMAT, "date": datetime.now(UTC).isoformat(timespec="seconds"), **info}
    with replacing(path / INFO) as scratch:
        scratch.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return [*names, INFO]


def write_somewhere(path: Path, result: Result, info: Mapping[str, Any], x: Any = None) -> tuple[Path, list[str], str]:
    """Write the folder of an estimate; if that fails, in another place, so that nothing computed is lost.

    Args:
        path: The folder.
        result: The estimate.
        info: As for :func:`write_folder`.
        x: As for :func:`write_folder`.

    Returns:
        The folder that was written, names of the files in it, and why it is another one; empty if it is not.

    Raises:
        ResultFileError: If nothing can be written anywhere.
    """
    problems = []
    for place in (path, None, Path.cwd(), Path.home()):
        try:
            folder = path if place is path else Path(tempfile.mkdtemp(prefix=f"{path.name or 'run'}-", dir=place))
            files = write_folder(folder, result, info, x)
        except OSError as error:
            problems.append(f"{place or tempfile.gettempdir()}: {error.strerror or error}")
            continue
        moved = f"{str(path)!r} could not be written ({problems[0].rpartition(': ')[2]})" if problems else ""
        return folder, files, moved
    raise ResultFileError(f"the results could not be written anywhere ({'; '.join(problems)}); make room and run again")


def read_folder(path: Path) -> Folder:
    """Read the folder of an estimate.

    Args:
        path: The folder.

    Returns:
        The estimate with its settings.

    Raises:
        ResultFileError: If a file is missing, damaged or of another run.
    """
    try:
        info = json.loads((path / INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError) as error:
        raise ResultFileError(f"{str(path)!r} is not a complete folder of an estimate: {error}") from None
    result = load_result(path / RESULT)
    data = PageData.load(path / DATA)
    try:
        data.check(result)
    except InputError as error:
        raise ResultFileError(f"{str(path / DATA)!r} does not belong to the result beside it: {error}") from None
    return Folder(path, result, info, data)


def write_csv(result: Result, path: Path, class_names: Sequence[str] = ()) -> None:
    """One line per input and output component, with full precision.

    Args:
        result: The estimate.
        path: The file.
        class_names: Names of the classes; they get a column of their own.
    """
    labels = component_labels(result)
    matrices = {name: matrix(values) for name in _COLUMNS if (values := getattr(result, name)) is not None}
    for name, values in columns(result.quantities):
        flat = values.reshape(len(values), -1)
        if len(labels) % flat.shape[1] == 0:  # of an input, or of a pixel: the same for all its classes
            matrices[name] = np.repeat(flat, len(labels) // flat.shape[1], axis=1)
    names = component_names(result, class_names) if class_names else None
    lines = [["input", "output", *(["name"] if names else []), *matrices]]
    for row in range(len(matrices["mean"])):
        for index, label in enumerate(labels):
            named = [names[index]] if names else []
            lines.append([str(row), label, *named, *(_exact(m[row, index]) for m in matrices.values())])
    _write_lines(path, lines)


def quantity_lines(result: Result, class_names: Sequence[str] = ()) -> list[list[str]]:
    """The table of what was asked of inputs as a whole: one line per input, after the heads of its columns.

    Args:
        result: The estimate.
        class_names: Names of the classes; labels are named by them.

    Returns:
        The lines; none if there is no such quantity.
    """
    heads, cells = ["input"], [[str(row) for row in range(len(leaves(result.mean)[0]))]]
    names = class_words(result, class_names) if class_names else []
    for name, values in columns(result.quantities):
        flat = values.reshape(len(values), -1)
        places = list(np.ndindex(values.shape[1:]))
        if len(places) > MOST_PLACES or (flat.shape[1] == result.structure.width > 1):
            continue  # one per output component: it is in the other table
        for index, place in enumerate(places):
            where = f"[{','.join(map(str, place))}]" if len(places) > 1 else ""
            heads.append(f"{name}{where}")
            cells.append([_exact(value) for value in flat[:, index]])
            if name == "label" and names:
                heads.append(f"label_name{where}")
                cells.append([names[int(value)] for value in flat[:, index]])
    return [heads, *map(list, zip(*cells, strict=True))] if len(heads) > 1 else []


def _exact(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.generic) else repr(value)


def _write_lines(path: Path, lines: Iterable[Sequence[str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def _netcdf(result: Result, path: Path) -> bool:
    """Write NetCDF if that is possible here; a convenience, so its absence is no error."""
    try:
        data = result.to_xarray()
        with replacing(path) as scratch:
            data.to_netcdf(scratch, engine="h5netcdf")
    except (MissingExtraError, ImportError, ValueError):
        return False
    return True
