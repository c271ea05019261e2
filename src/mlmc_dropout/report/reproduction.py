"""The page about experiments of the paper: claim, what came out, verdict."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlmc_dropout.errors import RunDirectoryError
from mlmc_dropout.report.blocks import Card, Checks, CodeBlock, Facts, Figure, Note, Page, Section, TableBlock, Text
from mlmc_dropout.report.formats import duration, short
from mlmc_dropout.version import __version__

__all__ = ["page", "read_verdicts"]


def read_verdicts(folder: Path) -> list[dict[str, Any]]:
    """Every ``verdict.json`` below a folder, the headline first, then in the order of the paper.

    Args:
        folder: A folder written by ``mlmc-dropout reproduce``.

    Returns:
        The verdicts as plain data, with the folder of each.

    Raises:
        RunDirectoryError: If one cannot be read.
    """
    verdicts = []
    for path in sorted(folder.glob("*/verdict.json"), key=lambda path: (path.parent.name != "H", path)):
        try:
            verdict = json.loads(path.read_text(encoding="utf-8"))
            verdicts.append({**verdict, "id": str(verdict["id"]), "folder": str(path.parent)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{str(path)!r} cannot be read: {error}") from None
    return verdicts


def page(folder: Path) -> Page:
    """One section per experiment, an overview before and settings after.

    Args:
        folder: A folder written by ``mlmc-dropout reproduce``.

    Returns:
        The page.

    Raises:
        RunDirectoryError: If a file cannot be read.
    """
    verdicts = read_verdicts(folder)
    summary = _summary(folder)
    rows = [(v["id"], str(v.get("title", "")), str(v.get("verdict", "")), _seconds(v)) for v in verdicts]
    overview = Section(
        "overview",
        "Overview",
        [TableBlock("Experiments and verdicts", ("Id", "Experiment", "Verdict", "Time"), rows, text_columns=3)],
        [Card(str(count), verdict) for verdict, count in _tally(verdicts).items()],
    )
    sections = [overview, *(_section(v) for v in verdicts), _settings(summary)]
    profile = summary.get("profile")
    return Page(
        "Reproduction",
        "Multi-level Monte Carlo dropout",
        f"{len(verdicts)} experiments of the paper, redone{f' with the {profile} settings' if profile else ''}.",
        sections,
        f"Written by mlmc-dropout {__version__}. This page needs no network.",
    )


def _summary(folder: Path) -> Mapping[str, Any]:
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{str(path)!r} cannot be read: {error}") from None
    return summary if isinstance(summary, dict) else {}


def _tally(verdicts: list[dict[str, Any]]) -> dict[str, int]:
    words = [str(v.get("verdict", "unknown")) for v in verdicts]
    return {word: words.count(word) for word in dict.fromkeys(words)}


def _seconds(verdict: Mapping[str, Any]) -> str:
    seconds = verdict.get("seconds")
    return duration(seconds if isinstance(seconds, (int, float)) else None)


def _section(verdict: Mapping[str, Any]) -> Section:
    blocks: list[Any] = [Text(str(verdict.get("claim", "")))]
    conclusion = str(verdict.get("verdict", "")).capitalize()
    checks = [_check(check) for check in verdict.get("checks") or ()]
    blocks.append(Note(f"{conclusion}." if checks else f"{conclusion}. {verdict.get('reason', '')}", calm=True))
    blocks += [Checks(checks)] if checks else []
    blocks += list(_figures(verdict))
    if verdict.get("paper") or verdict.get("ours"):
        blocks.append(_comparison(verdict))
    for table in verdict.get("tables") or ():
        rows = [[_cell(cell) for cell in row] for row in table.get("rows", ())]
        blocks.append(TableBlock(str(table.get("caption", "")), list(map(str, table.get("columns", ()))), rows))
    if verdict.get("settings"):
        blocks.append(Facts([(str(k), _cell(v)) for k, v in dict(verdict["settings"]).items()]))
    anchor = "experiment-" + "".join(c for c in str(verdict["id"]) if c.isalnum()).lower()
    return Section(anchor, f"{verdict['id']}: {verdict.get('title', '')}", blocks, short=str(verdict["id"]))


def _check(check: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Sign, word, statement, finding."""
    kind, holds = check.get("kind"), bool(check.get("holds"))
    sign, word = ("✓", "holds") if holds else ("✗", "does not hold")
    if kind == "agreement":
        sign, word = ("=", "agrees") if holds else ("≠", "differs")
    if kind == "note":
        sign, word = "·", "note"
    return sign, word, str(check.get("statement", "")), str(check.get("finding", ""))


def _figures(verdict: Mapping[str, Any]) -> Iterator[Figure]:
    """The figure and its further panels, inside the page."""
    folder = Path(str(verdict["folder"]))
    for path in [folder / "figure.png", *sorted(folder.glob("figure-*.png"))]:
        if not path.is_file():
            continue
        data = base64.b64encode(path.read_bytes()).decode()
        panel = path.stem.removeprefix("figure").strip("-").replace("-", " ")
        title = f"{verdict.get('title', '')}{f' ({panel})' if panel else ''}"
        alt = (
            f"Figure of experiment {verdict['id']}{f', {panel}' if panel else ''}; its numbers are in the tables below."
        )
        yield Figure([f'<img src="data:image/png;base64,{data}" alt="">'], title, alt)


def _comparison(verdict: Mapping[str, Any]) -> TableBlock:
    """Quantities the paper prints beside ours."""
    printed = {str(item["quantity"]): item for item in verdict.get("paper") or ()}
    ours = {str(item["quantity"]): item for item in verdict.get("ours") or ()}
    rows = [
        (name, _quantity(printed.get(name)), _quantity(ours.get(name))) for name in dict.fromkeys([*printed, *ours])
    ]
    return TableBlock(f"{verdict['id']}: the paper and this run", ("Quantity", "Paper", "Here"), rows)


def _quantity(item: Mapping[str, Any] | None) -> str:
    if item is None:
        return "–"
    text = _cell(item.get("value"))
    if item.get("low") is not None and item.get("high") is not None:
        text += f" ({_cell(item['low'])} to {_cell(item['high'])})"
    return text


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "–" if value is None else ("yes" if value else "no")
    if isinstance(value, (int, float)):
        return short(float(value), 5)
    return ", ".join(map(_cell, value)) if isinstance(value, (list, tuple)) else str(value)


def _settings(summary: Mapping[str, Any]) -> Section:
    blocks: list[Any] = []
    if summary.get("command"):
        blocks.append(CodeBlock.of_command(str(summary["command"]), "The command that made this"))
    facts = [(name.capitalize(), str(summary[name])) for name in ("profile", "date") if summary.get(name)]
    facts += [(f"Version of {name}", str(value)) for name, value in dict(summary.get("versions") or {}).items()]
    return Section("again", "Settings to run it again", [*blocks, Facts(facts)] if facts or blocks else [Text("–")])
