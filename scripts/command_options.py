"""The tables of options in docs/command-line.md: every option of every command, with its default.

``python scripts/command_options.py`` rewrites what stands between ``<!-- options of NAME -->`` and ``<!-- end -->``;
tests/docs/test_command_line.py compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from typer.main import get_command

from mlmc_dropout.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
PLACE = re.compile(r"(<!-- options of ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
EVERYWHERE = ("--json", "--quiet", "--debug", "--help")  # said once, at the top of the page


def table(command: str) -> str:
    """The options of a command as a Markdown table; a description list would hide the defaults."""
    lines = ["| option | meaning | default |", "|---|---|---|"]
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    lines += [
        f"| {_name(parameter)} | {_plain(parameter.help)} | {_default(parameter)} |"
        for parameter in parameters
        if not set(parameter.opts) & set(EVERYWHERE)
    ]
    return "\n".join(lines)


def _name(parameter: object) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]  # type: ignore[attr-defined]
    if parameter.param_type_name == "argument":  # type: ignore[attr-defined]
        return f"`{parameter.name.upper()}`"  # type: ignore[attr-defined]
    return ", ".join(f"`{name}`" for name in names)


def _plain(text: str | None) -> str:
    return (text or "").removesuffix(".").replace("|", "\\|")


def _default(parameter: object) -> str:
    if parameter.required:  # type: ignore[attr-defined]
        return "required"
    value = parameter.default  # type: ignore[attr-defined]
    if getattr(parameter, "is_flag", False):
        return "on" if value else "off"
    return "none" if value is None else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def refreshed(page: str) -> str:
    """The page with all tables as they should be."""
    return PLACE.sub(lambda place: f"{place[1]}\n{table(place[2])}\n\n{place[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.name, file=sys.stderr)
