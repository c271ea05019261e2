"""Passes of the zoo against an honest loop over ``train()``, and against exact enumeration.

Means and variances are compared in standard errors, component by component. All comparisons of this
file together raise a false alarm once in a thousand seeds; the seeds are fixed.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from mlmc_dropout import DropoutSampler
from mlmc_dropout.errors import ModelError
from mlmc_dropout.sampling import interception, proof, sites
from mlmc_dropout.sampling.batching import run_masks
from testing.zoo import NAMES, ZOO, honest_passes, leaves

ERROR_RATE = 1e-3
COMPARISONS = 4000
LIMIT = stats.norm.isf(ERROR_RATE / COMPARISONS / 2)  # 5.2
OURS, HONEST = 4000, 500

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")


def ours(model: Any, x: Any, passes: int = OURS, **options: Any) -> Tensor:
    """Passes (passes, rows, width)."""
    out = DropoutSampler(model, **options).sample(x, passes, seed=3)
    return torch.cat([part.reshape(*part.shape[:2], -1) for part in leaves(out)], dim=2)


def z_scores(a: Tensor, b: Tensor) -> np.ndarray:
    """Differences of means and of variances between two samples, in standard errors."""
    a, b = a.double(), b.double()
    spread = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    moved = (a.mean(0) - b.mean(0)) / spread.clamp_min(1e-6 * (1 + a.mean(0).abs()))
    noise = [((s - s.mean(0)) ** 2).var(0) / len(s) for s in (a, b)]
    widened = (a.var(0) - b.var(0)) / (noise[0] + noise[1]).sqrt().clamp_min(1e-6 * (1 + a.var(0)))
    return torch.cat([moved.flatten(), widened.flatten()]).abs().numpy()


def honest(name: str) -> tuple[Any, Any, Tensor]:
    model, x = ZOO[name].make()
    return model, x, honest_passes(model, x, HONEST, seed=1)


@pytest.mark.parametrize("name", NAMES)
def test_moments_agree_with_an_honest_loop(name: str) -> None:
    passes = 1000 if ZOO[name].mode == "loop" else OURS
    model, x, reference = honest(name)
    assert z_scores(ours(model, x, passes), reference).max() < LIMIT


@pytest.mark.parametrize("name", ["mlp", "residual_conv", "encoder", "lstm", "attention_weights", "alpha"])
def test_shared_masks_have_the_same_moments(name: str) -> None:
    model, x, reference = honest(name)
    assert z_scores(ours(model, x, masks="shared"), reference).max() < LIMIT


def test_shared_masks_are_one_function_per_pass() -> None:
    """Equal inputs give equal outputs under shared masks, and different ones under independent masks."""
    model, _ = ZOO["mlp"].make()
    x = torch.ones(4, 3)
    assert (ours(model, x, 50, masks="shared").std(dim=1) < 1e-5).all()
    assert (ours(model, x, 50).std(dim=1) > 1e-3).all()


# ---------------------------------------------------------------- negative controls, one per family


def test_control_plain_with_a_wrong_rate() -> None:
    model, x, reference = honest("mlp")
    assert z_scores(ours(model, x, rates={"8": 0.4}), reference).max() > LIMIT


def test_control_feature_masks_applied_to_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a mistake of ours does not get as far as a z-score: the comparison with a real pass refuses it."""
    model, x = ZOO["feature2d"].make()
    monkeypatch.setitem(interception._RULES, F.dropout2d, interception._elementwise("feature"))
    with pytest.raises(ModelError, match="do not have the shapes"):
        ours(model, x)


def test_control_alpha_treated_as_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, reference = honest("alpha")
    plain = interception.apply_mask
    monkeypatch.setattr(sites, "apply_mask", lambda kind, *rest: plain("dropout", *rest))
    with pytest.raises(ModelError, match="not the model's pass"):
        ours(model, x)
    monkeypatch.setattr(proof, "outputs_close", lambda a, b: True)
    assert z_scores(ours(model, x), reference).max() > LIMIT


def test_control_attention_dropout_all_but_skipped() -> None:
    model, x, reference = honest("attention")
    assert z_scores(ours(model, x, rates={"att.attention": 0.02}), reference).max() > LIMIT


def test_control_recurrent_dropout_before_the_first_layer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, reference = honest("gru")
    assert z_scores(ours(model, x, exclude=["net.recurrent#2"]), reference).max() > LIMIT


