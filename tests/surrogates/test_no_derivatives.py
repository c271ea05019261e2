"""Outputs without derivatives: other methods take over and say why, with moments as right as ever.

The reference is the plain loop over ``train()``, all of whose passes are rows of one batch here. z-scores combine both
standard errors; with ``z_limit`` all cases of a table together fail by chance with a probability below 0.1 %.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from mlmc_dropout import estimate
from mlmc_dropout.errors import ModelError
from mlmc_dropout.methods.auto import Auto
from mlmc_dropout.methods.control_variate import ControlVariate
from mlmc_dropout.methods.pooled import Pooled
from mlmc_dropout.methods.stratified import Stratified
from mlmc_dropout.sampling.sites import Site
from mlmc_dropout.surrogates.derivatives import DerivativeError
from mlmc_dropout.surrogates.linear import expansion_of, linearise
from mlmc_dropout.surrogates.quadratic import fit_quadratic
from testing.oracles import run_method, source_of, z_limit

pytestmark = [
    pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),  # torch's, for every checkpoint
]

ROWS, PASSES = 4, 20_000


class OneWay(torch.autograd.Function):
    """A function of the user's that nobody wrote a backward pass for."""

    @staticmethod
    def forward(ctx, h):
        return torch.tanh(h)


class NotBatched(torch.autograd.Function):
    """One that can be differentiated, but not under vmap."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return 2 * h

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Net(nn.Module):
    """3–8–8–3 with two dropout layers; ``middle`` and ``end`` are what a case is about."""

    def __init__(self, middle=lambda net, h: net.second(h), end=lambda out: out):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.3))
        self.second = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2))
        self.last = nn.Linear(8, 3)
        self.middle, self.end = middle, end

    def forward(self, x):
        return self.end(self.last(self.middle(self, self.first(x))))


class WithoutGrad(Net):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


def made(kind=Net, **parts):
    """A network that no vote and no threshold is certain about."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        net = kind(**parts).eval()
        net.last.bias.zero_()
        return net


def with_inference_weights():
    with torch.inference_mode():
        return made()


def recomputed(reentrant):
    return lambda net, h: checkpoint(net.second, h, use_reentrant=reentrant)


def doubled(net, h):
    h = net.second(h)
    return NotBatched.apply(h) if torch.is_grad_enabled() else 2 * h


# Models, and a word that the reason has to contain.
NONE = {
    "argmax": (lambda: made(end=lambda out: out.argmax(-1)), "int64"),
    "votes": (lambda: made(end=lambda out: F.one_hot(out.argmax(-1), 3).float()), "argmax"),
    "threshold": (lambda: made(end=lambda out: (out > 0).float()), "threshold"),
    "decisions": (lambda: made(end=lambda out: out > 0), "derivatives"),
    "integers": (lambda: made(end=lambda out: (4 * out).round().int()), "int32"),
    "detached": (lambda: made(end=torch.Tensor.detach), "detach"),
    "no_grad": (lambda: made(WithoutGrad), "no_grad"),
    "inference weights": (with_inference_weights, "nference tensors"),
    "checkpoint": (lambda: made(middle=recomputed(False)), "checkpoint"),
    "checkpoint, reentrant": (lambda: made(middle=recomputed(True)), "checkpoint"),
    "no backward": (lambda: made(middle=lambda net, h: OneWay.apply(net.second(h))), "backward"),
}
# Models whose derivatives exist, but are 0, or missing for some outputs or under vmap.
SOME = {
    "rounded": lambda: made(end=lambda out: torch.round(8 * out)),
    "detached inside": lambda: made(middle=lambda net, h: net.second(h).detach()),
    "votes beside probabilities": lambda: made(
        end=lambda out: {"p": out.softmax(-1), "vote": F.one_hot(out.argmax(-1), 3)}
    ),
    "not under vmap": lambda: made(middle=doubled),
}
MODELS = {name: make for name, (make, _) in NONE.items()} | SOME


def inputs():
    return torch.linspace(-1, 1, 3 * ROWS).reshape(ROWS, 3)


def flat(out):
    parts = list(out.values()) if isinstance(out, dict) else [out]
    return torch.cat([part.reshape(len(part), -1).double() for part in parts], dim=1)


