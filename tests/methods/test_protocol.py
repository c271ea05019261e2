"""What every method has to do, whichever it is; and that a new one takes one file and one line."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mlmc_dropout as md
from mlmc_dropout.methods import states as carried
from mlmc_dropout.methods.base import BoundMethod
from mlmc_dropout.methods.mlmc.adaptive import Adaptive
from mlmc_dropout.methods.registry import SPECS, make_method
from mlmc_dropout.methods.states import merge_next, merge_states, to_blocks
from mlmc_dropout.runtime.run import Run
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import exact_moments
from testing.twos import Twos
from testing.zoo import ZOO

BUDGET = 1200
NAMES = (*SPECS, "twos")


@pytest.fixture(autouse=True)
def _one_line_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a new method needs besides its own file."""
    monkeypatch.setitem(SPECS, "twos", Twos())


def _source(name: str = "tiny", seed: int = 0) -> Source:
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    return Source(sampler, sampler.prepare(batch), batch, seed)


def _bound(name: str, source: Source) -> BoundMethod:
    return make_method(name).choose(source, Goal(budget=BUDGET)).bind(source)


def _run(bound: BoundMethod, source: Source, merge: Callable[[list[Any]], Any]) -> tuple[Any, dict[str, int]]:
    tasks, done = bound.extend({}, BUDGET)
    return merge([bound.run(source, task) for task in tasks]), done


def _from_left(states: list[Any]) -> Any:
    state = None
    for each in states:
        state = merge_states(state, each)
    return state


def _block_by_block(states: list[Any]) -> Any:
    state, waiting = None, list(states)
    while waiting:
        state = merge_next(state, waiting)
    return state


def _by_halves(states: list[Any]) -> Any:
    middle = len(states) // 2
    return merge_states(_from_left(states[:middle]), _from_left(states[middle:]))


@pytest.mark.parametrize("name", NAMES)
def test_tasks_spend_no_more_than_the_budget(name: str) -> None:
    source = _source()
    bound = _bound(name, source)
    tasks, done = bound.extend({}, BUDGET)
    assert tasks and bound.min_cost() <= done["passes"] <= BUDGET
    assert all(bound.weight(task) > 0 for task in tasks)
    more, after = bound.extend(done, BUDGET)
    assert more and done["passes"] < after["passes"] <= 2 * BUDGET
    assert not {(t.stream, t.first) for t in tasks} & {(t.stream, t.first) for t in more}


@pytest.mark.parametrize("name", NAMES)
def test_states_merge_in_any_grouping(name: str) -> None:
    source = _source("mlp")
    bound = _bound(name, source)
    (one, done), (other, _) = _run(bound, source, _from_left), _run(bound, source, _by_halves)
    assert bound.has_estimates(one) and not bound.has_estimates(None)
    assert bound.samples(one) == bound.samples(other) > 2
    for field in ("mean", "variance", "mean_stderr", "variance_stderr"):
        a, b = (getattr(bound.summarise(state, done), field) for state in (one, other))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_large_states_merge_to_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "_LARGE", 0)
    source = _source("mlp")
    bound = _bound(name, source)
    one, other = (to_blocks(_run(bound, source, merge)[0]) for merge in (_from_left, _block_by_block))
    assert [*one] == [*other]
    assert all(np.array_equal(getattr(one[key], f), getattr(other[key], f)) for key in one for f in one[key].__slots__)


@pytest.mark.parametrize("name", NAMES)
def test_states_survive_being_saved_and_sent(name: str) -> None:
    source = _source("mlp")
    bound = _bound(name, source)
    state, done = _run(bound, source, _from_left)
    restored = bound.read_state(to_blocks(state))
    assert type(restored) is type(state)
    for again in (restored, pickle.loads(pickle.dumps(state))):
        np.testing.assert_array_equal(bound.summarise(again, done).mean, bound.summarise(state, done).mean)
    with pytest.raises(KeyError):
        bound.read_state({"nothing.of.ours": next(iter(to_blocks(state).values()))})


@pytest.mark.parametrize("name", NAMES)
def test_methods_can_be_sent_and_bound_elsewhere(name: str) -> None:
    source = _source("mlp")
    method = make_method(name).choose(source, Goal(budget=BUDGET))
    there = pickle.loads(pickle.dumps(method)).bind(source)
    task = there.extend({}, BUDGET)[0][0]
    ours, theirs = (to_blocks(bound.run(source, task)) for bound in (method.bind(source), there))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key].mean, theirs[key].mean) for key in ours)


@pytest.mark.parametrize("name", NAMES)
def test_estimates_are_unbiased_and_their_errors_right(name: str) -> None:
    """Against all 32 masks of a tiny network: |z| of the mean over 120 seeds below 4.5, and errors as stated."""
    model, x = ZOO["tiny"].make()
    mu, mu2, _ = exact_moments(model, x)
    runs = [md.estimate(model, x, method=name, budget=240, seed=seed) for seed in range(120)]
    for values, exact, stderr in (
        (np.stack([r.mean[0] for r in runs]), mu, np.stack([r.mean_stderr[0] for r in runs])),
        (np.stack([r.variance[0] for r in runs]), mu2, np.stack([r.variance_stderr[0] for r in runs])),
    ):
        scatter = values.std(axis=0, ddof=1) / np.sqrt(len(runs))
        exact = np.asarray(exact).reshape(scatter.shape)
        assert (np.abs(values.mean(axis=0) - exact) <= 4.5 * scatter + 1e-7).all()
        stated = np.sqrt(np.square(stderr).mean(axis=0))
        assert (values.std(axis=0, ddof=1) <= 1.5 * stated + 1e-7).all()


@pytest.mark.parametrize("name", NAMES)
def test_runs_resume_to_the_same_bits(name: str, tmp_path) -> None:
    model, x = ZOO["tiny"].make()
    whole = md.estimate(model, x, method=name, tolerance=1e-6, budget=2000)
    path, accept, accepted = tmp_path / "c", Run.accept, []

    def interrupted(run: Run, *answer: Any) -> None:
        accept(run, *answer)
        accepted.append(answer)
        if len(accepted) == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Run, "accept", interrupted)
        md.estimate(model, x, method=name, tolerance=1e-6, budget=2000, checkpoint=path)
    assert len(accepted) == 3 and path.exists()
    again = md.estimate(model, x, method=name, tolerance=1e-6, budget=2000, checkpoint=path)
    np.testing.assert_array_equal(whole.mean, again.mean)
    np.testing.assert_array_equal(whole.variance_stderr, again.variance_stderr)


def test_a_growing_ladder_is_refined_until_its_finest_level_is_negligible() -> None:
    source = _source("mlp")
    method = make_method("mlmc", ladder=(2, 4), growth=Adaptive())
    bound = method.choose(source, Goal(budget=BUDGET)).bind(source)
    assert bound.stage == ((2, 4), None) and bound.method.grows
    state, done = _run(bound, source, _from_left)
    refined = bound.refined(bound.summarise(state, done))
    assert refined is not None and refined[0].at_stage(((2, 4, 8, 16), None)).bind(source).stage[0] == (2, 4, 8, 16)
    assert not bound.method.at_stage(((2, 4, 8), None)).bind(source).has_estimates(state)  # a level without replicates


def test_an_unknown_method_is_refused_with_all_names() -> None:
    with pytest.raises(md.MLMCDropoutError, match="twos"):
        make_method("threes")
