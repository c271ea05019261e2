"""Finding the sites: all of them, with names, and refusals that say where."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlmc_dropout import DropoutSampler, MLMCDropoutError
from mlmc_dropout.errors import InputError, ModelError
from testing.zoo import NAMES, ZOO, Lambda

pytestmark = pytest.mark.filterwarnings("ignore::mlmc_dropout.FallbackWarning")

EXPECTED = {
    "tiny": [("2", "dropout", 0.3, (1, 3)), ("5", "dropout", 0.2, (1, 2))],
    "functional": [("dropout", "dropout", 0.3, (1, 16))],
    "if_training": [("dropout", "dropout", 0.4, (1, 12))],
    "plain_callable": [("dropout", "dropout", 0.25, (1, 16))],
    "reused": [(f"drop#{n}", "dropout", 0.2, (1, 12)) for n in (1, 2, 3)],
    "feature1d": [("2", "feature", 0.3, (1, 8, 1))],
    "feature2d": [("2", "feature", 0.25, (1, 6, 1, 1))],
    "feature3d": [("2", "feature", 0.4, (1, 6, 1, 1, 1))],
    "alpha": [("2", "alpha", 0.2, (1, 16)), ("5", "alpha", 0.1, (1, 16))],
    "feature_alpha": [("2", "feature_alpha", 0.2, (1, 8, 1))],
    "attention": [("att.attention", "attention", 0.2, (1, 2, 5, 5))],
    "attention_weights": [("att.dropout", "dropout", 0.2, (2, 5, 5))],
    "fused_attention": [("attention", "attention", 0.25, (1, 2, 5, 5))],
    "lstm": [("net.recurrent", "recurrent", 0.3, (5, 1, 6))],
    "gru": [(f"net.recurrent#{n}", "recurrent", 0.2, (5, 1, 10)) for n in (1, 2)],
    "weight_dropout": [("dropout", "dropout", 0.2, (12, 3))],
    "packed_lstm": [("net.recurrent", "recurrent", 0.3, (12, 6))],
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_sites_of_the_zoo(name: str) -> None:
    model, x = ZOO[name].make()
    sites = DropoutSampler(model).sites(x)
    assert [(s.name, s.kind, s.p, s.shape) for s in sites] == EXPECTED[name]
    assert all(s.active for s in sites)


def test_encoder_sites_include_what_the_fast_path_would_skip() -> None:
    model, x = ZOO["encoder"].make()
    names = [s.name for s in DropoutSampler(model).sites(x)]
    sites_per_layer = ["self_attn.attention", "dropout1", "dropout", "dropout2"]
    assert names == [f"layers.{i}.{part}" for i in (0, 1) for part in sites_per_layer]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 2])
def test_sites_do_not_depend_on_the_number_of_rows(name: str, rows: int) -> None:
    model, x = ZOO[name].make()
    if ZOO[name].name == "packed_lstm" or ZOO[name].coupled:
        pytest.skip("the masks belong to the whole batch")
    few = {k: v[:rows] for k, v in x.items()} if isinstance(x, dict) else x
    few = tuple(v[:rows] for v in x) if isinstance(x, tuple) else few[:rows] if isinstance(x, Tensor) else few
    of_all_rows, of_few_rows = DropoutSampler(model).sites(x), DropoutSampler(model).sites(few)
    assert of_all_rows == of_few_rows


# ----------------------------------------------------------------------------- hidden dropout


class Unregistered(nn.Module):
    """Keeps its layers in a list, where train() and eval() do not reach them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.hidden = nn.Dropout(0.1), [nn.Dropout(0.4)]

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden[0](self.seen(x))


def test_dropout_layers_out_of_reach_of_train_are_on() -> None:
    model = Unregistered().eval()
    model.hidden[0].eval()
    assert [(s.p, s.active) for s in DropoutSampler(model).sites(torch.ones(3, 4))] == [(0.1, True), (0.4, True)]


def test_dropout_switched_off_by_its_author_stays_off() -> None:
    model = Lambda(lambda m, x: F.dropout(m.drop(x), 0.3, training=False), drop=nn.Dropout(0.1))
    assert [s.active for s in DropoutSampler(model).sites(torch.ones(3, 4))] == [True, False]


