"""One self-contained HTML page about what a folder holds: an estimate, or experiments of the paper."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlmc_dropout.errors import MissingExtraError, RunDirectoryError
from mlmc_dropout.files import replacing

if TYPE_CHECKING:
    from mlmc_dropout.report.blocks import Page
    from mlmc_dropout.result import Result

__all__ = ["page_of", "render", "write_page", "write_result_page"]


def write_page(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page about a folder.

    Args:
        folder: A folder written by ``mlmc-dropout estimate``, ``demo`` or ``reproduce``.
        out: The file to write; ``report.html`` in the folder by default.

    Returns:
        The file written.

    Raises:
        RunDirectoryError: If the folder holds nothing to report on, or the page cannot be written.
        MissingExtraError: If jinja2 is not installed.
    """
    folder = Path(folder)
    return _write(render(page_of(folder)), folder / "report.html" if out is None else Path(out))


def write_result_page(
    result: Result,
    out: str | Path,
    x: Any = None,
    title: str = "Estimate",
    *,
    labels: Any = None,
    class_names: Sequence[str] = (),
    feature_names: Sequence[str] = (),
    passes: Mapping[int, Any] | None = None,
) -> Path:
    """Write the page about a result in memory.

    Args:
        result: The result.
        out: The file to write.
        x: The inputs. Estimates are plotted against one number each, drawn as maps over two; a few numbers are shown.
        title: Title of the page.
        labels: True classes or values, one per input: the page says how often the mean is right, and whether the
            spread knows where it is not.
        class_names: Names of the output components.
        feature_names: Names of the columns of ``x``; those of a data frame by default.
        passes: Some inputs by number, each with outputs of single passes, (passes, *out), for a histogram:
            ``{i: md.DropoutSampler(model).sample(x[[i]], 400)[:, 0]}``.

    Returns:
        The file written.

    Raises:
        InputError: If labels, names or passes do not belong to the result.
        RunDirectoryError: If the page cannot be written.
        MissingExtraError: If jinja2 is not installed.
    """
    from mlmc_dropout.report.data import PageData
    from mlmc_dropout.report.estimate import page
    from mlmc_dropout.report.folder import Folder

    data = PageData.of(x, labels, class_names, feature_names, passes)
    data.check(result)
    return _write(render(page(Folder(Path(out), result, {"title": title}, data))), Path(out))


def page_of(folder: Path) -> Page:
    """The page's content, by what the folder holds.

    Args:
        folder: A folder written by ``mlmc-dropout estimate``, ``demo`` or ``reproduce``.

    Returns:
        The page as plain values.

    Raises:
        RunDirectoryError: If the folder holds nothing to report on.
    """
    kind = _kind(folder)
    if kind == "evaluation":
        from mlmc_dropout.report import evaluation

        return evaluation.page(folder)
    if kind == "estimate":
        from mlmc_dropout.report import estimate
        from mlmc_dropout.report import folder as files

        return estimate.page(files.read_folder(folder))
    from mlmc_dropout.report import reproduction

    return reproduction.page(folder)


def _kind(folder: Path) -> str:
    from mlmc_dropout.report.folder import FORMAT, INFO

    try:
        if not folder.is_dir():
            raise RunDirectoryError(f"there is no folder {str(folder)!r}")
        if (folder / INFO).is_file() and _json(folder / INFO).get("format") == FORMAT:
            return "estimate"
        if (folder / "evaluation.json").is_file():
            return "evaluation"
        if any(folder.glob("*/verdict.json")):
            return "reproduction"
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{str(folder)!r} cannot be read: {error}") from None
    raise RunDirectoryError(
        f"{str(folder)!r} holds neither an estimate ({INFO}), an evaluation (evaluation.json) nor experiments "
        "(*/verdict.json); give a folder written by mlmc-dropout estimate, evaluate, demo or reproduce"
    )


def _json(path: Path) -> Mapping[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def render(page: Page) -> str:
    """HTML with everything inside: no scripts, nothing fetched from anywhere.

    Args:
        page: The page as plain values.

    Returns:
        The HTML text.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise MissingExtraError("jinja2", "report") from None
    environment = Environment(
        loader=PackageLoader("mlmc_dropout.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    from mlmc_dropout.report.colours import CLASS_COLOURS

    style = environment.get_template("style.css").render(class_colours=CLASS_COLOURS)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()  # nothing but this style is allowed
    return environment.get_template("page.html").render(page=page, style=style, style_hash=f"sha256-{digest}")


def _write(text: str, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            scratch.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return path
