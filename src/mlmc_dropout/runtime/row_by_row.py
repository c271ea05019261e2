"""Looks at a batch whose rows stop one by one: who goes on, for how long, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlmc_dropout.errors import InputError
from mlmc_dropout.methods.base import Array, BoundMethod, Estimates, Rows
from mlmc_dropout.methods.joining import join_estimates
from mlmc_dropout.result import Status
from mlmc_dropout.runtime.cohorts import Cohort, Progress
from mlmc_dropout.runtime.outcome import Outcome, how_many, passes_of_rows, unsettled
from mlmc_dropout.runtime.rounding import limited_rows
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.decisions import Verdict, judge
from mlmc_dropout.stopping.goal import MAX_BUDGET, TRUSTED, Goal, stderr_upper_factor
from mlmc_dropout.stopping.rows import (
    ABOUT,
    Needs,
    Part,
    least_passes,
    needs_of_rows,
    next_round,
    reach_of,
    row_factors,
    with_unseen,
)

__all__ = ["Choice", "RowByRow", "Standing"]

Flags = np.ndarray[Any, np.dtype[np.bool_]]

CLEARLY = 2.0  # times the passes before which no row leaves, that all together must need to go there at once
REOPENED = 1.1  # times the passes it had that a row must need to be worked on again


@dataclass(frozen=True, slots=True, eq=False)
class Standing(Part):
    """What is known of a cohort.

    Attributes:
        estimates: As in :class:`Part`.
        samples: As in :class:`Part`.
        cohort: The cohort.
        limited: Rows whose tolerance is below their rounding.
    """

    estimates: Estimates
    cohort: Cohort
    limited: Flags


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Rows that might be worked on next.

    Attributes:
        standing: Their cohort.
        going: Which of its rows, at least one.
        wanted: Passes for each of them.
        needs: What they need.
    """

    standing: Standing
    going: Flags
    wanted: float
    needs: Needs


NOTED = 2.0  # times as large as by the passes alone: standard errors of which a note is due