def test_methods_and_compiled_modules_are_opened() -> None:
    model, x = ZOO["functional"].make()
    assert DropoutSampler(model.forward).sites(x)[0].active
    model._compiled_call_impl = lambda *_: pytest.fail("the compiled call must not run")  # what Module.compile() sets
    assert DropoutSampler(model).sites(x)[0].active


# ---------------------------------------------------------------------------------- refusals


def _refused(model, x: Tensor | None = None) -> str:
    with pytest.raises(ModelError) as caught:
        DropoutSampler(model).sites(torch.ones(3, 4) if x is None else x)
    return str(caught.value)


def test_numbers_that_cannot_be_controlled_are_refused_by_name() -> None:
    shuffle = Lambda(lambda m, x: x[torch.randperm(len(x))])
    message = _refused(nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(4, 4), shuffle)))
    assert "aten::randperm" in message and "test_sites.py, line" in message


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x[torch.randperm(len(x))],
        lambda x: x * torch.randint(0, 2, x.shape),
        lambda x: x * torch.poisson(torch.ones_like(x)),
        lambda x: x.softmax(-1).multinomial(1),
    ],
)
def test_other_laws_are_refused(draw) -> None:
    assert "cannot be controlled" in _refused(lambda x: draw(F.dropout(x, 0.2)))


BY_HAND = [
    (lambda x: x * torch.bernoulli(torch.full_like(x, 0.9)), "uniform"),
    (lambda x: x * torch.bernoulli(x, 0.9), "bernoulli"),
    (lambda x: x * torch.empty_like(x).bernoulli_(0.9), "bernoulli"),
    (lambda x: x * torch.empty_like(x).bernoulli_(torch.tensor(0.9)), "uniform"),
    (lambda x: x * (torch.rand_like(x) < 0.9), "uniform"),
    (lambda x: x * (torch.rand(x.shape) < 0.9), "uniform"),
    (lambda x: x * (torch.rand(*x.shape, dtype=torch.float64) < 0.9), "uniform"),
    (lambda x: x * torch.empty_like(x).uniform_(0.5, 1.5), "uniform"),
    (lambda x: x + torch.randn_like(x), "normal"),
    (lambda x: x + torch.randn(x.shape), "normal"),
    (lambda x: x + torch.empty_like(x).normal_(1.0, 2.0), "normal"),
    (lambda x: x + torch.normal(0.0, torch.ones_like(x)), "normal"),
    (lambda x: x + torch.normal(0.0, 1.0, x.shape), "normal"),
    (lambda x: x + torch.distributions.Normal(torch.zeros_like(x), 1.0).rsample(), "normal"),
    (lambda x: F.rrelu(x, training=True), "uniform"),
    (lambda x: F.gumbel_softmax(x), "uniform"),
]


@pytest.mark.parametrize(("draw", "law"), BY_HAND)
def test_numbers_drawn_by_hand_are_sites(draw, law: str) -> None:
    sites = DropoutSampler(lambda x: draw(F.dropout(x, 0.2))).sites(torch.randn(3, 4))
    assert [(s.kind, s.law) for s in sites] == [("dropout", "bernoulli"), (law, law)]
    assert sites[1].shape == (1, 4) and sites[1].row_axis == 0 and not sites[1].in_kernel


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numbers_drawn_out_of_sight_of_python_are_sites_of_kernels() -> None:
    scripted = _scripted()
    sites = DropoutSampler(lambda x: scripted(F.dropout(x, 0.2))).sites(torch.randn(3, 4))
    assert [(s.kind, s.p, s.in_kernel) for s in sites] == [("dropout", 0.2, False), ("bernoulli", 0.5, True)]


def _scripted():
    def drop(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, True)

    return torch.jit.script(drop)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused_by_name() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    assert "TorchScript" in _refused(scripted)
    assert "inner.1" in _refused(Lambda(lambda m, x: m.inner(x), inner=nn.Sequential(nn.Dropout(0.1), scripted)))


