"""The command line: every command is a thin layer over the library.

One file per command; ``console`` prints, ``options`` holds what commands share. Exit codes: 0 done,
1 the run ended short of what was asked (Ctrl-C included) or broke, 2 the request cannot be carried out as stated;
after a signal that ends the process, 128 plus its number.

What takes long to import, torch above all, is imported inside the commands: help and version are there at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mlmc_dropout.cli import demo, estimate, evaluate, plan, report, reproduce, train
from mlmc_dropout.cli.console import print_error
from mlmc_dropout.cli.options import SHOWN
from mlmc_dropout.cli.words import as_options
from mlmc_dropout.errors import ExecutionError, MLMCDropoutError, NonFiniteOutputError
from mlmc_dropout.version import __version__

__all__ = ["app", "main"]

_ClickException = typer.BadParameter.__mro__[2]  # typer brings its own copy of click, or uses the installed one

_INTERRUPTED = 130  # what typer makes of Ctrl-C


def _bare_flags(params: Sequence[Any]) -> list[Any]:
    """Parameters of a help page: flags do not take a value, whatever their type says."""
    for parameter in params:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return list(params)


class _Command(TyperCommand):
    """A command whose help begins with its files, and ends with what is shown."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = _bare_flags(super().get_params(ctx))
        for parameter in params:
            if parameter.name == "help":
                parameter.rich_help_panel = SHOWN
        return params


class _Group(TyperGroup):
    """All commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare_flags(super().get_params(ctx))


app = typer.Typer(
    name="mlmc-dropout",
    cls=_Group,
    help="Error bars you can trust for MC dropout.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlmc-dropout {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Error bars you can trust for MC dropout."""


for _command in (
    demo.demo,
    estimate.estimate,
    evaluate.evaluate,
    plan.plan,
    train.train,
    reproduce.reproduce,
    report.report,
):
    _summary, *_ = (_command.__doc__ or "").partition("\n\n")  # options have help of their own: no list of arguments
    app.command(cls=_Command, help=_summary, short_help=_summary)(_command)  # as it is: click would cut it


def main(argv: list[str] | None = None) -> int:
    """Run a command line; errors come in one readable line, with a traceback only after ``--debug``.

    Args:
        argv: The arguments; those of the process by default.

    Returns:
        The exit code: 0 done, 1 ended short of the request or broken, 2 the request cannot be carried out as stated.
    """
    arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    debug = "--debug" in arguments
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="mlmc-dropout", standalone_mode=False)
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print_error("stopped")
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _explain(error)


def _explain(error: Exception) -> int:
    if isinstance(error, _ClickException):
        message = error.format_message()  # type: ignore[attr-defined]
        if message:  # an empty one has shown the help page
            where = getattr(getattr(error, "ctx", None), "command_path", "mlmc-dropout")
            print_error(f"{message[0].lower()}{message[1:].rstrip('.')} ({where} --help lists what there is)")
        return 2
    if isinstance(error, MLMCDropoutError):
        print_error(as_options(str(error)))
        return 1 if isinstance(error, (NonFiniteOutputError, ExecutionError)) else 2
    print_error(f"unexpected {type(error).__name__}: {error}; run again with --debug for the traceback")
    return 1
