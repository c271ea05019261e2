"""Passes do not depend on how they are computed, and the model is left unchanged."""

from __future__ import annotations

import copy
import threading
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlmc_dropout import DropoutSampler, FallbackWarning
from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.sampling import batching, sites
from mlmc_dropout.sampling.masks import pass_keys
from testing.zoo import NAMES, ZOO, Lambda, leaves

quiet = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")
SPLIT = [name for name in NAMES if not ZOO[name].coupled and name != "packed_lstm"]


def rows_of(x: Any, a: int, b: int) -> Any:
    if isinstance(x, dict):
        return {k: v[a:b] for k, v in x.items()}
    return tuple(v[a:b] for v in x) if isinstance(x, tuple) else x[a:b]


def size(x: Any) -> int:
    return len(next(iter(x.values())) if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x)


def flat(out: Any) -> Tensor:
    return torch.cat([part.reshape(*part.shape[:2], -1) for part in leaves(out)], dim=2)


def last_digits(a: Tensor, b: Tensor) -> None:
    """Equal up to the order in which a matrix product adds: a few units in the last place of the largest entry."""
    assert a.shape == b.shape and a.dtype == b.dtype
    eps = torch.finfo(a.dtype).eps
    assert ((a - b).abs().double() <= 64 * eps * a.double().abs().amax()).all()


# --------------------------------------------------------------------------------- invariance


@quiet
@pytest.mark.parametrize("masks", ["independent", "shared"])
@pytest.mark.parametrize("name", NAMES)
def test_chunks_change_nothing(name: str, masks: Any) -> None:
    if masks == "shared" and not ZOO[name].shared:
        pytest.skip("rows influence each other")
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model, masks)
    batch = next(sampler.batches(x))
    program = sampler.prepare(batch)
    assert program.mode == ZOO[name].mode
    keys = pass_keys(1, 0, 0, range(16))
    whole = sampler.run(program, batch, keys)
    for chunk in (1, 7, 16):
        last_digits(sampler.run(program, batch, keys, chunk=chunk), whole)
    last_digits(sampler.run(replace(program, mode="loop"), batch, keys[:4]), whole[:4])
    last_digits(sampler.run(program, batch, keys[5:6]), whole[5:6])


BITS = ["mlp", "tiny", "reused", "alpha", "encoder", "attention", "float16", "dict_input_dict_output", "feature2d"]


@pytest.mark.parametrize("name", BITS)
def test_chunks_do_not_change_a_bit(name: str) -> None:
    """Linear layers and what surrounds them, on one thread; libraries may round otherwise elsewhere."""
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    program, keys = sampler.prepare(batch), pass_keys(1, 0, 0, range(40))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = sampler.run(program, batch, keys)
        for chunk in (1, 7, 40):
            assert torch.equal(sampler.run(program, batch, keys, chunk=chunk), whole)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["mlp", "alpha", "encoder", "float64"])
def test_batches_do_not_change_a_bit(name: str) -> None:
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model)
    assert torch.equal(sampler.sample(list(x.split(1)), 9), sampler.sample(x, 9))


@quiet
@pytest.mark.parametrize("name", SPLIT)
def test_rows_may_come_in_any_batches(name: str) -> None:
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model)
    n = size(x)
    whole = flat(sampler.sample(x, 6))
    last_digits(flat(sampler.sample([rows_of(x, a, a + 1) for a in range(n)], 6)), whole)
    last_digits(flat(sampler.sample([rows_of(x, 0, 1), rows_of(x, 1, n)], 6)), whole)


@quiet
def test_passes_of_packed_sequences_keep_their_places() -> None:
    """Many rows of equal lengths: torch's sort does not keep their order by itself."""
    model, _ = ZOO["packed_lstm"].make()
    x = torch.randn(12, 5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([5, 2, 2] * 4)
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(60))
    assert program.mode == "rows"
    last_digits(sampler.run(program, batch, keys), sampler.run(replace(program, mode="loop"), batch, keys))