class DropPath(nn.Module):
    """Stochastic depth: off in eval()."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(len(x), 1).ge(0.2) / 0.8 if self.training else x


def test_stochastic_depth_is_a_site_of_its_own_kind() -> None:
    model = nn.Sequential(nn.Dropout(0.1), DropPath(), nn.RReLU()).eval()
    x = torch.randn(3, 4)
    before = torch.random.get_rng_state()
    sites = DropoutSampler(model).sites(x)
    assert [(s.name, s.kind, s.shape) for s in sites] == [
        ("0", "dropout", (1, 4)),
        ("1", "path", (1, 1)),
        ("2.uniform", "uniform", (1, 4)),
    ]
    assert torch.equal(before, torch.random.get_rng_state())


def test_dropout_met_only_in_training_is_found_beside_other_randomness() -> None:
    only = Lambda(lambda m, x: F.dropout(x, 0.2) if m.training else x)
    sites = DropoutSampler(nn.Sequential(nn.Dropout(0.1), only, DropPath()).eval()).sites(torch.ones(3, 4))
    assert [s.name for s in sites] == ["0", "1.dropout", "2"]


@pytest.mark.parametrize("model", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.0))])
def test_models_without_active_dropout_are_refused(model) -> None:
    assert "no active dropout" in _refused(model)


def test_sites_that_depend_on_the_number_of_rows_belong_to_the_whole_batch() -> None:
    model = Lambda(lambda m, x: m.drop(x) if len(x) > 2 else m.drop(m.drop(x)), drop=nn.Dropout(0.1))
    (site,) = DropoutSampler(model).sites(torch.ones(3, 4))
    assert not site.splits_by_row and site.shape == (3, 4)


def test_control_flow_that_follows_activations_is_refused() -> None:
    def run(m: nn.Module, x: Tensor) -> Tensor:
        h = m.drop(x)
        return m.drop(h) if float((h == 0).sum()) > 0 else h

    assert "belong to no dropout site" in _refused(Lambda(run, drop=nn.Dropout(0.5)), torch.ones(30, 4))


@pytest.mark.parametrize("p", [1.0, 1.5, -0.1])
def test_impossible_rates(p: float) -> None:
    drop = nn.Dropout(0.5)
    drop.p = p
    assert "'0'" in _refused(nn.Sequential(drop)) and str(p) in _refused(nn.Sequential(drop))


# ----------------------------------------------------------------------- include, exclude, rates


def _states(**options) -> list[tuple[str, float, bool]]:
    model, x = ZOO["mlp"].make()
    return [(s.name, s.p, s.active) for s in DropoutSampler(model, **options).sites(x)]


def test_include_exclude_rates() -> None:
    assert _states(include=["2", "8"]) == [("2", 0.1, True), ("5", 0.25, False), ("8", 0.5, True)]
    assert _states(exclude=["[25]"]) == [("2", 0.1, False), ("5", 0.25, False), ("8", 0.5, True)]
    assert _states(rates=0.3) == [("2", 0.3, True), ("5", 0.3, True), ("8", 0.3, True)]
    assert _states(rates={"5": 0.0, "*": 0.2}) == [("2", 0.2, True), ("5", 0.0, False), ("8", 0.2, True)]


def test_rates_replace_the_masks_and_the_scale() -> None:
    """Where only the rate differs, outputs are those of a model built with that rate."""
    model, x = ZOO["mlp"].make()
    other, _ = ZOO["mlp"].make()
    for layer in other:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.3
    ours = DropoutSampler(model, rates=0.3).sample(x, 20)
    torch.testing.assert_close(ours, DropoutSampler(other).sample(x, 20))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"include": ["nothing"]}, ["include", "'nothing'", "'2', '5', '8'"]),
        ({"exclude": ["x*"]}, ["exclude", "'x*'"]),
        ({"rates": {"9": 0.1}}, ["rates", "'9'"]),
        ({"include": "2"}, ["['2']"]),
        ({"rates": {"2": 1.0}}, ["'2'", "1.0", "0 <= p < 1"]),
        ({"rates": -0.5}, ["-0.5"]),
        ({"exclude": ["*"]}, ["no active dropout", "excluded"]),
    ],
)
def test_bad_choices_say_what_is_wrong(options: dict, words: list[str]) -> None:
    with pytest.raises(MLMCDropoutError) as caught:
        _states(**options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(("options", "word"), [({"masks": "same"}, "'shared'"), ({"memory_limit": 0}, "memory_limit")])
def test_bad_arguments(options: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        DropoutSampler(nn.Dropout(0.1), **options)
    with pytest.raises(InputError, match="callable"):
        DropoutSampler(3)
