"""When functions of masks are recorded, when a recording is trusted, and for which inputs."""

from __future__ import annotations

import gc
import pickle
import threading
import warnings
import weakref

import pytest
import torch

from mlmc_dropout import DropoutSampler
from mlmc_dropout.errors import ModelError
from mlmc_dropout.methods.base import Task
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling import replay as replay_module
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.replay import Replay
from mlmc_dropout.sampling.sampler import FallbackWarning
from mlmc_dropout.sampling.tape import record
from mlmc_dropout.stopping.goal import Goal
from testing.oracles import source_of
from testing.zoo import ZOO

SIZE = 16
MASK = torch.tensor([1.0, 0.0, 1.0])  # three passes of one unit


def only(replay):
    """The recording of a replay that has one."""
    (recording,) = replay._recordings.values()
    return recording


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
    assert only(program.replay).trusted if program.mode == "vmap" else not program.replay._recordings


def hidden(masks):
    """Numpy works out of sight of torch's kernels: what comes back looks like a constant."""
    return masks[0] + torch.from_numpy(masks[0].numpy() * 2)


def test_a_tape_that_is_wrong_is_found_out():
    replay = Replay()
    for number in range(9):
        masks = [MASK * number]
        assert torch.equal(replay(hidden, (), masks), hidden(masks))
    assert only(replay).tape is None and only(replay).refused


@pytest.mark.parametrize("bits", [torch.tensor([[1, 0, 1, 1]] * 8, dtype=torch.uint8), torch.rand(8, 4)])
def test_masks_like_the_recorded_ones_prove_nothing(bits):
    """So others are made up: the same call again and again is replayed, and a wrong tape is found out all the same."""
    replay, sliced = Replay(), bits[:, :3]
    for _ in range(5):
        assert torch.equal(replay(hidden, (), [sliced]), hidden([sliced]))
    assert only(replay).refused
    replay = Replay()
    for _ in range(5):
        assert torch.equal(replay(lambda masks: masks[0] * 2.5, (), [sliced]), sliced * 2.5)
    assert only(replay).trusted and only(replay).plays == 3


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
    assert only(replay).proved
    x.mul_(2)
    assert torch.equal(replay(product, (x,), [MASK]), x.exp() * MASK)


def test_weights_that_were_trained_in_between_are_noticed():
    model, x = ZOO["mlp"].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(6 * SIZE))
    before = sampler.run(program, batch, keys, chunk=SIZE)
    assert only(program.replay).proved
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
        assert not program.replay._recordings


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


def test_inputs_that_take_turns_share_a_recording():
    replay = Replay()
    for turn in range(10):
        x = torch.ones(3) * turn
        for out, mask in zip(flipping(replay, lambda m: m[0] * x.exp(), (x,), 2), (1 - MASK, MASK), strict=True):  # noqa: B023
            assert torch.equal(out, mask * x.exp())
    assert only(replay).plays == 2 * 10 - 2 and only(replay).proved_for_inputs


def test_recordings_that_hold_for_some_inputs_only_become_rare(monkeypatch):
    recorded = []
    monkeypatch.setattr(replay_module, "record", lambda *a: recorded.append(1) or record(*a))
    replay = Replay()
    for turn in range(40):
        x = torch.ones(3) * turn
        for out, mask in zip(flipping(replay, lambda m: m[0] * x.sum().item(), (x,), 3), (1 - MASK, MASK) * 2):  # noqa: B023, B905
            assert torch.equal(out, mask * x.sum().item())
    assert len(recorded) <= 6


def test_a_tape_that_is_wrong_for_other_inputs_is_found_out(monkeypatch):
    """Should a way to read numbers out of a tensor be missing from the list, the second inputs show it."""
    monkeypatch.setattr("mlmc_dropout.sampling.tape._HIDDEN_READS", frozenset())
    replay = Replay()
    for turn in range(1, 5):
        x = torch.ones(3) * turn
        for out, mask in zip(
            flipping(replay, lambda m, x=x: m[0] * x.tolist()[0], (x,), 6), (1 - MASK, MASK) * 3, strict=True
        ):
            assert torch.equal(out, mask * turn)
    assert only(replay).refused


def test_inputs_are_forgotten_and_tapes_kept():
    replay, x = Replay(), torch.ones(3)
    flipping(replay, lambda m, x=x: m[0] * x.exp(), (x,))
    alive = weakref.ref(x)
    assert replay.covers([x]) and not replay.covers([torch.ones(4)])
    replay.rest()
    del x
    gc.collect()
    assert alive() is None and only(replay).trusted
    y = torch.full((3,), 2.0)
    assert torch.equal(replay(lambda m: m[0] * y.exp(), (y,), [MASK]), MASK * y.exp()) and only(replay).plays == 7


def test_tapes_of_certain_objects_are_forgotten():
    replay, scale, x = Replay(), [2.0], torch.ones(3)
    flipping(replay, lambda m: m[0] * x * scale[0], (scale, x))
    assert only(replay).trusted
    replay.rest()
    assert not replay._recordings


def test_chunks_of_other_sizes_in_between_do_no_harm():
    replay = Replay()
    for number in range(1, 30):
        for size in (20, 20, number % 7 + 1):
            masks = [torch.arange(float(size)) + number]
            assert torch.equal(replay(lambda masks: masks[0] + 1, (), masks), masks[0] + 1)
    assert max(recording.plays for recording in replay._recordings.values()) == 2 * 29 - 2


def test_there_are_not_more_and_more_recordings():
    replay = Replay()
    for size in range(1, 100):
        flipping(replay, lambda masks: masks[0] + 1, (torch.ones(size),))
    assert len(replay._recordings) <= 16


def test_designs_without_heads_keep_their_tape_from_task_to_task():
    source = source_of(*ZOO["mlp"].make())
    recorded = []
    plan = Stratified(heads=False).choose(source, Goal(budget=10_000)).bind(source)
    for number in range(6):
        plan.run(source, Task(0, 3 * number, 3))
        recorded.append(next(iter(source.program.replay._recordings.values())).tape)
    assert recorded[-1] is not None and recorded[-1] is recorded[2]


def test_tapes_do_not_travel():
    replay = Replay()
    flipping(replay, lambda masks: masks[0] + 1, ())
    assert replay._recordings and not pickle.loads(pickle.dumps(replay))._recordings
