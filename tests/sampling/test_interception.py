"""Dropout with an explicit mask is what torch does with the mask that it drew."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlmc_dropout.sampling.interception import Interceptor, apply_mask


class Spy(Interceptor):
    """Applies one mask everywhere (``None``: lets all through) and notes what it met."""

    def __init__(self, keep: Tensor | None = None) -> None:
        super().__init__()
        self.keep, self.met = keep, []

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        self.met.append((kind, p, training, shape, inplace))
        return x if self.keep is None else apply_mask(kind, x, self.keep, p)


@pytest.fixture(autouse=True)
def restore_generator():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize(
    ("kind", "function", "shape"),
    [
        ("dropout", F.dropout, (4, 6)),
        ("alpha", F.alpha_dropout, (4, 6)),
        ("feature", F.dropout1d, (4, 6, 3)),
        ("feature", F.dropout2d, (4, 6, 3, 2)),
        ("feature", F.dropout3d, (4, 6, 3, 2, 2)),
        ("feature_alpha", F.feature_alpha_dropout, (4, 6, 3)),
    ],
)
def test_apply_mask_reproduces_torch(kind: str, function, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape) + 1.0  # away from zero and from minus alpha, so that the mask can be read off
    theirs = function(x, 0.3, True)
    dropped = theirs == 0 if "alpha" not in kind else (theirs - theirs.min()).abs() < 1e-6
    mask_shape = shape if kind in ("dropout", "alpha") else (*shape[:2], *(1,) * (len(shape) - 2))
    keep = (~dropped).to(torch.uint8)[tuple(slice(0, n) for n in mask_shape)]
    assert 0 < keep.float().mean() < 1
    torch.testing.assert_close(apply_mask(kind, x, keep, 0.3), theirs)
    with torch.no_grad():  # another way through the code: fewer temporaries
        torch.testing.assert_close(apply_mask(kind, x, keep, 0.3), theirs)
    with Spy(keep) as spy:
        torch.testing.assert_close(function(x, 0.3, True), theirs)
    assert spy.met == [(kind, 0.3, True, mask_shape, False)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_apply_mask_keeps_the_precision(dtype: torch.dtype) -> None:
    x, keep = torch.ones(3, 4, dtype=dtype), torch.ones(3, 4, dtype=torch.uint8)
    with torch.no_grad():
        for kind in ("dropout", "alpha"):
            assert apply_mask(kind, x, keep, 0.2).dtype == dtype


def test_apply_mask_never_changes_its_arguments() -> None:
    x, keep = torch.ones(3, 4), torch.full((3, 4), 0.5)
    with torch.no_grad():
        for kind in ("dropout", "alpha"):
            for k in (keep, keep.to(torch.uint8), keep.double()):
                before = k.clone()
                apply_mask(kind, x, k, 0.2)
                assert torch.equal(k, before) and torch.equal(x, torch.ones(3, 4))


@pytest.mark.parametrize("batched", [True, False])
def test_inputs_without_batch_axis_have_their_channels_first(batched: bool) -> None:
    with Spy() as spy:
        F.dropout1d(torch.ones((5, 4, 3) if batched else (4, 3)), 0.2)
        F.dropout3d(torch.ones((5, 4, 3, 2, 2) if batched else (4, 3, 2, 2)), 0.2)
    lead = (5, 4) if batched else (4,)
    assert [m[3] for m in spy.met] == [(*lead, 1), (*lead, 1, 1, 1)]


@pytest.mark.parametrize("call", [torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.native_dropout])
def test_low_level_functions_are_caught(call) -> None:
    with Spy() as spy:
        call(torch.ones(3, 4), 0.25, True)
    assert spy.met[0][1:3] == (0.25, True)


@pytest.mark.parametrize("call", [torch.dropout_, torch.alpha_dropout_, torch.feature_dropout_])
def test_low_level_functions_in_place(call) -> None:
    with Spy() as spy:
        call(torch.ones(3, 4), 0.25, True)
    assert spy.met[0][4]


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, {"mask": "float"}, {"mask": "bool"}]
)
def test_attention_without_drops_is_torchs_attention(options: dict) -> None:
    options = dict(options)
    heads = 2 if options.get("enable_gqa") else 4
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, heads, 5, 8), torch.randn(3, heads, 5, 8)
    kind = options.pop("mask", None)
    if kind == "float":
        options["attn_mask"] = torch.randn(5, 5)
    if kind == "bool":
        options["attn_mask"] = torch.ones(5, 5, dtype=torch.bool).tril()
        options["attn_mask"][0] = False  # a query that may look nowhere
    expected = F.scaled_dot_product_attention(q, k, v, **options)
    with Spy() as spy:
        got = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, **options)
    torch.testing.assert_close(got, expected)
    assert spy.met == [("attention", 0.3, True, (3, 4, 5, 5), False)]


def test_attention_drops_weights_after_the_softmax() -> None:
    q = k = v = torch.randn(1, 3, 4)
    keep = torch.tensor([[[1, 0, 1], [1, 1, 1], [0, 0, 0]]], dtype=torch.uint8)
    weights = (q @ k.mT / 2).softmax(-1) * keep / 0.5
    with Spy(keep):
        torch.testing.assert_close(F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), weights @ v)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_is_seen_through(need_weights: bool) -> None:
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True), torch.randn(3, 5, 8)
    expected = layer.eval()(x, x, x, need_weights=need_weights)[0]
    with Spy() as spy:
        got = layer.train()(x, x, x, need_weights=need_weights)[0]
    torch.testing.assert_close(got, expected)
    assert [m[0] for m in spy.met] == ["dropout" if need_weights else "attention"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_one_by_one_equal_torch(kind, both: bool, packed: bool) -> None:
    net = kind(3, 4, 3, dropout=0.3, bidirectional=both, batch_first=True)
    x = torch.randn(2, 5, 3)
    inputs = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True) if packed else x
    expected, state = net.eval()(inputs)
    with Spy() as spy:
        output, final_state = net.train()(inputs)
    for a, b in zip(_flat(output, final_state), _flat(expected, state), strict=True):
        torch.testing.assert_close(a, b)
    assert [m[:3] for m in spy.met] == [("recurrent", 0.3, True)] * 2


def _flat(output, state) -> list[Tensor]:
    data = output.data if isinstance(output, nn.utils.rnn.PackedSequence) else output
    return [data, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_projected_lstm() -> None:
    net, x = nn.LSTM(3, 6, 2, dropout=0.3, proj_size=2), torch.randn(5, 2, 3)
    expected = net.eval()(x)[0]
    with Spy():
        torch.testing.assert_close(net.train()(x)[0], expected)


def test_batch_norm_uses_running_statistics_in_any_mode() -> None:
    x, mean, var = torch.randn(6, 3), torch.zeros(3), torch.ones(3)
    with Spy():
        got = F.batch_norm(x, mean, var, training=True)
        alone = F.batch_norm(x, None, None, training=True)  # has nothing else than the batch
    torch.testing.assert_close(got, F.batch_norm(x, torch.zeros(3), torch.ones(3)))
    assert torch.equal(mean, torch.zeros(3))
    torch.testing.assert_close(alone, F.batch_norm(x, None, None, training=True))


def test_alpha_constants() -> None:
    """Mean 0 and variance 1 survive alpha dropout, exactly, for any rate."""
    for p in (0.1, 0.5):
        x = torch.tensor([-1.0, 1.0], dtype=torch.float64)  # mean 0, variance 1
        one, zero = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        kept, dropped = apply_mask("alpha", x, one, p), apply_mask("alpha", x, zero, p)
        mean = (1 - p) * kept.mean() + p * dropped.mean()
        square = (1 - p) * (kept**2).mean() + p * (dropped**2).mean()
        assert math.isclose(float(mean), 0, abs_tol=1e-12) and math.isclose(float(square), 1, rel_tol=1e-12)


class _Keeps(Interceptor):
    """Lets dropout pass."""


def _for_many(function, x):
    """A function under vmap, with our rules."""

    def one(x):
        with _Keeps():
            return function(x)

    with torch.no_grad():
        return torch.func.vmap(one)(x)


def test_tangents_of_many_passes_are_as_accurate_as_torchs_own():
    x = torch.cat([torch.logspace(-30, 2, 5000), torch.linspace(-9, 9, 5001)]).reshape(73, 137)
    found, exact = _for_many(torch.tanh, x), torch.tanh(x.double())
    assert (found - exact).abs().le(torch.finfo(torch.float32).eps * exact.abs()).all()
    assert torch.equal(found[:5], _for_many(torch.tanh, x[:5])), "bits do not depend on the passes"
    assert torch.equal(_for_many(torch.tanh, x.double()), exact), "other types are left to torch"
    assert torch.equal(torch.tanh(x[0]), _for_many(lambda one: one + torch.tanh(x[0]), torch.zeros(2, 137))[0])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(3, 4, 3), (5, 2, 3, 9)),
        (nn.Conv2d(3, 6, 3, padding=1, groups=3), (5, 2, 3, 8, 8)),
        (nn.Conv3d(2, 2, 2), (3, 2, 2, 4, 4, 4)),
        (nn.Conv2d(3, 4, 3), (5, 3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval()), (5, 2, 3, 8, 8)),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval()), (5, 2, 3)),
    ],
)
def test_rows_of_all_passes_at_once_give_what_each_pass_gives(layer, shape):
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(_for_many(layer, x), torch.stack([layer(one) for one in x]))
