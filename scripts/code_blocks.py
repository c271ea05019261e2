"""Code blocks of the documentation: found, run, and their shown output refreshed.

``python scripts/code_blocks.py README.md docs/index.md …`` runs the pages and rewrites the ``text`` blocks
that stand right after ``python`` or ``bash`` blocks with what these print. The tests do the same and
compare (tests/docs/test_code_blocks.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.M | re.S)
KNOWN = {"python", "bash", "toml", "text"}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, text, line, why it is not run, and the output shown after it."""

    language: str
    text: str
    line: int
    exempt: str = ""
    output: str | None = None
    output_span: tuple[int, int] | None = None


def pages() -> list[Path]:
    """Everything a reader may copy code from."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    found, matches = [], list(FENCE.finditer(page))
    for here, following in zip_longest(matches, matches[1:]):
        before = page[: here.start()].rstrip().rsplit("\n", 1)[-1]
        reason = re.fullmatch(r"\s*<!-- not run: (.+) -->", before)
        shown = following is not None and following["language"] == "text"
        if shown and page[here.end() : following.start()].strip():
            shown = False
        found.append(
            Block(
                here["language"],
                here["body"],
                page[: here.start()].count("\n") + 1,
                reason[1] if reason else "",
                following["body"] if shown else None,
                following.span("body") if shown else None,
            )
        )
    return found


def missing(block: Block) -> list[str]:
    """Packages that a block imports and that are not installed."""
    names = re.findall(r"^(?:import|from) (\w+)", block.text, re.M) if block.language == "python" else []
    return [name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None]


def run(path: Path) -> Iterator[tuple[Block, str]]:
    """Run a page's blocks in the current folder, one namespace for all; pairs (block, what it printed)."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.exempt or block.language in ("text", ""):
            _check_commands(block)
            continue
        if block.language not in KNOWN:
            raise AssertionError(f"{path}:{block.line}: what is a {block.language!r} block?")
        yield block, _run(block, path, namespace)


def _run(block: Block, path: Path, namespace: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(path), "exec"), namespace)
        elif block.language == "bash":
            for line in block.text.replace("\\\n", " ").splitlines():
                _shell(line.split(" #")[0].strip())
        else:
            tomllib.loads(block.text)
    return printed.getvalue()


def _shell(line: str) -> None:
    """Run ``mlmc-dropout``; for other programs check that what they are given exists."""
    words = shlex.split(line)
    if not words or words[0] in ("cd", "git"):
        return
    if words[0] == "mlmc-dropout":
        from mlmc_dropout.cli import main

        if main(words[1:]) != 0:
            raise AssertionError(f"{line!r} failed")
    elif words[0] == "make":
        _all_known(words[1:], re.findall(r"^([\w-]+):", _text("Makefile"), re.M), line)
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads(_text("pyproject.toml"))["project"]["optional-dependencies"]
        _all_known([name for group in re.findall(r"\[([\w,]+)\]", line) for name in group.split(",")], extras, line)
    elif words[0] == "python" and len(words) > 1:
        _all_known(words[1:2], [str(p.relative_to(ROOT)) for p in ROOT.glob("*/*.py")], line)
    else:
        raise AssertionError(f"nobody knows how to check {line!r}")


def _check_commands(block: Block) -> None:
    """Command lines that are shown but not run must at least be spelt right."""
    from typer.main import get_command

    from mlmc_dropout.cli import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for line in block.text.splitlines():
        if line.strip().startswith("mlmc-dropout "):
            words = line.split("#")[0].split()
            _all_known(words[1:2], [*commands, "--help", "--version"], line)
            known = (
                [name for option in commands[words[1]].params for name in option.opts] if words[1] in commands else []
            )
            _all_known([word.split("=")[0] for word in words[2:] if word.startswith("--")], known, line)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _all_known(names: list[str], known: object, line: str) -> None:
    unknown = [name for name in names if name not in known]  # type: ignore[operator]
    if unknown:
        raise AssertionError(f"{line!r} names {unknown[0]!r}, which does not exist")


def refresh(path: Path) -> None:
    """Put what blocks print into the ``text`` blocks after them."""
    page, moved = path.read_text(encoding="utf-8"), 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        for block, printed in list(run(path)):
            if block.output_span is not None:
                a, b = (place + moved for place in block.output_span)
                page = page[:a] + printed.rstrip() + "\n" + page[b:]
                moved += len(printed.rstrip()) + 1 - (b - a)
        sys.path.remove(folder)
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    from testing.outside.vision import declare_operators

    declare_operators()
    for name in sys.argv[1:]:
        refresh(Path(os.path.abspath(name)))
        print(name)
