"""``python scripts/benchmarks_page.py`` writes docs/benchmarks.md from the raw numbers in benchmarks/results/*.json.

Every file there is shown as its script wrote it: title, what was measured, the machine, and its tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Ratios measured side by side in one run, by the scripts in `benchmarks/`; `make bench` measures them again on your
machine. This page is written from the raw numbers by `scripts/benchmarks_page.py`.
"""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.2e}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return str(value).replace("|", "\\|")


def _rows(found: Any) -> list[dict[str, Any]]:
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _table(rows: list[dict[str, Any]]) -> str:
    columns = [key for key in dict.fromkeys(k for row in rows for k in row) if _plain(rows, key)]
    lines = ["| " + " | ".join(c.replace("_", " ") for c in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(c, "–")) for c in columns) + " |" for row in rows]
    return "\n".join(lines)


def _plain(rows: list[dict[str, Any]], key: str) -> bool:
    """Whether a column holds something that fits a cell."""
    return all(not isinstance(row.get(key), (dict, list)) or len(row[key]) <= 4 for row in rows)


def section(name: str, found: dict[str, Any]) -> str:
    """One file: its scalars as a sentence, its lists of rows as tables."""
    parts = [f"## {found.get('title') or name.replace('_', ' ').replace('-', ' ').capitalize()}\n"]
    if found.get("description"):
        parts.append(f"{found['description']}\n")
    for key, value in found.items():
        rows = _rows(value)
        if rows:
            parts.append(f"**{key.replace('_', ' ').capitalize()}**\n\n{_table(rows)}\n")
    parts.append(f"Raw numbers: `benchmarks/results/{name}.json`, written by `benchmarks/{name}.py`.\n")
    return "\n".join(parts)


def page() -> str:
    """The whole page."""
    files = sorted(RESULTS.glob("*.json"))
    read = [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in files]
    sections = [section(name, found) for name, found in read if isinstance(found, dict)]
    return "\n".join([HEAD, *(sections or ["Nothing has been measured yet.\n"])])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
