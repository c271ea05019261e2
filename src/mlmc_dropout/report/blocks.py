"""What a page is made of: sections of texts, facts, figures and tables, as plain values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Card", "Checks", "CodeBlock", "Facts", "Figure", "Note", "Page", "Section", "TableBlock", "Text"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph.

    Attributes:
        text: Its words.
        kind: Which part of the template writes it; so in all blocks.
    """

    text: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Note:
    """A warning in words.

    Attributes:
        text: Its words.
        calm: For remarks that ask for nothing.
        kind: ``"note"``.
    """

    text: str
    calm: bool = False
    kind: str = "note"


@dataclass(frozen=True, slots=True)
class Facts:
    """Terms and what they are.

    Attributes:
        items: (term, meaning).
        kind: ``"facts"``.
    """

    items: Sequence[tuple[str, str]]
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Checks:
    """Statements that hold or not.

    Attributes:
        entries: (sign, word for it, statement, finding).
        kind: ``"checks"``.
    """

    entries: Sequence[tuple[str, str, str, str]]
    kind: str = "checks"


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A command or a configuration to copy.

    Attributes:
        text: The lines to copy.
        label: What they are.
        kind: ``"code"``.
    """

    text: str
    label: str
    kind: str = "code"

    @classmethod
    def of_command(cls, command: str, label: str) -> CodeBlock:
        """A command with a line per option, so that no page breaks one in two; it can be pasted as it is.

        Args:
            command: As it was typed.
            label: What it is.

        Returns:
            The block.
        """
        lines: list[list[str]] = [[]]
        for word in shlex.split(command):
            if word.startswith("-"):
                lines.append([])
            lines[-1].append(word)
        return cls(" \\\n    ".join(shlex.join(line) for line in lines), label)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its caption.

    Attributes:
        drawings: SVG or img elements; the style sheet shows the one that fits the screen.
        caption: What is to be seen.
        summary: What the drawing shows, in words, for those who do not see it.
        key: (style, meaning) of lines and marks.
        kind: ``"figure"``.
    """

    drawings: Sequence[str]
    caption: str
    summary: str
    key: Sequence[tuple[str, str]] = ()
    kind: str = "figure"


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Rows under column heads; the first column heads its row.

    Attributes:
        caption: What it shows.
        columns: Column heads.
        rows: One cell per column each.
        note: A remark below.
        text_columns: So many columns, from the left, hold words.
        kind: ``"table"``.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    text_columns: int = 1
    kind: str = "table"


@dataclass(frozen=True, slots=True)
class Card:
    """A number worth being large.

    Attributes:
        value: The number.
        label: What it is.
        detail: More about it.
    """

    value: str
    label: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it.

    Attributes:
        anchor: Its id in the page.
        title: The heading.
        blocks: Texts, tables, figures and so on, in order.
        cards: Large numbers under the heading.
        short: Title in the navigation, if the heading is long.
    """

    anchor: str
    title: str
    blocks: Sequence[Any]
    cards: Sequence[Card] = ()
    short: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as plain values.

    Attributes:
        title: Its heading.
        kicker: A line above the heading: what kind of page this is.
        lead: A sentence below the heading.
        sections: Its sections, in order.
        footer: Where it came from.
    """

    title: str
    kicker: str
    lead: str
    sections: Sequence[Section]
    footer: str
