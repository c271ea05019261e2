"""What cannot be asked, or cannot be read, is refused with the value and a remedy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md

X = torch.linspace(-1, 1, 8).reshape(4, 2)


def network(width, *tail):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, width), *tail).eval()


def ask(model, **options):
    return md.estimate(model, X, **{"method": "pooled", "budget": 20, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantities": "entropie"}, r"unknown quantity 'entropie' for outputs='values': use mean"),
        ({"quantities": "entropy"}, r"unknown quantity 'entropy' for outputs='values'.*one of outputs='logits'"),
        ({"outputs": "logits", "quantities": "aleatoric_variance"}, r"one of outputs='mean-variance'"),
        ({"outputs": "logit"}, r"unknown outputs 'logit'"),
        ({"outputs": "logits", "quantities": ()}, r"asks for nothing; leave it out"),
        ({"outputs": "logits", "quantities": ("entropy", "entropy")}, r"\['entropy'\] are asked twice"),
        ({"outputs": "logits", "quantities": (3,)}, r"a quantity is a name, md.Above.*got 3"),
        ({"quantities": "quantile_1.5"}, r"between 0 and 1: got Quantile\(1.5\)"),
        ({"quantities": "above_x"}, r"above_ is followed by a number.*got 'above_x'"),
        ({"outputs": "logits", "transform": "softmax"}, r"both say how to read the outputs; leave out transform="),
        ({"quantities": "quantile_0.5", "budget": 8}, r"a budget of 8 passes is too small for quantiles"),
    ],
)
def test_what_cannot_be_asked(options, words):
    with pytest.raises(md.InputError, match=words):
        ask(network(3), **options)


@pytest.mark.parametrize("method", ["pooled", "stratified", "control-variate", "auto"])
def test_outputs_that_do_not_fit(method):
    options = {"method": method, "budget": 400}
    with pytest.raises(md.InputError, match=r"sums over the classes that differ from 1 by .*; use outputs='logits'"):
        ask(network(3), outputs="probabilities", **options)
    with pytest.raises(md.InputError, match=r"a pass has a variance of -.*use 'mean-log-variance'"):
        ask(network(4), outputs="mean-variance", **options)
    with pytest.raises(md.InputError, match=r"shape \(1,\); use outputs='binary-logits'"):
        ask(network(1), outputs="logits", **options)
    with pytest.raises(md.InputError, match=r"got the shape \(3,\)"):
        ask(network(3), outputs="mean-log-variance", **options)


def test_several_outputs_where_one_is_needed():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network(3)

        def forward(self, x):
            out = self.net(x)
            return {"scores": out, "more": out}

    with pytest.raises(md.InputError, match=r"returns \['scores', 'more'\]; select one, as in transform="):
        ask(Two(), outputs="logits")
    right = ask(Two(), outputs="logits", transform=lambda out: out["scores"])
    assert right["entropy"].value.shape == (4,)


def test_functions_of_users_that_fail_are_named():
    def broken(d):
        raise ValueError("no such thing")

    with pytest.raises(md.InputError, match=r"features= of the quantity 'mine' fails.*no such thing"):
        ask(network(3), quantities=(md.Quantity("mine", broken, lambda e: e),))
    with pytest.raises(md.InputError, match=r"combine= of the quantity 'mine' fails.*no such thing"):
        ask(network(3), quantities=(md.Quantity("mine", lambda d: d, broken),))
    with pytest.raises(md.InputError, match=r"inputs along the first axis"):
        ask(network(3), quantities=(md.Quantity("mine", lambda d: d.sum(), lambda e: e),))
    with pytest.raises(md.InputError, match=r"combine= of the quantity 'mine'"):
        ask(network(3), quantities=(md.Quantity("mine", lambda d: d, lambda e: e.sum()),))
    with pytest.raises(md.InputError, match=r"needs a name of its own: got 'mean'"):
        ask(network(3), quantities=(md.Quantity("mean", lambda d: d, lambda e: e),))


def test_functions_of_users_with_tensors_inside():
    one = ask(network(3), quantities=(md.Quantity("most", lambda d: torch.max(d, dim=-1).values, lambda e: e),))
    assert one["most"].value.shape == (4,)


def test_a_grid_that_does_not_reach_a_quantile_says_so():
    """Passes that agree to rounding tell nothing about where others lie."""

    class Rare(nn.Module):
        """1 unless all of six units are kept, then anything from 2 on."""

        def __init__(self):
            super().__init__()
            self.drop, self.more = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x):
            kept = (self.drop(torch.ones(len(x), 6)) > 0).all(dim=1, keepdim=True)
            return torch.where(kept, 2 + self.more(x).sum(dim=1, keepdim=True), torch.ones(len(x), 1))

    result = md.estimate(Rare(), torch.rand(200, 20), method="pooled", quantities=("quantile_0.995",), budget=1000)
    one = result["quantile_0.995"]
    lost = one.value < 1.5
    assert lost.any() and not one.reliable[lost].any()
    smooth = ask(network(3), quantities=("quantile_0.5",), budget=200)
    assert smooth["quantile_0.5"].reliable.mean() > 0.8 and np.isfinite(smooth["quantile_0.5"].stderr).all()


def test_means_and_variances_along_the_last_of_several_axes():
    """One tensor (steps, means and then log-variances) is read like two outputs of (steps, means)."""
    torch.manual_seed(3)
    body = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 12))

    class Steps(nn.Module):
        def __init__(self, apart):
            super().__init__()
            self.body, self.apart = body, apart

        def forward(self, x):
            both = self.body(x).unflatten(1, (3, 4))
            return tuple(both.chunk(2, dim=-1)) if self.apart else both

    settings = {"outputs": "mean-log-variance", "method": "pooled", "budget": 40}
    one, two = (md.estimate(Steps(apart), torch.ones(4, 3), **settings) for apart in (False, True))
    assert one.mean.shape == (4, 3, 2)
    for name in ("mean", "variance", "aleatoric_variance", "total_variance"):
        np.testing.assert_allclose(one[name].value, two[name].value, rtol=1e-5)


def test_entropies_are_believed_where_rare_passes_matter_little():
    """An uncertain input is, a saturated one is not: a few passes that did not come up would change its entropy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    x = torch.tensor([[20.0, -14.0]])
    found = []
    for more in (0.0, 15.0):
        with torch.no_grad():
            model[3].bias[0] += more
        found.append(md.estimate(model, x, outputs="logits", method="pooled", budget=1000)["entropy"])
    assert found[0].value > 0.5 and found[1].value < 0.05
    assert found[0].reliable.all() and not found[1].reliable.any()
