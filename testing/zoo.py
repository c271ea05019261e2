"""A zoo of small models, one for every way in which a forward pass can meet dropout.

``ZOO`` maps a name to an :class:`Entry`; ``entry.make()`` returns ``(model, x)`` with weights that
follow from a seed. :func:`honest_passes` is the reference everything is compared with: the plain loop
over ``train()`` with normalisation layers in ``eval()``, drawing from torch's own generators.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["NAMES", "ZOO", "Entry", "call", "honest_passes", "leaves"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the zoo; ``make()`` returns (model, x)."""

    name: str
    make: Callable[[], tuple[Any, Any]]
    family: str  # "plain", "feature", "alpha", "attention", "recurrent", "inplace", "weights"
    mode: str = "vmap"  # the way passes are expected to run
    shared: bool = True  # whether masks="shared" is possible
    coupled: bool = False  # whether an output row depends on other input rows


ZOO: dict[str, Entry] = {}


def _entry(family: str = "plain", **options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function that builds (model, x), with a generator seed of its own."""

    def register(build: Callable[[], tuple[Any, Any]]) -> Callable[[], Any]:
        seed = len(ZOO) + 1

        def make() -> tuple[Any, Any]:
            with torch.random.fork_rng(devices=[]):  # constructors draw from the global generator
                torch.manual_seed(seed)
                model, x = build()
            _randomise(model, torch.Generator().manual_seed(seed))
            return (model.eval() if isinstance(model, nn.Module) else model), x

        name = build.__name__
        ZOO[name] = Entry(name, make, family, **options)
        return make

    return register


def _randomise(model: Any, generator: torch.Generator) -> None:
    """Weights from a local generator; statistics of BatchNorm that differ from the batch's."""
    if not isinstance(model, nn.Module):
        return
    for parameter in model.parameters():
        bound = 1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
        value = torch.empty(parameter.shape).uniform_(-bound, bound, generator=generator)
        parameter.data.copy_(value + (parameter.dim() == 1))
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.empty(buffer.shape).uniform_(0.5, 1.5, generator=generator))


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Lambda(nn.Module):
    """A module whose forward pass is a function of itself and the inputs."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


# ---------------------------------------------------------------------------- modules and functions


@_entry()
def tiny():
    """Five mask bits: all 32 masks can be enumerated."""
    hidden = [nn.Linear(2, 3), nn.Tanh(), nn.Dropout(0.3), nn.Linear(3, 2), nn.Tanh(), nn.Dropout(0.2)]
    return nn.Sequential(*hidden, nn.Linear(2, 1)), _x(4, 2)


@_entry()
def mlp():
    """Three hidden layers with different rates."""
    layers: list[nn.Module] = []
    for width, p in ((3, 0.1), (20, 0.25), (20, 0.5)):
        layers += [nn.Linear(width, 20), nn.SiLU(), nn.Dropout(p)]
    return nn.Sequential(*layers, nn.Linear(20, 2)), _x(6, 3)


@_entry()
def functional():
    return Lambda(
        lambda m, x: m.out(F.dropout(torch.relu(m.first(x)), 0.3, m.training)),
        first=nn.Linear(3, 16),
        out=nn.Linear(16, 2),
    ), _x(5, 3)


@_entry()
def functional_bare():
    """Dropout that is on in every mode."""
    return Lambda(
        lambda m, x: m.out(F.dropout(torch.tanh(m.first(x)), 0.2)), first=nn.Linear(3, 16), out=nn.Linear(16, 1)
    ), _x(5, 3)


def _only_in_training(m: nn.Module, x: Tensor) -> Tensor:
    h = m.norm(torch.relu(m.first(x)))
    if m.training:
        h = F.dropout(h, 0.4)
    return m.out(h)


@_entry()
def if_training():
    return Lambda(_only_in_training, first=nn.Linear(3, 12), norm=nn.BatchNorm1d(12), out=nn.Linear(12, 2)), _x(5, 3)


@_entry()
def plain_callable():
    """No module at all: a closure over weights."""
    generator = torch.Generator().manual_seed(7)
    first, second = torch.randn(3, 16, generator=generator), torch.randn(16, 2, generator=generator)
    return (lambda x: F.dropout(torch.relu(x @ first), 0.25) @ second), _x(5, 3)


@_entry()
def reused():
    """One dropout module, used three times: three sites."""
    return Lambda(
        lambda m, x: m.out(
            m.drop(torch.tanh(m.mid(m.drop(torch.tanh(m.mid(m.drop(m.first(x)))))))),
        ),
        first=nn.Linear(3, 12),
        mid=nn.Linear(12, 12),
        out=nn.Linear(12, 1),
        drop=nn.Dropout(0.2),
    ), _x(5, 3)


@_entry()
def compiled():
    """The wrapper of torch.compile around a model; we run the module inside."""
    inner = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing the compiler meets deprecated parts of torch itself
        return torch.compile(inner), _x(5, 3)


# ------------------------------------------------------------------------------------- in place


@_entry("inplace")
def inplace():
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(inplace=True), nn.Dropout(0.3, inplace=True), nn.Linear(16, 2)), _x(
        5, 3
    )


def _drop_and_add(m: nn.Module, x: Tensor) -> Tensor:
    h = torch.relu(m.first(x))
    return m.out(F.dropout(h, 0.3, m.training, inplace=True) + h)  # h has changed: twice the dropped value


@_entry("inplace", mode="rows")
def inplace_alias():
    return Lambda(_drop_and_add, first=nn.Linear(3, 16), out=nn.Linear(16, 2)), _x(5, 3)


# ----------------------------------------------------------------------------- features and alpha


@_entry("feature")
def feature1d():
    return nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Dropout1d(0.3), nn.Flatten(), nn.Linear(48, 2)), _x(4, 2, 8)


@_entry("feature")
def feature2d():
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(96, 2)), _x(
        4, 1, 6, 6
    )


@_entry("feature")
def feature3d():
    return nn.Sequential(nn.Conv3d(1, 6, 2), nn.Tanh(), nn.Dropout3d(0.4), nn.Flatten(), nn.Linear(162, 2)), _x(
        4, 1, 4, 4, 4
    )


@_entry("alpha")
def alpha():
    return nn.Sequential(
        nn.Linear(3, 16), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(16, 16), nn.SELU(), nn.AlphaDropout(0.1),
        nn.Linear(16, 2),
    ), _x(5, 3)  # fmt: skip


@_entry("alpha")
def feature_alpha():
    return nn.Sequential(
        nn.Conv1d(2, 8, 3), nn.SELU(), nn.FeatureAlphaDropout(0.2), nn.Flatten(), nn.Linear(48, 2)
    ), _x(4, 2, 8)


# ------------------------------------------------------------------------------------- images


class Block(nn.Module):
    """A residual block with BatchNorm and dropout."""

    def __init__(self, width: int, p: float) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm2(self.conv2(self.drop(torch.relu(self.norm1(self.conv1(x)))))))


@_entry()
def residual_conv():
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Block(8, 0.1), Block(8, 0.2), *head), _x(4, 1, 8, 8)


@_entry()
def late_conv():
    """Everything before the last two layers is the same in all passes."""
    body = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(144, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)), _x(4, 1, 12, 12)


# ----------------------------------------------------------------------------------- attention


@_entry("attention")
def attention_weights():
    return Lambda(
        lambda m, x: m.att(x, x, x, need_weights=True)[0], att=nn.MultiheadAttention(8, 2, 0.2, batch_first=True)
    ), _x(3, 5, 8)


@_entry("attention")
def attention():
    return Lambda(
        lambda m, x: m.att(x, x, x, need_weights=False)[0], att=nn.MultiheadAttention(8, 2, 0.2, batch_first=True)
    ), _x(3, 5, 8)


def _encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@_entry("attention")
def encoder():
    """In eval() torch would take a fast path here that skips the Python code."""
    return _encoder(False), _x(3, 4, 8)


@_entry("attention")
def encoder_norm_first():
    return nn.Sequential(_encoder(True), nn.Flatten(), nn.Linear(32, 2)), _x(3, 4, 8)


class FusedAttention(nn.Module):
    """Attention as most people write it today."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.p = nn.Linear(8, 24), nn.Linear(8, 8), 0.25

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        h = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2))