def honest(model):
    """Mean and variance of train-mode passes with their standard errors: (rows, width) each."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(11)
        out = flat(model.train()(inputs().repeat_interleave(PASSES, 0))).unflatten(0, (ROWS, PASSES)).numpy()
    model.eval()
    centred = out - out.mean(axis=1, keepdims=True)
    mu2, mu4 = (centred**2).mean(axis=1), (centred**4).mean(axis=1)
    return out.mean(axis=1), np.sqrt(mu2 / PASSES), mu2, np.sqrt(np.maximum(mu4 - mu2**2, 0) / PASSES)


def z_scores(result, model):
    mean, mean_error, variance, variance_error = honest(model)
    pairs = (
        (result.mean, result.mean_stderr, mean, mean_error),
        (result.variance, result.variance_stderr, variance, variance_error),
    )
    scores = []
    for estimated, error, reference, reference_error in pairs:
        estimated, error = (flat_array(values) for values in (estimated, error))
        scores.append((estimated - reference) / np.sqrt(error**2 + reference_error**2 + 1e-12))
    return np.stack(scores)


def flat_array(values):
    parts = list(values.values()) if isinstance(values, dict) else [values]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


LIMIT = z_limit(2 * 2 * len(MODELS) * 2 * ROWS * 6)


@pytest.mark.parametrize("budget", [300, 2000])
@pytest.mark.parametrize("method", ["auto", "stratified"])
@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_of_the_honest_loop(name, method, budget):
    model = MODELS[name]()
    result = estimate(model, inputs(), method=method, budget=budget, seed=5)
    z = z_scores(result, model)
    assert np.abs(z).max() < LIMIT
    assert np.sqrt((z**2).mean()) < 1.5
    assert result.cost <= budget


def test_a_wrong_rate_is_noticed():
    """Negative control: the same comparison with another dropout rate."""
    model = MODELS["threshold"]()
    result = estimate(model, inputs(), budget=2000, seed=5, rates=0.5)
    assert np.abs(z_scores(result, model)).max() > LIMIT


@pytest.mark.parametrize("name", NONE)
def test_auto_names_the_cause(name):
    make, word = NONE[name]
    result = estimate(make(), inputs(), budget=2000)
    assert result.method in ("stratified", "pooled")
    (reason,) = (note for note in result.notes if "auto chose" in note)
    assert "derivatives" in reason and word in reason and len(reason) < 250


@pytest.mark.parametrize("name", NONE)
def test_stratified_does_without_heads(name):
    make, word = NONE[name]
    result = estimate(make(), inputs(), method="stratified", budget=2000)
    assert any("derivatives" in note and word in note for note in result.notes)


@pytest.mark.parametrize("name", NONE)
def test_the_control_variate_is_refused_with_cause_and_remedy(name):
    make, word = NONE[name]
    with pytest.raises(ModelError, match="use method='stratified'") as caught:
        estimate(make(), inputs(), method="control-variate", budget=2000)
    assert word in str(caught.value)


@pytest.mark.parametrize("name", SOME)
def test_derivatives_that_vanish_are_derivatives(name):
    model = SOME[name]()
    result = estimate(model, inputs(), method="control-variate", budget=2000, seed=5)
    assert np.abs(z_scores(result, model)).max() < LIMIT


@pytest.mark.parametrize("name", ["rounded", "detached inside"])
def test_an_expansion_without_slopes_is_zero(name):
    source = source_of(SOME[name](), inputs())
    expansion = expansion_of(source.program, linearise(source.sampler, source.program, source.batch))
    masks = [torch.ones(5, ROWS, *site.shape[1:]) for site in source.program.sites]
    for values in (expansion.values(masks, ROWS), expansion.squares(masks, ROWS)):
        assert values.shape == (5, ROWS, 3)
        assert not values.any()
    assert not expansion.variance.any()


def test_gradients_at_random_masks_are_found_without_vmap():
    source = source_of(SOME["not under vmap"](), inputs())
    same = source_of(made(middle=lambda net, h: 2 * net.second(h)), inputs())
    assert source.program.mode == "vmap"
    fitted, expected = (fit_quadratic(s.sampler, s.program, s.batch, 20, {}, 0)[0] for s in (source, same))
    torch.testing.assert_close(fitted.variance, expected.variance)


def test_the_error_survives_a_pickle():
    import pickle

    again = pickle.loads(pickle.dumps(DerivativeError("no backward")))
    assert again.cause == "no backward" and "no backward" in str(again)


def test_an_answer_to_tolerance_without_derivatives():
    result = estimate(MODELS["votes"](), inputs(), tolerance=0.02)
    assert result.status.name == "TOLERANCE_MET"
    assert any("derivatives" in note for note in result.notes)


def test_a_constant_model_has_a_plan_for_every_method():
    model = made(end=lambda out: 0 * out)
    for method in (Pooled(), Stratified(), ControlVariate(), Auto()):
        estimates = run_method(method, source_of(model, inputs()), 400)
        assert not estimates.mean.any() and not estimates.variance.any() and not estimates.variance_stderr.any()


@pytest.mark.skipif("law" not in {f.name for f in dataclasses.fields(Site)}, reason="all sites have keep bits")
def test_sites_of_other_laws_are_left_out():
    """The second site counts as noise: no gradient with respect to it, no head, and moments that are known."""
    source = source_of(made(), inputs())
    first, second = source.program.sites
    program = dataclasses.replace(source.program, sites=(first, dataclasses.replace(second, law="uniform")))
    slopes = linearise(source.sampler, program, source.batch)
    assert slopes.in_masks[0] is not None and slopes.in_masks[1] is None and slopes.in_outputs[1] is None
    assert expansion_of(program, slopes).variance.min() > 0