@quiet
def test_whole_batch_masks_differ_between_batches() -> None:
    """Where masks belong to a batch as a whole, the next batch has masks of its own."""
    model, x = ZOO["packed_lstm"].make()
    out = DropoutSampler(model).sample([x, x], 5)
    assert not torch.allclose(out[:, :4], out[:, 4:])


def test_bits_are_the_same_where_no_matrix_product_is_involved() -> None:
    model = Lambda(lambda m, x: torch.sin(m.two(torch.exp(m.one(x)))), one=nn.Dropout(0.1), two=nn.AlphaDropout(0.3))
    x = torch.randn(10, 33, generator=torch.Generator().manual_seed(0))
    sampler = DropoutSampler(model)
    whole = sampler.sample(x, 50)
    batch = next(sampler.batches(x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(50))
    for chunk in (1, 7, 50):
        assert torch.equal(sampler.run(program, batch, keys, chunk=chunk), whole)
    assert torch.equal(sampler.sample(list(x.split(1)), 50), whole)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(sampler.sample(x, 50), whole)
    finally:
        torch.set_num_threads(before)


def test_threads_change_at_most_the_last_digits() -> None:
    model, x = ZOO["mlp"].make()
    before = torch.get_num_threads()
    try:
        outs = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            outs.append(DropoutSampler(model).sample(x.repeat(20, 1), 40))
    finally:
        torch.set_num_threads(before)
    last_digits(*outs)


def test_names_of_passes() -> None:
    model, x = ZOO["mlp"].make()
    sampler = DropoutSampler(model)
    last_digits(sampler.sample(x, 5, seed=1, first=3), sampler.sample(x, 8, seed=1)[3:])
    for other in ({"seed": 2}, {"stream": 1}, {"replicate": 1}):
        assert not torch.allclose(sampler.sample(x, 5, **{"seed": 1, **other}), sampler.sample(x, 5, seed=1))


def test_designs_in_chunks() -> None:
    model, x = ZOO["mlp"].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(3))
    whole = sampler.run(program, batch, keys, design_passes=10)
    assert len(whole) == 30
    for chunk in (1, 7, 30):
        last_digits(sampler.run(program, batch, keys, chunk=chunk, design_passes=10), whole)
    last_digits(DropoutSampler(model, memory_limit=20_000).run(program, batch, keys, design_passes=10), whole)


def test_a_tight_limit_cuts_rows_and_changes_nothing() -> None:
    model, x = ZOO["residual_conv"].make()
    x = x.repeat(5, 1, 1, 1)
    last_digits(DropoutSampler(model, memory_limit=100_000).sample(x, 5), DropoutSampler(model).sample(x, 5))


# ----------------------------------------------------------------- masks seen are masks drawn


@quiet
@pytest.mark.parametrize("name", NAMES)
def test_every_site_sees_the_masks_drawn_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(x))
    program = replace(sampler.prepare(batch), mode="loop")
    seen: list[Tensor] = []
    real = sites.apply_mask

    def spy(kind: str, value: Tensor, keep: Tensor, p: float) -> Tensor:
        seen.append(keep)
        return real(kind, value, keep, p)

    monkeypatch.setattr(sites, "apply_mask", spy)
    keys = pass_keys(0, 0, 0, range(3))
    sampler.run(program, batch, keys)
    drawn = [sampler.draw(site, keys, batch.rows, 0) for site in program.active]
    expected = [mask[t] for t in range(3) for mask in drawn if mask is not None]
    assert len(seen) == len(expected) == 3 * len(program.active)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


# --------------------------------------------------------------------------- inputs and outputs


def test_structures_of_outputs() -> None:
    model, x = ZOO["dict_input_dict_output"].make()
    out = DropoutSampler(model).sample(x, 4)
    assert {k: tuple(v.shape) for k, v in out.items()} == {"u": (4, 5, 2), "f": (4, 5)}
    model, x = ZOO["tuple_output"].make()
    assert [tuple(v.shape) for v in DropoutSampler(model).sample(x, 4)] == [(4, 5, 2), (4, 5, 4, 4)]
    model, x = ZOO["mlp"].make()
    assert (
        DropoutSampler(model, transform=lambda y: y.softmax(-1)).sample(x.numpy(), 4).sum(-1).allclose(torch.ones(()))
    )


