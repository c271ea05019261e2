"""``mlmc-dropout report``: one self-contained page about a folder of findings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlmc_dropout.cli.console import Output, show_page
from mlmc_dropout.cli.options import Debug, Json, Open, Quiet, check_output
from mlmc_dropout.errors import InputError

__all__ = ["report"]


def report(
    run: Annotated[Path, typer.Argument(help="Folder written by estimate, evaluate, demo or reproduce.")],
    out: Annotated[Path | None, typer.Option(help="The page to write; report.html in the folder if not given.")] = None,
    show: Open = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """One self-contained HTML page about a run of estimate, evaluate, demo or reproduce.

    Args:
        run: Folder written by estimate, evaluate, demo or reproduce.
        out: The page to write; None for ``report.html`` in the folder.
        show: Show the page in a browser.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If the page cannot be written there.
        RunDirectoryError: If the folder holds nothing to report on.
    """
    from mlmc_dropout.report import write_page

    if out is not None:
        check_output(out)
        if out.is_dir():
            raise InputError(f"--out {str(out)!r} is a folder; give the name of a file, as in page.html")
    if run.is_file():
        raise InputError(f"{str(run)!r} is a file, and a page is about a folder: give {str(run.parent)!r}")
    page = write_page(run, out)
    output = Output(as_json, quiet)
    output.say(f"Open the page: {page}")
    if show:
        show_page(page)
    output.data({"page": str(page)})