class RowByRow:
    """Looks at the cohorts of a batch.

    Args:
        index: Which batch it is.
        source: The passes of the batch.
        goal: When to stop.
        bound_for: The method made ready for the rows of a cohort.
        summary: Estimates of a cohort.
        shown: Estimates as they are shown.
    """

    def __init__(
        self,
        index: int,
        source: Source,
        goal: Goal,
        bound_for: Callable[[Cohort], BoundMethod],
        summary: Callable[[Cohort], Estimates],
        shown: Callable[[Estimates], Estimates],
    ) -> None:
        self.index, self.source, self.goal = index, source, goal
        self.bound_for, self.summary, self.shown = bound_for, summary, shown
        self.expected = 0.0  # passes the goal takes on average, by the latest look
        self._known: dict[int, Standing] = {}  # of cohorts that have left, by their identity

    def choices(self, progress: Progress) -> Iterator[Choice]:
        """Rows that have to go on: first some of those that were worked on, then those that left too early.

        Args:
            progress: The cohorts.

        Returns:
            Rows and passes for them; the first that the budget allows is to be run. If it does not allow for all that
            should go on, those that have not met the tolerance come alone.
        """
        standings = self._standings(progress)
        verdict = self._verdict(standings)
        allowed = self._allowing(standings)
        plain = (self._plain_factors(each, allowed) for each in allowed)
        if self.goal.has_tolerance and all((each <= 1.0).all() for each in plain):
            return  # equal effort would end here at the latest; only rows that leave earlier need upper limits
        # Rows that have left are looked at only when the others are settled: while they go on, little changes for them.
        needs = needs_of_rows(self.goal, standings) if verdict is None else (Needs(n, n, n) for n in verdict.needs)
        for index, (standing, need) in enumerate(zip(standings, needs, strict=True)):
            self._expect(standings, verdict.needs if verdict is not None else [need.total], index)
            factors = self._plain_factors(allowed[index], allowed)
            going = (need.total > (REOPENED if index and verdict is None else 1.0)) | (factors > 1.0)
            going &= ~standing.limited
            unmet = going & (factors > 1.0)
            if going.any():
                yield self._choice(standing, going, need, progress.spent, together=not index)
            if unmet.any() and unmet.sum() < going.sum():
                yield self._choice(standing, unmet, need, progress.spent, together=False)

    def _choice(self, standing: Standing, going: Flags, needs: Needs, spent: float, together: bool) -> Choice:
        need = needs.total
        if not self.source.program.rows_split:  # rows cannot be run apart: all go on while one has to
            going = np.ones_like(going)
        wanted = next_round(self.goal, need[going], standing, spent)
        if self.goal.has_tolerance and together:
            least = ABOUT * min(least_passes(self.source.batch.rows), self.goal.budget or math.inf)
            needed = standing.passes * self.goal.shortfall(standing.estimates)
            if standing.passes < least and needed > CLEARLY * least:
                wanted = max(wanted, least - standing.passes)  # nobody leaves before
            else:  # all may stop together before
                wanted = min(wanted, self.goal.more(standing.estimates, standing.samples) or wanted)
        if going.sum() == 1 and len(going) > 1:  # some models squeeze the outputs of a single row: one more goes on
            going = going | (np.arange(len(going)) == np.argmax(np.where(going, -np.inf, need)))
        return Choice(standing, going, wanted, needs.of(going))

    # ------------------------------------------------------------------------------- standings

    def _standings(self, progress: Progress) -> list[Standing]:
        """What is known of every cohort, that of the rows that are worked on first."""
        others = {id(cohort): cohort for cohort in progress.others}
        known = {key: self._known.get(key) or self._standing(cohort) for key, cohort in others.items()}
        self._known = known
        return [self._standing(progress.cohort), *known.values()]

    def _standing(self, cohort: Cohort) -> Standing:
        found, samples = self.summary(cohort), self.bound_for(cohort).samples(cohort.state)
        limited = np.zeros(len(cohort.rows), dtype=bool)
        if self.goal.has_tolerance and samples >= TRUSTED:
            limited = limited_rows(found, self.goal, self.source.sampler.dtype)
        return Standing(found, samples, cohort, limited)

    def _allowing(self, standings: Sequence[Standing]) -> list[Standing]:
        """The same with an allowance for passes that did not come up, where there is a tolerance."""
        if not self.goal.has_tolerance:
            return list(standings)
        reach = reach_of([each.estimates for each in standings])
        return [replace(each, estimates=with_unseen(each.estimates, reach)) for each in standings]

    def _plain_factors(self, standing: Standing, standings: Sequence[Standing]) -> Array:
        """The largest (stderr / tolerance)² of each row; below few samples, upper limits for it."""
        if not self.goal.has_tolerance:
            return np.zeros(len(standing))
        return row_factors(self.goal, standing, standings) * stderr_upper_factor(standing.samples)

    def _verdict(self, standings: Sequence[Standing]) -> Verdict | None:
        """How decisions stand, if there are any to be made."""
        if self.goal.decision is None:
            return None
        share = 1.0 / ((self.index + 1) * (self.index + 2))  # of the error rate, for any number of batches
        shared = self.source.sampler.masks == "shared"
        return judge(self.goal.decision, standings, self.source.observation, share, shared)

    def _expect(self, standings: Sequence[Standing], needs: Sequence[Array], index: int) -> None:
        """Passes the goal takes, on average; too many are refused. Needs are of all cohorts, or of one of them."""
        rows = self.source.batch.rows
        known = dict(enumerate(needs)) if len(needs) > 1 else {index: needs[0]}
        passes = [
            standing.estimates.overhead
            + standing.passes * np.where(standing.limited, 1.0, np.maximum(known.get(number, 1.0), 1.0))
            for number, standing in enumerate(standings)
        ]
        total = float(sum(each.sum() for each in passes))
        self.expected = min(total, math.inf if self.goal.budget is None else self.goal.budget * rows) / rows
        most = max(float(each.max()) for each in passes)
        if self.goal.budget is None and most > MAX_BUDGET and standings[0].samples >= TRUSTED:
            cost = standings[0].estimates.cost
            raise InputError(
                f"the tolerance would take about {most:.0e} passes for some input: the largest standard error is "
                f"{(most / cost) ** 0.5:.1e} times the tolerance after {cost:g} passes; raise it, or give a budget as "
                "well"
            )

    # --------------------------------------------------------------------------------- outcomes

    def outcome(self, progress: Progress) -> Outcome:
        """How the run ended.

        Args:
            progress: The cohorts.

        Returns:
            Estimates of all rows, and what is said of them.
        """
        plain = self._standings(progress)
        standings = self._allowing(plain)
        shown = [(each.cohort.rows, self.shown(each.estimates)) for each in standings]
        verdict = self._verdict(standings)
        if verdict is not None:
            return _decided(verdict, shown)
        found, passes = join_estimates(shown), passes_of_rows(shown)
        found = replace(found, notes=(*found.notes, *_allowances(plain, standings)))
        if not self.goal.has_tolerance:
            return Outcome(found, Status.COMPLETED, passes=passes)
        after = [replace(each, estimates=estimates) for each, (_, estimates) in zip(standings, shown, strict=True)]
        short = np.concatenate([self._plain_factors(each, standings) for each in standings])
        rounded = np.concatenate([self._plain_factors(each, after) for each in after])
        limited = np.concatenate([each.limited for each in standings])
        if (rounded <= 1).all():
            return Outcome(found, Status.TOLERANCE_MET, passes=passes)
        if ((short <= 1) | limited).all():
            return Outcome(found, Status.PRECISION_REACHED, passes=passes)
        unmet = ~limited & (short > 1)
        needed = float(np.mean(passes * np.where(unmet, short, 1.0)[np.argsort(np.concatenate([r for r, _ in shown]))]))
        largest = float(np.concatenate([row_factors(self.goal, each, after) for each in after])[unmet].max())
        return Outcome(found, Status.BUDGET_EXHAUSTED, how_many(short, unmet, largest, needed), passes)

    def so_far(self, progress: Progress, found: Estimates, samples: float) -> tuple[Estimates, Array]:
        """Estimates of all rows in the middle of a round.

        Args:
            progress: The cohorts.
            found: Estimates of the rows that are worked on.
            samples: Samples behind their standard errors.

        Returns:
            The estimates, and the passes of every row.
        """
        left = [self._known.get(id(other)) or self._standing(other) for other in progress.others]
        now = Standing(found, samples, progress.cohort, np.zeros(len(progress.cohort.rows), dtype=bool))
        standings = self._allowing([now, *left])
        parts = [(each.cohort.rows, self.shown(each.estimates)) for each in standings]
        verdict = self._verdict(standings)
        passes = passes_of_rows(parts)
        return join_estimates(parts if verdict is None else _with_decisions(verdict, parts)), passes


