"""``mlmc-dropout reproduce``: the figures and tables of the paper, with a verdict on each."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from mlmc_dropout.cli.console import Output, TextTable
from mlmc_dropout.cli.options import Debug, Json, Quiet, check_output
from mlmc_dropout.errors import InputError, MissingExtraError
from mlmc_dropout.report.formats import duration

__all__ = ["reproduce"]


def reproduce(
    ids: Annotated[list[str], typer.Argument(help="H F1 F2 F3 F4 I1 I2 I3 I4, or all.")],
    profile: Annotated[str, typer.Option(help="quick (minutes) or paper (with its settings, an hour).")] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for figures, numbers and verdicts.")] = Path("out"),
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Redo experiments of the paper and compare with what it reports.

    Args:
        ids: Names of experiments, or ``all``.
        profile: ``quick`` (minutes) or ``paper`` (the settings of the paper and its code, an hour).
        out: Folder for figures, numbers and verdicts.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If an experiment or the profile is unknown, or the folder cannot be written.
    """
    check_output(out)
    if out.is_file():
        raise InputError(f"--out {str(out)!r} is a file; give the name of a folder")
    from mlmc_dropout import reproduction
    from mlmc_dropout.report.reproduction import read_verdicts

    output = Output(as_json, quiet)
    selected = _selected(ids, reproduction.EXPERIMENTS)
    reproduction.reproduce(selected, profile, out, progress=output.prints_text)
    verdicts = read_verdicts(out)
    output.table(_table([v for v in verdicts if v["id"] in selected or "all" in selected]))
    page = _page(out, output)
    output.data({"out": str(out), "page": page, "verdicts": verdicts})


def _selected(ids: list[str], known: Collection[str]) -> list[str]:
    upper = [name.upper() for name in ids]
    if "ALL" in upper:
        return ["all"]
    unknown = [name for name in upper if name not in known]
    if unknown:
        raise InputError(f"unknown experiment {unknown[0]!r}; use {', '.join(known)} or all")
    return upper


def _table(verdicts: list[dict[str, Any]]) -> TextTable:
    rows = [(v["id"], v.get("title", ""), v.get("verdict", ""), duration(v.get("seconds"))) for v in verdicts]
    return TextTable("", ("id", "experiment", "verdict", "time"), rows, text_columns=3)


def _page(out: Path, output: Output) -> str | None:
    from mlmc_dropout.report import write_page

    try:
        page = write_page(out)
    except MissingExtraError as error:
        output.note(f"no page was written: {error}")
        return None
    output.say(f"Open the page: {page}")
    return str(page)