@_entry("attention")
def fused_attention():
    return FusedAttention(), _x(3, 5, 8)


@_entry("attention", coupled=True, shared=False)
def sequence_first():
    """The first axis is time, so that the rows depend on each other."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=False)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), _x(5, 2, 8)


# ----------------------------------------------------------------------------------- recurrent


@_entry("recurrent", mode="rows")
def lstm():
    return Lambda(
        lambda m, x: m.out(m.net(x)[0][:, -1]), net=nn.LSTM(3, 6, 2, dropout=0.3, batch_first=True), out=nn.Linear(6, 1)
    ), _x(4, 5, 3)


@_entry("recurrent", mode="rows")
def gru():
    net = nn.GRU(3, 5, 3, dropout=0.2, batch_first=True, bidirectional=True)
    return Lambda(lambda m, x: m.out(m.net(x)[0].mean(1)), net=net, out=nn.Linear(10, 2)), _x(4, 5, 3)


@_entry("recurrent", mode="rows")
def rnn():
    return Lambda(
        lambda m, x: m.out(m.net(x)[0][:, -1]), net=nn.RNN(3, 6, 2, dropout=0.3, batch_first=True), out=nn.Linear(6, 1)
    ), _x(4, 5, 3)


def _packed(m: nn.Module, x: Tensor, length: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x, length, batch_first=True, enforce_sorted=False)
    return m.out(m.net(packed)[1][0][-1])


@_entry("recurrent", mode="rows", shared=False)
def packed_lstm():
    """Sequences of different lengths: the mask follows the rows in no simple way."""
    model = Lambda(_packed, net=nn.LSTM(3, 6, 2, dropout=0.3, batch_first=True), out=nn.Linear(6, 1))
    return model, (_x(4, 5, 3), torch.tensor([5, 2, 4, 1]))


# ------------------------------------------------------------------------- inputs, outputs, dtypes


@_entry()
def tuple_input():
    return Lambda(
        lambda m, a, b: m.out(m.drop(torch.tanh(m.first(a) + m.second(b)))),
        first=nn.Linear(3, 16),
        second=nn.Linear(2, 16),
        out=nn.Linear(16, 1),
        drop=nn.Dropout(0.2),
    ), (_x(5, 3), _x(5, 2))


@_entry()
def dict_input_dict_output():
    def run(m: nn.Module, *, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        h = m.drop(torch.tanh(m.first(torch.cat([left, right], dim=1))))
        return {"u": m.out(h), "f": h.sum(1)}

    model = Lambda(run, first=nn.Linear(5, 16), out=nn.Linear(16, 2), drop=nn.Dropout(0.2))
    return model, {"left": _x(5, 3), "right": _x(5, 2)}


@_entry()
def tuple_output():
    def run(m: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        h = m.drop(torch.tanh(m.first(x)))
        return m.out(h), h.unflatten(1, (4, 4))

    return Lambda(run, first=nn.Linear(3, 16), out=nn.Linear(16, 2), drop=nn.Dropout(0.2)), _x(5, 3)


def _half(dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(16, 1)).to(dtype), _x(5, 3).to(dtype)


@_entry()
def float16():
    return _half(torch.float16)


@_entry()
def bfloat16():
    return _half(torch.bfloat16)


@_entry()
def float64():
    return _half(torch.float64)


# --------------------------------------------------------------------------- weights, coupled rows


@_entry("weights")
def weight_dropout():
    """Dropout of a weight matrix: one mask for all rows."""
    return Lambda(
        lambda m, x: m.out(torch.tanh(F.linear(x, F.dropout(m.first.weight, 0.2, m.training), m.first.bias))),
        first=nn.Linear(3, 12),
        out=nn.Linear(12, 2),
    ), _x(5, 3)


@_entry(coupled=True, shared=False)
def centred_rows():
    """The output of a row depends on the mean over rows."""

    def run(m: nn.Module, x: Tensor) -> Tensor:
        h = m.drop(torch.tanh(m.first(x)))
        return m.out(h - h.mean(0))

    return Lambda(run, first=nn.Linear(3, 16), out=nn.Linear(16, 2), drop=nn.Dropout(0.2)), _x(5, 3)


NAMES = tuple(ZOO)


# ------------------------------------------------------------------------------- the honest loop


def call(model: Any, x: Any) -> Any:
    """The model on ``x``, which may be a tuple of positional inputs or a dict of named ones."""
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def leaves(output: Any) -> Iterator[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(output, Tensor):
        yield output
    else:
        yield from itertools.chain.from_iterable(map(leaves, output.values() if isinstance(output, dict) else output))


def honest_passes(model: Any, x: Any, passes: int, seed: int = 0) -> Tensor:
    """Passes (passes, rows, width) of the plain loop: ``train()``, normalisation in ``eval()``, torch's own draws."""
    if isinstance(model, nn.Module):
        model = copy.deepcopy(getattr(model, "_orig_mod", model)).train()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.eval()
    fresh = (lambda t: t.clone()) if isinstance(x, Tensor) else copy.deepcopy
    out = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for _ in range(passes):
            parts = list(leaves(call(model, fresh(x))))
            out.append(torch.cat([part.reshape(len(part), -1) for part in parts], dim=1))
    return torch.stack(out)
