"""What commands print: tables that look good in a terminal and stay plain in a pipe."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Output", "Table", "number", "one_line", "print_error"]

LONGEST = 600  # characters of an error message: a hostile name can be as long as it likes


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, column heads and rows of text; the first ``text_columns`` are aligned to the left."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1

    def plain(self) -> str:
        """Aligned text without ornaments."""
        widths = [max(map(_width, column)) for column in zip(self.columns, *self.rows, strict=True)]
        lines = ["  ".join(self._cell(i, c, widths[i]) for i, c in enumerate(row)).rstrip() for row in self._all()]
        return "\n".join([self.caption, *lines] if self.caption else lines)

    def _all(self) -> list[Sequence[str]]:
        return [self.columns, *self.rows]

    def _cell(self, index: int, text: str, width: int) -> str:
        gap = " " * (width - _width(text))
        return text + gap if index < self.text_columns else gap + text

    def rich(self) -> Any:
        """The same for a terminal."""
        from rich import box
        from rich.table import Table as RichTable

        table = RichTable(title=self.caption or None, box=box.SIMPLE_HEAVY, title_justify="left", title_style="bold")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index < self.text_columns else "right")
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's findings go: text, one JSON object, or nothing but errors."""

    as_json: bool = False
    quiet: bool = False

    @property
    def talks(self) -> bool:
        """Whether text is wanted."""
        return not (self.as_json or self.quiet)

    def say(self, text: str = "") -> None:
        """A line of text."""
        if self.talks:
            _print(text)

    def table(self, table: Table) -> None:
        """A table, with ornaments on a terminal only."""
        if not self.talks:
            return
        if sys.stdout.isatty():
            from rich.console import Console

            Console(highlight=False).print(table.rich())
        else:
            _print(table.plain())

    def note(self, text: str) -> None:
        """A remark on stderr, so that pipes stay clean."""
        if not self.quiet:
            print(f"note: {one_line(text)}", file=sys.stderr)

    def data(self, found: dict[str, Any]) -> None:
        """The findings as one JSON object, if that was asked for."""
        if self.as_json:
            print(json.dumps(found, ensure_ascii=True))


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _width(text: str) -> int:
    return sum(not unicodedata.combining(character) for character in text)


def one_line(text: str) -> str:
    """``text`` on one line, control characters shown rather than obeyed."""
    flat = " ".join(text.split())
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in flat)
    return safe if len(safe) <= LONGEST else safe[: LONGEST - 1] + "…"


def print_error(message: str) -> None:
    """The one line of an error, on stderr."""
    line = f"error: {one_line(message)}"
    print(line.encode("ascii", "backslashreplace").decode() if not _unicode_stderr() else line, file=sys.stderr)


def _unicode_stderr() -> bool:
    return (getattr(sys.stderr, "encoding", None) or "").lower().replace("-", "") == "utf8"


def number(value: float, digits: int = 3) -> str:
    """A number for a table: few digits, no needless exponent.

    >>> number(1000.0), number(0.000123456), number(12.3456), number(1893.2, 2)
    ('1000', '0.000123', '12.3', '1900')
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return str(int(value))
    rounded = float(f"{value:.{digits}g}")
    return str(int(rounded)) if 10 ** (digits - 1) <= abs(rounded) < 1e7 else f"{rounded:.{digits}g}"
