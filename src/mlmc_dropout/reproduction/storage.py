"""The files of a run: numbers, verdicts, summary; each replaced in one step."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from mlmc_dropout.files import replacing
from mlmc_dropout.reproduction.verdict import Table

__all__ = ["fingerprint", "read_json", "versions", "write_csv", "write_json"]


def fingerprint(*parts: Any) -> str:
    """A short hash of plain data.

    Args:
        *parts: What JSON can hold.

    Returns:
        16 hexadecimal digits; the order of keys does not matter.

    Examples:
        >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON object, indented, but with lists of numbers on one line.

    Args:
        path: The file, replaced in one step.
        data: Plain data; NumPy's numbers are allowed.
    """
    _replace(path, _layout(data) + "\n")


def _layout(value: Any, indent: str = "") -> str:
    inner = indent + "  "
    if isinstance(value, Mapping) and value:
        entries = (f"{inner}{json.dumps(str(key))}: {_layout(entry, inner)}" for key, entry in value.items())
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)) and any(isinstance(entry, (Mapping, list, tuple)) for entry in value):
        return "[\n" + ",\n".join(inner + _layout(entry, inner) for entry in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, default=lambda scalar: scalar.item())  # NumPy's numbers


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object.

    Args:
        path: The file.

    Returns:
        The object, or None if there is none that can be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_csv(path: Path, table: Table) -> None:
    """Column names and rows; numbers to eight digits.

    Args:
        path: The file, replaced in one step.
        table: What to write; its caption is left out.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([f"{cell:.8g}" if isinstance(cell, float) else cell for cell in row] for row in table.rows)
    _replace(path, text.getvalue())


def versions() -> dict[str, Any]:
    """When this runs and with what."""
    packages = ("mlmc-dropout", "torch", "numpy", "scipy", "matplotlib")
    installed = {"python": platform.python_version(), **{name: _version(name) for name in packages}}
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": installed}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")
