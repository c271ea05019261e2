"""The rule from checks to conclusions."""

from __future__ import annotations

import json

import pytest

from mlmc_dropout.reproduction.verdict import Check, Judgement, Outcome, Quantity, Table, conclude, outcome


def check(kind: str, holds: bool, finding: str = "") -> Check:
    return Check(kind, "statement", holds, finding)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ([check("claim", True), check("agreement", True), check("note", True)], Outcome.REPRODUCED),
        ([check("claim", True), check("note", False)], Outcome.REPRODUCED),
        ([check("claim", True), check("agreement", False)], Outcome.DIFFERENT),
        ([check("claim", False), check("agreement", True)], Outcome.FAILED),
        ([check("claim", False), check("agreement", False)], Outcome.FAILED),
    ],
)
def test_outcome(checks: list[Check], expected: Outcome) -> None:
    assert outcome(checks) is expected


def test_the_decisive_findings_come_first() -> None:
    judged = Judgement([], [], [check("claim", True, "Fine."), check("agreement", False, "Differs.")])
    verdict = conclude("X", "title", "claim", judged, {}, 1.0)
    assert verdict.verdict == "reproduced with a stated difference"
    assert verdict.reason == "Differs. Fine."


def test_json_has_the_agreed_keys() -> None:
    judged = Judgement(
        [Quantity("a", "words")], [Quantity("a", 1.0, 0.5, 1.5)], [check("claim", True)], [Table("c", ("k",), ((1,),))]
    )
    data = json.loads(json.dumps(conclude("X", "t", "c", judged, {"seed": 1}, 2.0).to_json()))
    assert data["paper"] == [{"quantity": "a", "value": "words"}]
    assert data["ours"] == [{"quantity": "a", "value": 1.0, "low": 0.5, "high": 1.5}]
    assert data["tables"] == [{"caption": "c", "columns": ["k"], "rows": [[1]]}]
    wanted = {"id", "title", "claim", "paper", "ours", "verdict", "reason", "tables", "settings", "seconds", "checks"}
    assert set(data) == wanted
