"""Some rows of a batch have the masks, the states and the preparations that they have among all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mlmc_dropout.methods.registry import make_method
from mlmc_dropout.methods.states import merge_states, select_rows, to_blocks
from mlmc_dropout.sampling.masks import bernoulli, latin_hypercube, numbers, pass_keys, stratified_numbers
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import source_of
from testing.runs import small

ROWS = np.array([0, 3, 4, 9, 17, 31])
SELECTIONS = (ROWS, np.arange(5, 12), np.array([2, 30]), np.arange(32))


class Noisy(nn.Module):
    """Dropout, and additive uniform and normal noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(torch.tanh(self.first(x)), 0.3, training=True)
        return self.last(h + 0.1 * torch.randn_like(h) + 0.1 * torch.rand_like(h))


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("units", [1, 7, 8, 20])
@pytest.mark.parametrize("law", ["bernoulli", "designs", "uniform", "normal", "designs of normals"])
def test_numbers_of_some_rows_are_those_they_have_among_all(law: str, units: int, offset: int) -> None:
    keys = pass_keys(3, 0, 0, range(6))
    draw: Any = {
        "bernoulli": lambda n, a: bernoulli(keys, units, 0.3, n, a),
        "designs": lambda n, a: latin_hypercube(keys, 5, units, 0.3, n, a),
        "uniform": lambda n, a: numbers(keys, "uniform", units, n, a),
        "normal": lambda n, a: numbers(keys, "normal", units, n, a, torch.float64),
        "designs of normals": lambda n, a: stratified_numbers(keys, "normal", 5, units, n, a),
    }[law]
    whole = draw(32, offset)
    assert torch.equal(draw(len(ROWS), torch.from_numpy(ROWS) + offset), whole[..., ROWS, :])


def _masks(source: Source, passes: int) -> list[torch.Tensor | None]:
    keys = pass_keys(source.seed, 0, 0, range(4))
    together = passes if passes > 1 else None
    drawn = (
        source.sampler.draw(s, keys, source.batch.rows, source.row_numbers, together) for s in source.program.sites
    )
    return list(drawn)


@pytest.mark.parametrize("passes", [1, 5])
@pytest.mark.parametrize("masks", ["independent", "shared"])
def test_a_source_of_some_rows_draws_their_masks(masks: str, passes: int) -> None:
    torch.manual_seed(0)
    whole = source_of(Noisy(), torch.randn(32, 2), masks=masks)
    assert {site.law for site in whole.program.sites} == {"bernoulli", "uniform", "normal"}
    for rows in SELECTIONS:
        some = whole.select(rows)
        assert some.batch.rows == len(rows)
        for of_all, of_some in zip(_masks(whole, passes), _masks(some, passes), strict=True):
            assert of_all is not None and of_some is not None
            assert torch.equal(of_some, of_all if masks == "shared" else of_all[:, rows])
        of_whole, of_rows = whole.passes(0, range(2), range(3)), some.passes(0, range(2), range(3))
        np.testing.assert_allclose(of_rows, of_whole[:, :, rows], rtol=1e-5, atol=1e-6)


def test_selections_of_selections_and_parts_keep_their_numbers() -> None:
    model, x = small(32)
    whole = source_of(model, x)
    some = whole.select(ROWS)
    again, part = some.select(np.array([1, 3, 5])), some.part(slice(2, 5))
    assert again.numbers is not None and again.numbers.tolist() == [3, 9, 31]
    assert part.numbers is not None and part.numbers.tolist() == [4, 9, 17]
    assert whole.select(np.arange(4, 8)).numbers is None and whole.select(np.arange(32)) is whole


@pytest.mark.parametrize("memory_limit", [1 << 29, 1 << 16])
@pytest.mark.parametrize("masks", ["independent", "shared"])
@pytest.mark.parametrize("name", ["pooled", "stratified", "control-variate", "mlmc"])
def test_a_method_for_some_rows_gives_their_part_of_the_state(name: str, masks: str, memory_limit: int) -> None:
    model, x = small(32)
    whole = source_of(model, x, masks=masks, memory_limit=memory_limit)
    bound = make_method(name).choose(whole, Goal(budget=600)).bind(whole)
    tasks, done = bound.extend({}, 600)
    states: Any = None
    for task in tasks:
        states = merge_states(states, bound.run(whole, task))
    for rows in SELECTIONS:
        some, chosen = whole.select(rows), bound.select(rows)
        state: Any = None
        for task in tasks:
            state = merge_states(state, chosen.run(some, task))
        expected = to_blocks(select_rows(states, rows))
        for path, block in to_blocks(state).items():
            assert block.count == expected[path].count
            np.testing.assert_allclose(block.mean, expected[path].mean, rtol=1e-4, atol=1e-5)
        found, sought = chosen.summarise(state, done), bound.summarise(states, done)
        np.testing.assert_allclose(found.mean, sought.mean[rows], rtol=1e-4, atol=1e-5)
        # A companion's coefficients are drawn towards a common one, which depends on the rows that there are.
        np.testing.assert_allclose(found.mean_stderr, sought.mean_stderr[rows], rtol=0.5)


def test_parts_that_become_small_are_joined() -> None:
    model, x = small(32)
    whole = source_of(model, x, memory_limit=1 << 16)
    bound: Any = make_method("control-variate").choose(whole, Goal(budget=600)).bind(whole)
    assert len(bound.parts) > 1
    few = bound.select(np.array([0, 15, 31]))
    assert len(few.parts) == 1 and few.parts[0].rows == slice(0, 3)
    np.testing.assert_array_equal(few.known_variance, bound.known_variance[[0, 15, 31]])