def test_models_that_squeeze_their_output() -> None:
    model = Lambda(lambda m, x: m.net(x).squeeze(), net=nn.Sequential(nn.Dropout(0.2), nn.Linear(3, 1)))
    x = torch.randn(7, 3)
    assert DropoutSampler(model).sample(x, 4).shape == (4, 7)
    assert DropoutSampler(model, memory_limit=200).sample(x, 4).shape == (4, 7)


def test_bad_calls() -> None:
    model, x = ZOO["mlp"].make()
    with pytest.raises(InputError, match="at least 1: got 0"):
        DropoutSampler(model).sample(x, 0)
    with pytest.raises(ModelError, match="transform="):
        DropoutSampler(model, transform=lambda y: y.sum(0)).sample(x, 3)


@quiet
@pytest.mark.parametrize("name", ["sequence_first", "centred_rows", "packed_lstm"])
def test_shared_masks_are_refused_where_rows_are_not_separate(name: str) -> None:
    model, x = ZOO[name].make()
    with pytest.raises(ModelError, match="independent"):
        DropoutSampler(model, "shared").sample(x, 3)


def test_coupling_is_found_even_between_equal_rows() -> None:
    model, _ = ZOO["centred_rows"].make()
    sampler = DropoutSampler(model)
    assert not sampler.prepare(next(sampler.batches(torch.ones(4, 3)))).rows_independent


def test_rows_laid_out_the_other_way_round_are_not_cut() -> None:
    """Heads first, rows second on one axis: which units belong to which row is not what it seems."""

    def run(m: nn.Module, x: Tensor) -> Tensor:
        heads = x.unflatten(1, (2, 3)).transpose(0, 1).flatten(0, 1)  # (heads · rows, 3)
        return m.drop(heads).unflatten(0, (2, len(x))).sum(0)

    model = Lambda(run, drop=nn.Dropout(0.3))
    sampler = DropoutSampler(model)
    assert not sampler.prepare(next(sampler.batches(torch.rand(4, 6)))).rows_independent
    with pytest.raises(ModelError, match="shared"):
        DropoutSampler(model, "shared").sample(torch.rand(4, 6), 3)


# ------------------------------------------------------------------------------------ fallbacks


