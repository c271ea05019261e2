"""The page about the command line has every command and every option, with its default."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from typer.main import get_command

from mlmc_dropout.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("command_options", ROOT / "scripts" / "command_options.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_has_its_section_and_table():
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert commands == set(re.findall(r"^## (\w+)$", PAGE, re.M))
    assert commands == set(re.findall(r"<!-- options of (\w+) -->", PAGE))


def test_the_tables_are_those_of_the_commands():
    script = _script()
    assert script.refreshed(PAGE) == PAGE, "run  python scripts/command_options.py"
    assert script.refreshed(PAGE.replace("| `1000` |", "| `10` |", 1)) == PAGE  # a wrong default is put right
    assert "| `--budget` | Passes per input | `2000` |" in script.table("demo")
