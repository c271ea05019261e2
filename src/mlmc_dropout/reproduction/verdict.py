"""What an experiment concludes, and the rule by which it does.

A verdict follows from *checks*, statements that numbers make true or false. There are three kinds:

``claim``      the paper's claim itself; if one fails, the item is *not reproduced*
``agreement``  agreement in detail, such as a printed value; if one fails, there is *a stated difference*
``note``       worth knowing, without influence on the verdict
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Check", "Judgement", "Outcome", "Quantity", "Table", "Verdict", "conclude", "outcome"]


class Outcome(enum.Enum):
    """The three possible conclusions."""

    REPRODUCED = "reproduced"
    DIFFERENT = "reproduced with a stated difference"
    FAILED = "not reproduced"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A named value, with a 99 % confidence interval where there is one.

    Attributes:
        quantity: Its name.
        value: A number, or words where the paper has no number.
        low: Lower end of the interval.
        high: Upper end.
    """

    quantity: str
    value: float | str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; cells are numbers or short words.

    Attributes:
        caption: What it shows.
        columns: Names of the columns.
        rows: One cell per column each.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A statement that the numbers make true or false.

    Attributes:
        kind: ``"claim"``, ``"agreement"`` or ``"note"``.
        statement: What is to be decided.
        holds: Whether it is true.
        finding: What the numbers say, in words.
    """

    kind: Literal["claim", "agreement", "note"]
    statement: str
    holds: bool
    finding: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an experiment says about its numbers.

    Attributes:
        paper: What the paper reports.
        ours: The same from our numbers.
        checks: Statements from which the verdict follows.
        tables: Numbers behind them.
    """

    paper: Sequence[Quantity]
    ours: Sequence[Quantity]
    checks: Sequence[Check]
    tables: Sequence[Table] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion on one figure or table of the paper.

    Attributes:
        id: Name of the experiment.
        title: What it shows.
        claim: What the paper says.
        paper: What the paper reports.
        ours: The same from our numbers.
        verdict: The conclusion, one of :class:`Outcome`.
        reason: The findings, decisive ones first.
        checks: Statements from which it follows.
        tables: Numbers behind them.
        settings: Settings of the run.
        seconds: Time to compute the numbers.
    """

    id: str
    title: str
    claim: str
    paper: tuple[Quantity, ...]
    ours: tuple[Quantity, ...]
    verdict: str
    reason: str
    checks: tuple[Check, ...] = ()
    tables: tuple[Table, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, as written to ``verdict.json``; absent interval ends are left out."""
        data = asdict(self)
        for side in ("paper", "ours"):
            data[side] = [{k: v for k, v in entry.items() if v is not None} for entry in data[side]]
        return data


def outcome(checks: Sequence[Check]) -> Outcome:
    """The conclusion that follows from checks.

    Args:
        checks: Statements that hold or not.

    Returns:
        Not reproduced if a claim fails, a stated difference if only an agreement does, reproduced otherwise.

    Examples:
        >>> claim, detail = Check("claim", "", True, ""), Check("agreement", "", False, "")
        >>> outcome([claim]).value, outcome([claim, detail]).value
        ('reproduced', 'reproduced with a stated difference')
    """
    failed = {check.kind for check in checks if not check.holds}
    if "claim" in failed:
        return Outcome.FAILED
    return Outcome.DIFFERENT if "agreement" in failed else Outcome.REPRODUCED


def conclude(
    name: str, title: str, claim: str, judged: Judgement, settings: Mapping[str, Any], seconds: float
) -> Verdict:
    """The verdict on an experiment: the outcome of its checks, with their findings as the reason.

    Args:
        name: Id of the experiment.
        title: What it shows.
        claim: What the paper says.
        judged: Checks, quantities and tables.
        settings: Settings of the run.
        seconds: Time to compute the numbers.

    Returns:
        The verdict.
    """
    order = {Outcome.FAILED: "claim", Outcome.DIFFERENT: "agreement"}
    result = outcome(judged.checks)
    decisive = [c for c in judged.checks if not c.holds and c.kind == order.get(result)]
    others = [c for c in judged.checks if c not in decisive]
    return Verdict(
        name,
        title,
        claim,
        tuple(judged.paper),
        tuple(judged.ours),
        result.value,
        " ".join(check.finding for check in (*decisive, *others)),
        tuple(judged.checks),
        tuple(judged.tables),
        settings,
        seconds,
    )
