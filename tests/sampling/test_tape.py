"""Kernels recorded once and played with other masks: the same bits as the model itself, or no tape."""

from __future__ import annotations

import pickle
import threading
import warnings

import pytest
import torch

from mlmc_dropout import DropoutSampler
from mlmc_dropout.errors import ModelError
from mlmc_dropout.methods.base import Task
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.sampler import FallbackWarning
from mlmc_dropout.sampling.tape import Replay, record
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import source_of
from testing.zoo import ZOO

SIZE = 16


def chunks_of(name, masks):
    """A program of the zoo, and the outputs of many chunks: run with tapes, and one by one without."""
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model, masks)
    batch = next(sampler.batches(x))
    program = sampler.prepare(batch)
    keys = pass_keys(0, 0, 0, range(7 * SIZE))
    drawn = [sampler.draw(site, keys, batch.rows, 0) for site in program.sites]
    direct = []
    for start in range(0, len(keys), SIZE):
        chunk = [None if m is None else m[start : start + SIZE] for m in drawn]
        direct.append(sampler.run_masks(program, batch, chunk))
    return program, sampler.run(program, batch, keys, chunk=SIZE), torch.cat(direct)


@pytest.mark.parametrize("masks", ["independent", "shared"])
@pytest.mark.parametrize("name", list(ZOO))
def test_played_chunks_have_the_bits_of_the_model(name, masks):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        try:
            program, out, direct = chunks_of(name, masks)
        except ModelError as error:
            if masks == "independent":
                raise
            pytest.skip(str(error))
    assert torch.equal(out, direct)
    take = program.replay._calls.recording
    assert take.proved if program.mode == "vmap" else take is None


def twice(function, *masks):
    """A function's tape, and whether it gives the function's result for other masks."""
    _, tape = record(function, masks)
    if tape is None:
        return None
    others = [1 - mask for mask in masks]
    return torch.equal(tape.play(others), function(others))


MASK = torch.tensor([1.0, 0.0, 1.0])  # three passes of one unit
CONSTANT = torch.tensor([2.0, 3.0, 5.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda m: (m[0] * CONSTANT).sum().exp(),
        lambda m: (m[0] + 1).mul_(CONSTANT).add_(1),
        lambda m: torch.cat([m[0], CONSTANT.exp(), m[0].view(3, 1).squeeze(1)]),
        lambda m: torch.stack(torch.sort(m[0] * CONSTANT)[:1]).max(dim=1).values,
        lambda m: m[0].exp() * CONSTANT.clone().mul_(2),
        lambda m: CONSTANT * 2,
    ],
)
def test_what_can_be_played_is(function):
    assert twice(function, MASK)


@pytest.mark.parametrize(
    "function",
    [
        lambda m: CONSTANT * float(m[0].sum()),
        lambda m: m[0] * torch.rand(3),
        lambda m: CONSTANT.clone().mul_(m[0]),
        lambda m: m[0] * (one := CONSTANT.clone()) + one.mul_(2) * m[0],
        lambda m: CONSTANT if (m[0] * 2).max() > 1 else CONSTANT * 2,
    ],
    ids=["numbers", "random numbers", "writing on a constant", "changing a constant in use", "decisions"],
)
def test_what_cannot_be_played_has_no_tape(function):
    assert twice(function, MASK) is None


def hidden(masks):
    """Numpy works out of sight of torch's kernels: what comes back looks like a constant."""
    return masks[0] + torch.from_numpy(masks[0].numpy() * 2)


def test_a_tape_that_is_wrong_is_found_out():
    assert twice(hidden, MASK) is False
    replay = Replay()
    for number in range(9):
        masks = [MASK * number]
        assert torch.equal(replay(hidden, (), masks), hidden(masks))
    assert replay._calls.recording.tape is None


def test_masks_like_the_recorded_ones_prove_nothing():
    replay = Replay()
    for number in range(9):
        masks = [torch.ones(8)]
        masks[0][6] = number < 5
        assert torch.equal(replay(hidden, (), masks), hidden(masks))
    assert not replay._calls.recording.proved


def test_errors_are_those_of_the_function():
    def wrong(masks):
        raise ValueError("seven")

    replay = Replay()
    for _ in range(6):
        with pytest.raises(ValueError, match="seven") as caught:
            replay(wrong, (), [MASK])
        assert caught.value.__context__ is None


def flipping(replay, function, inputs, times=8):
    """Calls with masks that change from one to the next."""
    return [replay(function, inputs, [MASK if number % 2 else 1 - MASK]) for number in range(times)]


