"""What commands print: tables that look good in a terminal and stay plain in a pipe."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import unicodedata
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mlmc_dropout.cli.words import as_options

__all__ = ["Output", "TextTable", "one_line", "print_error", "show_page", "wrapped"]

RICH_PADDING = 3  # of a column in a terminal: two blanks and what separates it
MAX_LENGTH = 600  # characters of an error message: a hostile name can be as long as it likes


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text.

    Attributes:
        caption: A line above; empty for none.
        columns: Column heads.
        rows: One cell per column each.
        text_columns: So many columns, from the left, are aligned to the left.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1

    def plain(self) -> str:
        """Aligned text without ornaments."""
        widths = [max(map(_width, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = [
            "  ".join(self._cell(i, c, widths[i]) for i, c in enumerate(row)).rstrip()
            for row in (self.columns, *self.rows)
        ]
        return "\n".join([self.caption, *lines] if self.caption else lines)

    def _cell(self, index: int, text: str, width: int) -> str:
        gap = " " * (width - _width(text))
        return text + gap if index < self.text_columns else gap + text

    def rich(self) -> Any:
        """The same for a terminal, without the caption: words may be broken into lines, numbers never."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAVY)
        for index, column in enumerate(self.columns):
            is_text = index < self.text_columns
            table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
        for row in self.rows:
            table.add_row(*row)
        return table

    def fitted(self, width: int) -> list[TextTable]:
        """Cut a table into several that fit a terminal, each with the columns of words.

        Args:
            width: Characters in a line.

        Returns:
            The tables; one of them is too wide only if a single column of numbers is.
        """
        sizes = [max(map(_width, column)) for column in zip(self.columns, *self.rows, strict=True)]
        words = [max(map(_longest_word, column)) for column in zip(self.columns, *self.rows, strict=True)]
        text = range(self.text_columns)
        room = width - sum(words[i] + RICH_PADDING for i in text) - RICH_PADDING
        groups: list[list[int]] = [[]]
        used = 0
        for i in range(self.text_columns, len(sizes)):
            if groups[-1] and used + sizes[i] + RICH_PADDING > room:
                groups.append([])
                used = 0
            groups[-1].append(i)
            used += sizes[i] + RICH_PADDING
        return [self._part([*text, *group], self.caption if not n else "") for n, group in enumerate(groups)]

    def _part(self, columns: Sequence[int], caption: str) -> TextTable:
        rows = [[row[i] for i in columns] for row in self.rows]
        return TextTable(caption, [self.columns[i] for i in columns], rows, self.text_columns)


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's findings go: text, one JSON object, or nothing but errors.

    Attributes:
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
    """

    as_json: bool = False
    quiet: bool = False

    @property
    def prints_text(self) -> bool:
        """Whether text is wanted."""
        return not (self.as_json or self.quiet)

    def say(self, text: str = "") -> None:
        """Print a line of text, if text is wanted.

        Args:
            text: The line.
        """
        if self.prints_text:
            _print(wrapped(text, sys.stdout))

    def table(self, table: TextTable) -> None:
        """Print a table, with ornaments on a terminal only.

        Args:
            table: The table.
        """
        if not self.prints_text:
            return
        if sys.stdout.isatty():
            from rich.console import Console

            console = Console(highlight=False)
            for part in table.fitted(console.width):
                if part.caption:
                    console.print(part.caption, style="bold", markup=False)
                console.print(part.rich())
        else:
            _print(table.plain())

    def note(self, text: str) -> None:
        """Print a remark on stderr, so that pipes stay clean.

        Args:
            text: The remark.
        """
        if not self.quiet:
            print(wrapped(f"note: {one_line(as_options(text))}", sys.stderr), file=sys.stderr)

    def warn(self, text: str) -> None:
        """Print a warning on stderr.

        Args:
            text: The warning.
        """
        if not self.quiet:
            print(wrapped(f"warning: {one_line(as_options(text))}", sys.stderr), file=sys.stderr)

    def data(self, content: dict[str, Any]) -> None:
        """Print the findings as one JSON object, if that was asked for.

        Args:
            content: Plain data.
        """
        if self.as_json:
            print(json.dumps(content, ensure_ascii=True))


def wrapped(text: str, stream: TextIO) -> str:
    """A line broken between words where a terminal ends; as it is in a pipe.

    Args:
        text: A line, or several.
        stream: Where it will be printed.

    Returns:
        The text.
    """
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = [textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n")]
    return "\n".join("\n".join(parts) for parts in lines)


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _width(text: str) -> int:
    return sum(not unicodedata.combining(character) for character in text)


def _longest_word(text: str) -> int:
    return max(map(_width, text.split()), default=0)


def one_line(text: str) -> str:
    """A text on one line, control characters shown rather than obeyed.

    Args:
        text: Any text.

    Returns:
        At most 600 printable characters.
    """
    flat = " ".join(text.split())
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in flat)
    return safe if len(safe) <= MAX_LENGTH else safe[: MAX_LENGTH - 1] + "…"


def show_page(page: str | Path | None) -> None:
    """Show a page in the user's browser, if there is one.

    Args:
        page: The file; None for none.
    """
    if page is not None:
        webbrowser.open(Path(page).resolve().as_uri())


def print_error(message: str) -> None:
    """Print the one line of an error on stderr.

    Args:
        message: What went wrong, and what to do.
    """
    line = f"error: {one_line(message)}"
    line = line if _unicode_stderr() else line.encode("ascii", "backslashreplace").decode()
    print(wrapped(line, sys.stderr), file=sys.stderr)


def _unicode_stderr() -> bool:
    return (getattr(sys.stderr, "encoding", None) or "").lower().replace("-", "") == "utf8"
