"""What a page is made of: sections of texts, facts, figures and tables, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Card", "Checks", "Facts", "Figure", "Note", "Page", "Section", "Source", "Table", "Text"]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Note:
    """A warning in words; ``calm`` for remarks that ask for nothing."""

    text: str
    calm: bool = False
    kind: str = "note"


@dataclass(frozen=True, slots=True)
class Facts:
    """Terms and what they are."""

    items: Sequence[tuple[str, str]]
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Checks:
    """Statements that hold or not: (sign, word for it, statement, finding)."""

    entries: Sequence[tuple[str, str, str, str]]
    kind: str = "checks"


@dataclass(frozen=True, slots=True)
class Source:
    """A command or a configuration to copy."""

    text: str
    label: str
    kind: str = "source"


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its caption; ``summary`` says in words what it shows. ``key``: (style, meaning)."""

    drawings: Sequence[str]
    caption: str
    summary: str
    key: Sequence[tuple[str, str]] = ()
    kind: str = "figure"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column heads; the first column heads its row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    texts: int = 1  # so many columns, from the left, hold words
    kind: str = "table"


@dataclass(frozen=True, slots=True)
class Card:
    """A number worth being large."""

    value: str
    label: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    anchor: str
    title: str
    blocks: Sequence[Any]
    cards: Sequence[Card] = ()
    short: str = ""  # for the list of sections, if the title is long


@dataclass(frozen=True, slots=True)
class Page:
    """Title, a sentence, sections, and where it came from."""

    title: str
    kicker: str
    lead: str
    sections: Sequence[Section]
    footer: str