def test_other_inputs_are_not_mistaken_for_the_recorded_ones():
    replay, x = Replay(), torch.ones(3)

    def product(masks):
        return x.exp() * masks[0]

    flipping(replay, product, (x,))
    assert replay._calls.recording.proved
    x.mul_(2)
    assert torch.equal(replay(product, (x,), [MASK]), x.exp() * MASK)


def test_weights_that_were_trained_in_between_are_noticed():
    model, x = ZOO["mlp"].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(6 * SIZE))
    before = sampler.run(program, batch, keys, chunk=SIZE)
    assert program.replay._calls.recording.proved
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = sampler.run(program, batch, keys, chunk=SIZE)
    assert torch.equal(after, sampler.run(sampler.prepare(batch), batch, keys, chunk=SIZE))
    assert not torch.equal(before, after)


def test_a_part_in_full_precision_under_autocast():
    """Kernels are recorded below autocast, which must not work on them a second time."""

    class Careful(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Dropout(0.3))
            self.head = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.PReLU(), torch.nn.Linear(16, 1))

        def forward(self, x):
            features = self.body(x)
            with torch.autocast("cpu", enabled=False):
                return self.head(features.float())

    torch.manual_seed(0)
    sampler = DropoutSampler(Careful())
    with torch.autocast("cpu", torch.bfloat16):
        batch = next(sampler.batches(torch.rand(4, 3)))
        program = sampler.prepare(batch)
        keys = pass_keys(0, 0, 0, range(6 * SIZE))
        out = sampler.run(program, batch, keys, chunk=SIZE)
        assert torch.equal(out, sampler.run(program, batch, keys, chunk=len(keys)))
        assert program.replay._calls.recording is None


def test_another_thread_in_between_does_not_bring_its_inputs():
    """The second thread comes while the first runs its function, and has its own tape proved before that returns."""
    replay, mine, theirs = Replay(), torch.ones(3), torch.full((3,), 5.0)

    def product(x):
        return lambda masks: x * masks[0]

    def interrupted(masks):
        thread = threading.Thread(target=flipping, args=(replay, product(theirs), (theirs,)))
        thread.start()
        thread.join()
        return mine * masks[0]

    for mask in (MASK, 1 - MASK) * 3:
        assert torch.equal(replay(interrupted, (mine,), [mask]), mine * mask)


def test_inputs_that_take_turns_are_recorded_less_and_less():
    replay, recordings = Replay(), 0
    for turn in range(40):
        x = torch.ones(3) * turn
        flipping(replay, lambda masks: masks[0] * x, (x,), 3)  # noqa: B023
        recordings += replay._calls.recording is not None
    assert recordings <= 2


def test_chunks_of_other_sizes_in_between_do_no_harm():
    replay = Replay()
    for number in range(1, 30):
        for size in (20, 20, number % 7 + 1):
            masks = [torch.arange(float(size)) + number]
            assert torch.equal(replay(lambda masks: masks[0] + 1, (), masks), masks[0] + 1)
    assert replay._calls.recording.plays == 2 * 29 - 2


def test_a_kind_that_came_first_makes_way_for_the_usual_one():
    replay = Replay()
    for size in (3, 3, *[20] * 12):
        masks = [torch.rand(size)]
        assert torch.equal(replay(lambda masks: masks[0] + 1, (), masks), masks[0] + 1)
    assert replay._calls.recording.plays == 12 - 4


def test_designs_without_heads_keep_their_tape_from_task_to_task():
    source = source_of(*ZOO["mlp"].make())
    recorded = []
    plan = Stratified(heads=False).choose(source, Goal(budget=10_000)).bind(source)
    for number in range(6):
        plan.run(source, Task(0, 3 * number, 3))
        recorded.append(source.program.replay._calls.recording)
    assert recorded[-1] is not None and recorded[-1] is recorded[1]


def test_tapes_do_not_travel():
    replay = Replay()
    flipping(replay, lambda masks: masks[0] + 1, ())
    assert replay._calls.recording and not pickle.loads(pickle.dumps(replay))._calls.recording


def test_played_values_are_freed_when_nobody_needs_them():
    """A chain of a hundred kernels holds two values at a time, not a hundred."""

    def chain(masks):
        value = masks[0]
        for _ in range(100):
            value = value + 1
        return value

    _, tape = record(chain, [MASK])
    alive = [1]
    for step in tape.steps:
        alive.append(alive[-1] + len(step.made) - len(step.freed))
    assert max(alive) == 1
