"""The page about the paper says what the committed results say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results"

# A number that is not part of a name (M_0, μ2, V², F4): no letter, underscore or digit just before it.
NUMBER = re.compile(r"(?<![\w.^/#])-?\d+(?:\.\d+)*(?:e-?\d+)?(?![\w²])")


def load_page_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paper_page", RESULTS / "page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield key
            yield from leaves(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from leaves(entry)
    else:
        yield value


def known() -> tuple[list[float], set[str]]:
    """Numbers of the results, and numbers inside their words; the long lists of raw numbers are left aside."""
    numbers: list[float] = []
    words: set[str] = set()
    for path in RESULTS.glob("**/*.json"):
        if path.name == "numbers.json":
            continue
        for leaf in leaves(json.loads(path.read_text(encoding="utf-8"))):
            if isinstance(leaf, str):
                words |= set(NUMBER.findall(plain(leaf)))
            elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
                numbers.append(float(leaf))
    return numbers, words


def plain(text: str) -> str:
    return text.replace("−", "-")


def printed(token: str, value: float) -> bool:
    """Whether ``token`` is ``value`` at the precision of ``token``."""
    if "e" in token:
        digits = len(token.split("e")[0].replace("-", "").replace(".", ""))
        return f"{float(token):.{digits - 1}e}" == f"{value:.{digits - 1}e}"
    decimals = len(token.partition(".")[2])
    same = f"{value:.{decimals}f}" in (token, f"{float(token):.{decimals}f}")
    return same or (decimals > 0 and float(token) == float(f"{value:.4g}"))


def missing(text: str) -> list[str]:
    numbers, words = known()
    tokens = set(NUMBER.findall(plain(text)))
    return sorted(t for t in tokens if t not in words and not any(printed(t, value) for value in numbers))


def test_page_is_made_from_the_committed_results() -> None:
    assert (DOCS / "paper.md").read_text(encoding="utf-8") == load_page_script().render()


def test_every_number_of_the_page_is_in_the_results() -> None:
    assert missing((DOCS / "paper.md").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("invented", ["slope −1.0777", "costs 12345 passes", "3.21e-7"])
def test_a_number_from_elsewhere_is_noticed(invented: str) -> None:
    assert missing(invented) != []


def test_pictures_are_there() -> None:
    pictures = re.findall(r"\]\((results/[^)]+)\)", (DOCS / "paper.md").read_text(encoding="utf-8"))
    assert len(pictures) >= 8
    assert all((DOCS / name).is_file() for name in pictures)


def test_results_are_of_the_paper_profile_and_name_no_machine() -> None:
    summary = json.loads((RESULTS / "summary.json").read_text(encoding="utf-8"))
    assert summary["profile"] == "paper"
    assert summary["command"] == "mlmc-dropout reproduce all --profile paper --out docs/results"
    for path in RESULTS.glob("**/*.json"):
        text = path.read_text(encoding="utf-8")
        assert "/tmp" not in text and "/home" not in text and "/work" not in text


def slopes() -> dict[str, tuple[float, float, float]]:
    """Name -> low, high, theory from the tables of F2 and I3."""
    found = {}
    for name in ("F2", "I3"):
        verdict = json.loads((RESULTS / name / "verdict.json").read_text(encoding="utf-8"))
        for label, low, _, high, theory, *_ in verdict["tables"][0]["rows"]:
            if "ddof" not in label:
                found[f"{name} {label}"] = (low, high, theory)
    return found


def test_all_six_slopes_agree_with_theory() -> None:
    found = slopes()
    assert len(found) == 6
    outside = {name: values for name, values in found.items() if not values[0] <= values[2] <= values[1]}
    assert outside == {}


def test_optima_agree_with_the_coupled_cost_and_not_with_the_printed_ones() -> None:
    for name in ("F4", "I4"):
        checks = json.loads((RESULTS / name / "verdict.json").read_text(encoding="utf-8"))["checks"]
        assert all(c["holds"] for c in checks if c["kind"] == "claim")
        assert not any(c["holds"] for c in checks if c["kind"] == "agreement")
        assert all(c["holds"] for c in checks if c["kind"] == "note")
