"""Models built with other people's packages: every random kernel accounted for, moments right, nothing changed.

An entry is right in z-scores against a train-mode loop, or it is refused or warned about by name, as it declares.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import mlmc_dropout as md
from testing.outside.checks import agreement, honest_passes, matrix, random_kernels, rows
from testing.outside.models import ENTRIES, Case, Entry
from testing.walk import differences, walk

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's; ours are recorded below

PASSES = 800
LIMIT = 1.5  # of the root mean square of z-scores over components


def _parameters(choose: Callable[[Entry], bool]) -> list[Any]:
    return [
        pytest.param(entry, id=name, marks=[pytest.mark.slow] if entry.slow else [])
        for name, entry in ENTRIES.items()
        if choose(entry)
    ]


def _case(entry: Entry) -> Case:
    if entry.missing:
        pytest.skip(entry.missing)
    return entry.make()


def _sampler(case: Case) -> md.DropoutSampler:
    return md.DropoutSampler(case.model, transform=case.transform)


def _warnings_of_ours(caught: list[warnings.WarningMessage]) -> list[str]:
    """Messages of the library's warnings, but for that about speed, which changes no number."""
    mine = [one for one in caught if one.category.__module__.startswith("mlmc_dropout")]
    return [str(one.message) for one in mine if not issubclass(one.category, md.FallbackWarning)]


@pytest.mark.parametrize("entry", _parameters(lambda entry: not entry.refused))
def test_every_random_kernel_is_a_site(entry):
    case = _case(entry)
    kernels = random_kernels(case)
    active = [site for site in _sampler(case).sites(case.x) if site.active]
    assert len(kernels) > entry.idle
    assert len(active) == len(kernels) - entry.idle, ([site.name for site in active], kernels)


@pytest.mark.slow
@pytest.mark.parametrize("entry", _parameters(lambda entry: not (entry.refused or entry.warned)))
def test_moments_are_those_of_a_train_mode_loop(entry):
    """A first look, and where that is unlucky a second with four times the passes, in which a bias would double."""
    case = _case(entry)
    count = rows(case.x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for passes, seed in ((PASSES, 0), (4 * PASSES, 1)):
            ours = matrix(_sampler(case).sample(case.x, passes, seed), count, first=1)
            z = agreement(ours, honest_passes(entry.make(), passes, seed))
            if z.worst < LIMIT or z.worst > 2 * LIMIT:
                break
    assert z.components
    assert z.worst < LIMIT, z
    assert not _warnings_of_ours(caught)


@pytest.mark.parametrize("entry", _parameters(lambda entry: bool(entry.refused or entry.warned)))
def test_what_cannot_be_right_is_said_by_name(entry):
    case = _case(entry)
    before, messages = walk(case.model), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            md.estimate(case.model, case.x, transform=case.transform, budget=100)
            messages = _warnings_of_ours(caught) if entry.warned else []
        except md.MLMCDropoutError as error:
            messages = [str(error)] if entry.refused else []
    assert any(re.search(entry.refused or entry.warned, message) for message in messages), messages
    assert not differences(before, walk(case.model))


@pytest.mark.parametrize("method", ["pooled", "stratified", "auto"])
@pytest.mark.parametrize("entry", _parameters(lambda entry: not entry.refused))
def test_the_model_is_left_as_it_was(entry, method):
    case = _case(entry)
    before = walk((case.model, case.x))
    result = md.estimate(case.model, case.x, transform=case.transform, method=method, budget=60)
    assert result.cost <= 60
    found = differences(before, walk((case.model, case.x)))
    assert not found, found[:8]