def test_fallbacks_say_so_once() -> None:
    model, x = ZOO["lstm"].make()
    sampler = DropoutSampler(model)
    with pytest.warns(FallbackWarning, match="repeated rows"):
        sampler.sample([x, x], 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.sample(x, 3)
        DropoutSampler(ZOO["mlp"].make()[0]).sample(ZOO["mlp"].make()[1], 3)


def test_python_numbers_in_forward_force_a_loop() -> None:
    """Taking a number out of a tensor cannot be batched; here it couples the rows, too."""
    model = Lambda(lambda m, x: m.drop(x) * float(m.drop(x).mean()), drop=nn.Dropout(0.2))
    x = torch.rand(4, 3) + 1
    with pytest.warns(FallbackWarning, match="one by one"):
        out = DropoutSampler(model).sample(x, 200)
    assert out.std(dim=0).min() > 0.01


def test_a_way_that_gives_other_results_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = ZOO["mlp"].make()
    right = batching._RUN["vmap"]
    monkeypatch.setitem(batching._RUN, "vmap", lambda *a: right(*a) * 1.001)
    sampler = DropoutSampler(model)
    with pytest.warns(FallbackWarning, match="vmap gives other outputs than a loop"):
        program = sampler.prepare(next(sampler.batches(x)))
    assert program.mode == "rows"


def test_control_flow_that_changes_later_is_caught() -> None:
    model = Lambda(lambda m, x: m.drop(m.drop(x)) if m.later else m.drop(x), drop=nn.Dropout(0.2))
    model.later = False
    sampler = DropoutSampler(model)
    batch = next(sampler.batches(torch.rand(3, 4)))
    program = sampler.prepare(batch)
    program.model.later = True
    with pytest.raises(ModelError, match="control flow"):
        sampler.run(program, batch, pass_keys(0, 0, 0, range(2)))


# ------------------------------------------------------------------------- the model stays as it is


def fingerprint(model: Any) -> list[Any]:
    if not isinstance(model, nn.Module):
        return []
    state = [(n, m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()]
    tensors = [(n, t.clone(), t.requires_grad, id(t)) for n, t in (*model.named_parameters(), *model.named_buffers())]
    return [state, [(n, t.tolist(), g, i) for n, t, g, i in tensors], sorted(vars(model))]


def surroundings() -> list[Any]:
    generator = np.random.get_state()[1].tolist()  # noqa: NPY002
    return [torch.random.get_rng_state().tolist(), generator, torch.get_num_threads(), torch.is_grad_enabled()]


@quiet
@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_left_as_found(name: str, mode: bool) -> None:
    model, x = ZOO[name].make()
    if isinstance(model, nn.Module):
        model.train(mode)
    inputs = copy.deepcopy(x)
    before = fingerprint(model), surroundings()
    DropoutSampler(model).sample(x, 3)
    assert (fingerprint(model), surroundings()) == before
    for a, b in zip(leaves(x if not isinstance(x, tuple) else list(x)), leaves(inputs), strict=True):
        assert torch.equal(a, b)


def test_the_model_is_left_as_found_after_an_exception() -> None:
    def run(m: nn.Module, x: Tensor) -> Tensor:
        m.calls += 1
        if x.abs().max() > 100:
            raise RuntimeError("the user's own error")
        return m.drop(x)

    model = Lambda(run, drop=nn.Dropout(0.2), norm=nn.BatchNorm1d(3)).train()
    model.register_buffer("calls", torch.zeros(()))
    before = fingerprint(model), surroundings()
    with pytest.raises(RuntimeError, match="the user's own error"):
        DropoutSampler(model).sample(torch.full((3, 4), 1000.0), 3)
    assert (fingerprint(model), surroundings()) == before
    with torch.no_grad():
        assert F.dropout(torch.ones(1000), 0.5).eq(0).any()  # no mode of ours is left active


def test_two_threads_share_a_model() -> None:
    model, x = ZOO["residual_conv"].make()
    alone = [DropoutSampler(model).sample(x, 20, seed=s) for s in range(4)]
    before = fingerprint(model), surroundings()
    samples: dict[int, Tensor] = {}

    def work(seed: int) -> None:
        samples[seed] = DropoutSampler(model).sample(x, 20, seed=seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, out in enumerate(alone):
        last_digits(samples[seed], out)
    assert (fingerprint(model), surroundings()) == before


def test_training_the_model_meanwhile_is_harmless() -> None:
    """The twin shares the parameters, not the mode: a pass inside train() is a pass."""
    model, x = ZOO["residual_conv"].make()
    expected = DropoutSampler(model).sample(x, 5)
    last_digits(DropoutSampler(model.train()).sample(x, 5), expected)


@pytest.mark.parametrize("masks", ["independent", "shared"])
@pytest.mark.parametrize("name", ["mlp", "encoder", "residual_conv", "weight_dropout", "gru"])
def test_masks_of_all_sites_are_those_of_each(name, masks):
    model, x = ZOO[name].make()
    sampler = DropoutSampler(model, masks)
    batch = next(sampler.batches(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = sampler.prepare(batch)
    keys = pass_keys(3, 0, 0, range(7))
    for first in (0, 5):
        together = sampler.draw_all(program, keys, batch.rows, first)
        for site, mask in zip(program.sites, together, strict=True):
            alone = sampler.draw(site, keys, batch.rows, first)
            assert (mask is None) == (alone is None) and (mask is None or torch.equal(mask, alone))