def test_control_weights_with_a_mask_per_row() -> None:
    """A mask per row leaves the moments of a row alone, but not the correlation of rows that one weight mask makes."""
    model, _ = ZOO["weight_dropout"].make()
    x = torch.ones(2, 3)
    one = ours(model, x)[..., 0]
    twice = torch.stack([ours(model, x[:1])[:, 0, 0], honest_passes(model, x[:1], OURS, seed=2)[:, 0, 0]])
    assert np.corrcoef(one.T.numpy())[0, 1] > 0.999
    assert abs(np.corrcoef(twice.numpy())[0, 1]) < 0.1


def test_control_inplace_alias_run_under_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens if the comparison with the loop were skipped."""
    model, x, reference = honest("inplace_alias")
    monkeypatch.setattr("mlmc_dropout.sampling.batching._compare", lambda *_: "")
    assert z_scores(ours(model, x), reference).max() > LIMIT


# ---------------------------------------------------------------------------------- enumeration


def enumerated(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """All masks of all sites shared by the rows: outputs (masks, rows, width) and probabilities, through ``play``."""
    sampler = DropoutSampler(model, masks="shared")
    batch = next(sampler.batches(x))
    program = sampler.prepare(batch)
    bits = torch.tensor(list(itertools.product((0, 1), repeat=sum(s.units for s in program.active))), dtype=torch.uint8)
    parts = bits.split([s.units for s in program.active], dim=1)
    weights = torch.ones(len(bits), dtype=torch.float64)
    masks = []
    for site, part in zip(program.active, parts, strict=True):
        weights *= torch.where(part.bool(), 1 - site.p, site.p).double().prod(dim=1)
        masks.append(part.reshape(-1, *site.shape))
    return run_masks(program, sampler.forward, batch, masks), weights


TINY = {
    "dropout": lambda: ZOO["tiny"].make(),
    "alpha": lambda: (nn.Sequential(nn.Linear(2, 4), nn.AlphaDropout(0.3), nn.Tanh()), torch.ones(1, 2)),
    "feature": lambda: (nn.Sequential(nn.Conv1d(1, 3, 2), nn.Dropout1d(0.4), nn.Flatten()), torch.ones(2, 1, 3)),
    "reused": lambda: (nn.Sequential(nn.Linear(2, 3), *[nn.Dropout(0.25)] * 2, nn.Linear(3, 1)), torch.ones(2, 2)),
    "attention": lambda: (ZOO["fused_attention"].make()[0], torch.ones(1, 2, 8).cumsum(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_moments_and_frequencies_against_all_masks(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = TINY[name]()
    outputs, weights = enumerated(model, x)
    outputs = outputs.double()
    mean = (weights[:, None, None] * outputs).sum(0)
    variance = (weights[:, None, None] * (outputs - mean) ** 2).sum(0)
    fourth = (weights[:, None, None] * (outputs - mean) ** 4).sum(0)
    n = 6000
    for sample in (ours(model, x, n).double(), honest_passes(model, x, 1500).double()):
        t = len(sample)
        z_mean = (sample.mean(0) - mean) / (variance / t).sqrt().clamp_min(1e-7)
        z_var = ((sample - mean).square().mean(0) - variance) / ((fourth - variance**2) / t).sqrt().clamp_min(1e-7)
        assert max(z_mean.abs().max(), z_var.abs().max()) < LIMIT
    wrong = (weights * 1.1 ** torch.arange(len(weights))) / (weights * 1.1 ** torch.arange(len(weights))).sum()
    off = ((wrong[:, None, None] * outputs).sum(0) - mean) / (variance / n).sqrt().clamp_min(1e-7)
    assert off.abs().max() > LIMIT  # the negative control: other probabilities have another mean


def test_enumeration_runs_the_network_one_would_write_by_hand() -> None:
    model, x = ZOO["tiny"].make()
    outputs, _ = enumerated(model, x)
    bits = torch.tensor(list(itertools.product((0.0, 1.0), repeat=5)))
    for mask, out in zip(bits, outputs, strict=True):
        h = torch.tanh(model[0](x)) * mask[:3] / 0.7
        h = torch.tanh(model[3](h)) * mask[3:] / 0.8
        torch.testing.assert_close(out, model[6](h))
