"""Runs of the coverage benchmark count once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from nested_coverage import SUMS, added, replaced


def row(start: int, stop: int) -> dict:
    case = {"problem": "digits", "metric": "entropy", "tolerance": 0.1, "seeds": [[start, stop]]}
    return {**case, **dict.fromkeys(SUMS, stop - start)}


def test_further_seeds_are_added_and_the_same_ones_are_refused() -> None:
    rows = added(added([], row(0, 10)), row(10, 25))
    assert [one["runs"] for one in rows] == [25] and rows[0]["seeds"] == [[0, 10], [10, 25]]
    for start, stop in ((5, 8), (20, 30), (-5, 1), (0, 25)):
        with pytest.raises(SystemExit, match="overlap"):
            added(rows, row(start, stop))
    assert rows[0]["runs"] == 25
    other = {**row(0, 10), "tolerance": 0.03}
    assert len(added(rows, other)) == 2
    assert replaced(rows, row(0, 10)) == [row(0, 10)]