def _allowances(plain: Sequence[Standing], allowed: Sequence[Standing]) -> Iterator[str]:
    """Why standard errors are larger than the passes show, where they are much larger."""
    pairs = [(a.estimates, b.estimates) for a, b in zip(plain, allowed, strict=True)]
    raised = [
        (b.mean_stderr > NOTED * a.mean_stderr) | (b.variance_stderr > NOTED * a.variance_stderr) for a, b in pairs
    ]
    rows, number = sum(map(len, raised)), sum(int(each.any(axis=1).sum()) for each in raised)
    if number:
        yield (
            f"Standard errors of {number} of {rows} inputs allow for rare masks that have not come up yet, and are "
            f"more than {NOTED:g} times what their passes show by themselves."
        )


def _with_decisions(verdict: Verdict, shown: Sequence[tuple[Rows, Estimates]]) -> list[tuple[Rows, Estimates]]:
    """Estimates among whose quantities are the decisions."""
    return [
        (rows, replace(each, quantities={**(each.quantities or {}), "decision": decision}))
        for (rows, each), decision in zip(shown, verdict.estimates(), strict=True)
    ]


def _decided(verdict: Verdict, shown: Sequence[tuple[Rows, Estimates]]) -> Outcome:
    """The outcome of decisions, which are quantities like others."""
    found, passes = join_estimates(_with_decisions(verdict, shown)), passes_of_rows(shown)
    needs = np.concatenate(verdict.needs)[np.argsort(np.concatenate([rows for rows, _ in shown]))]
    if (needs <= 1).all():
        return Outcome(found, Status.DECIDED, passes=passes)
    return Outcome(found, Status.UNSETTLED, unsettled(needs, passes), passes)
