"""Ways in which people write randomness into a forward pass: each has to be right, or loud.

``PATTERNS`` maps a name to a :class:`Pattern`. Its model is a small network in evaluation mode whose middle is written
in that way. :meth:`Pattern.honest` is the reference: the original model in ``train()``, normalisation in ``eval()``,
torch's own draws, one pass after the other.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["PATTERNS", "Pattern"]

ROWS = 24


@dataclass(frozen=True, slots=True)
class Pattern:
    """A model written in some way.

    Attributes:
        name: Its name.
        model: What is given to the library.
        modules: The modules whose mode an honest loop switches.
        x: The inputs.
        refused: Words of the error with which it is refused; empty if it is not.
        warned: Words of a warning that the result may not be what is meant; empty if there is none.
        mentioned: Words of a warning that comes although the result is right.
        hidden: Name of a site whose loss would make the variance wrong, for negative controls.
        options: Further arguments of ``estimate``.
    """

    name: str
    model: Any
    modules: tuple[nn.Module, ...]
    x: Any
    refused: str = ""
    warned: str = ""
    mentioned: str = ""
    hidden: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def honest(self, passes: int, seed: int = 0) -> np.ndarray:
        """Passes (passes, rows, width) of the original in training mode, which is put back into evaluation mode."""
        for module in self.modules:
            module.train()
            for part in module.modules():
                if isinstance(part, nn.modules.batchnorm._NormBase):
                    part.eval()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(seed)
                out = [self.model(self.x.clone()).reshape(len(self.x), -1).clone() for _ in range(passes)]
        finally:
            for module in self.modules:
                module.eval()
        return torch.stack(out).double().numpy()


PATTERNS: dict[str, Pattern] = {}


class Net(nn.Module):
    """A network with ordinary dropout before its middle; subclasses write the middle in their own way."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.d, self.h, self.o = nn.Linear(4, 32), nn.Dropout(0.1), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.mid(self.d(torch.relu(self.i(x)))))

    def mid(self, h: Tensor) -> Tensor:
        """Between dropout and head."""
        return torch.relu(self.h(h))


def _x() -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(5))


def _made(build: Callable[[], Any]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return build()


def add(
    name: str, make: Callable[[], Any], x: Tensor | None = None, modules: Sequence[nn.Module] = (), **kw: Any
) -> None:
    """Register a model; ``make()`` returns it, or it and the modules whose mode an honest loop switches."""
    model = _made(make)
    if isinstance(model, tuple):
        model, *modules = model
    elif isinstance(model, nn.Module):
        modules = [model]
    for module in modules:
        module.eval() if not isinstance(module, torch.fx.GraphModule) or "export" not in name else None
    PATTERNS[name] = Pattern(name, model, tuple(modules), _x() if x is None else x, **kw)


def middle(name: str, mid: Callable[[Any, Tensor], Tensor], **kw: Any) -> None:
    """Register a network with the given middle."""
    add(name, type(name, (Net,), {"mid": mid}), **kw)


# -------------------------------------------------------------------------- what the mode changes

middle("rate_zero_in_eval", lambda s, h: F.dropout(torch.relu(s.h(h)), 0.5 if s.training else 0.0), hidden="dropout")
middle("only_in_training", lambda s, h: F.dropout(h, 0.4) if s.training else h, hidden="dropout")
middle("functional", lambda s, h: F.dropout(torch.relu(s.h(h)), 0.5, s.training), hidden="dropout")
middle("made_in_forward", lambda s, h: nn.Dropout(0.3)(torch.relu(s.h(h))))
middle(
    "eval_only", lambda s, h: h if s.training else F.dropout(h, 0.5), warned="in evaluation mode but not in training"
)


class Aux(Net):
    """Returns auxiliary outputs in training mode."""

    def forward(self, x: Tensor) -> Any:
        h = self.mid(self.d(torch.relu(self.i(x))))
        return (self.o(h), h) if self.training else self.o(h)


class Targets(Net):
    """Wants targets in training mode."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        out = super().forward(x)
        return ((out - y) ** 2).mean() if self.training else out  # type: ignore[operator]


add("auxiliary_outputs", Aux, warned="passes run in evaluation mode")
add("wants_targets", Targets, warned="cannot be run in training mode")

# -------------------------------------------------------------------------- randomness by hand

middle(
    "bernoulli_in_place",
    lambda s, h: h * torch.empty_like(h).bernoulli_(0.5) * 2 if s.training else h,
    hidden="bernoulli",
)
middle("bernoulli_of_probabilities", lambda s, h: h * torch.bernoulli(torch.full_like(h, 0.5)) * 2 if s.training else h)
middle("probability_per_unit", lambda s, h: h * torch.bernoulli(h.abs().clamp(0.2, 0.9)) if s.training else h)
middle("uniform_below", lambda s, h: h * (torch.rand_like(h) < 0.5) * 2 if s.training else h)
middle("uniform_of_size", lambda s, h: h * (torch.rand(h.shape) > 0.5).float() * 2 if s.training else h)
middle("gaussian_noise", lambda s, h: h + 0.5 * torch.randn_like(h) if s.training else h, hidden="normal")
middle("gaussian_dropout", lambda s, h: h * torch.normal(1.0, 0.5, h.shape) if s.training else h)
middle("rsample", lambda s, h: torch.distributions.Normal(h, 0.4).rsample() if s.training else h)
middle("gumbel", lambda s, h: F.gumbel_softmax(s.h(h)) if s.training else s.h(h).softmax(-1))
middle("rrelu", lambda s, h: F.rrelu(s.h(h), training=s.training))
middle("weights_by_hand", lambda s, h: F.linear(h, s.h.weight * (torch.rand_like(s.h.weight) < 0.7) / 0.7))


class DropPath(nn.Module):
    """Stochastic depth as in timm, or as in transformers, or as in torchvision."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = (len(x),) + (1,) * (x.dim() - 1)
        if self.style == "transformers":
            return x.div(0.7) * (0.7 + torch.rand(shape)).floor_()
        if self.style == "torchvision":
            noise = torch.empty(shape, dtype=x.dtype).bernoulli_(0.7)
            noise.div_(0.7)
            return x * noise
        noise = x.new_empty(shape)
        noise.bernoulli_(0.7)  # not by its return value
        return x * noise.div_(0.7)


class LockedDropout(nn.Module):
    """One mask for all rows."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.new_empty(1, x.size(1)).bernoulli_(0.5) / 0.5 if self.training else x


class Gauss(nn.Module):
    """A noise layer."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.empty_like(x).normal_(0.0, 0.3) if self.training else x


class With(Net):
    """A network with one more layer in its middle."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def mid(self, h: Tensor) -> Tensor:
        return self.layer(torch.relu(self.h(h))) + h


for _style in ("timm", "transformers", "torchvision"):
    add(f"drop_path_{_style}", functools.partial(With, DropPath(_style)))
add("locked_dropout", lambda: With(LockedDropout()))
add("noise_layer", lambda: With(Gauss()), hidden="layer.normal")
add("rrelu_module", lambda: With(nn.RReLU()))


def _drop(x: Tensor, training: bool) -> Tensor:
    return F.dropout(x, 0.5, training)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # people use it all the same
    _scripted = torch.jit.script(_drop)
middle("scripted_function", lambda s, h: _scripted(torch.relu(s.h(h)), s.training))

middle("shuffled_units", lambda s, h: h[:, torch.randperm(32)] if s.training else h, refused="randperm")
middle("numpy_noise", lambda s, h: h * float(np.random.rand() < 0.5) if s.training else h, refused="numpy")  # noqa: NPY002
middle(
    "rate_of_activations", lambda s, h: F.dropout(h, float(h.mean().clamp(0.1, 0.9)), s.training), refused="fixed rate"
)


def _branch(s: Any, h: Tensor) -> Tensor:
    return F.dropout(h, 0.4, s.training) if bool((h == 0).all(1).any()) or float(h.sum()) % 2 > 1 else s.h(h)


middle("branch_of_activations", _branch, refused="")


class LayerDrop(Net):
    """Leaves a whole layer out, decided by one random number."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def mid(self, h: Tensor) -> Tensor:
        chance = torch.rand([])
        return h if self.training and chance < self.rate else self.d(torch.relu(self.h(h)))


add("layer_drop", lambda: LayerDrop(0.3), refused="decides which layers")
add("layer_drop_zero", lambda: LayerDrop(0.0))

# ----------------------------------------------------------------------- functions around a model


def _functional() -> nn.Module:
    cls = type("F1", (Net,), {"mid": lambda s, h: F.dropout(torch.relu(s.h(h)), 0.5, s.training)})
    return cls()


GLOBAL = _made(_functional)
OF_GLOBAL = lambda x: GLOBAL(x)  # noqa: E731 (the way people write it)


def _around(wrap: Callable[[nn.Module], Any]) -> Callable[[], Any]:
    def make() -> Any:
        model = _functional()
        return wrap(model), model

    return make


class Wrapper:
    """A callable object around a model."""

    def __init__(self, model: nn.Module) -> None:
        self.parts = {"net": [model]}

    def __call__(self, x: Tensor) -> Tensor:
        return self.parts["net"][0](x)


def _twice(x: Tensor) -> Tensor:
    return 2 * OF_GLOBAL(x)


add("lambda_of_closure", _around(lambda m: lambda x: m(x)))
add("lambda_of_global", lambda: (OF_GLOBAL, GLOBAL))
add("function_of_function", lambda: (_twice, GLOBAL))
add("partial", _around(lambda m: functools.partial(m)))
add("partial_of_lambda", _around(lambda m: functools.partial(lambda net, x: net(x), m)))
add("bound_method", _around(lambda m: m.forward))
add("callable_object", _around(Wrapper))

# --------------------------------------------------------------------------- references inside


class Kept(Net):
    """Refers to its own parts in lists, dicts, bound methods, closures and objects."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.a = _Functional()
        self.way = way
        self.stages, self.table, self.fn = [self.a], {"a": self.a}, self._method
        self.closure = lambda h: F.dropout(h, 0.5, self.training)
        self.holder = types.SimpleNamespace(net=self.a)
        self.user = _User(self)

    def _method(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.5, self.training)

    def mid(self, h: Tensor) -> Tensor:
        h = torch.relu(self.h(h))
        ways = {
            "list": lambda: self.stages[0](h),
            "dict": lambda: self.table["a"](h),
            "method": lambda: self.fn(h),
            "closure": lambda: self.closure(h),
            "namespace": lambda: self.holder.net(h),
            "object": lambda: self.user.run(h),
        }
        return ways[self.way]()


class _Functional(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.5, self.training)


class _User:
    def __init__(self, net: Kept) -> None:
        self.net = net

    def run(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.5, self.net.training)


for _way in ("list", "dict", "method", "closure", "namespace", "object"):
    add(f"kept_in_{_way}", functools.partial(Kept, _way))


def _hooked() -> nn.Module:
    model = Net()
    model.h.register_forward_hook(lambda m, args, out: F.dropout(out, 0.4, m.training))
    return model


add("dropout_in_a_hook", _hooked)

# ------------------------------------------------------------------------- rows that are not alone


class Positions(Net):
    """Rows know their position."""

    def __init__(self) -> None:
        super().__init__()
        self.pe = torch.randn(100, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.pe[: len(x)])


SMALL = {"memory_limit": 1 << 14}  # holds a few rows: they are split where that is thought to be right
APART = "cannot be computed in parts"
add("positions", Positions, options=SMALL, mentioned=APART)
middle(
    "batch_mean",
    lambda s, h: F.dropout(torch.relu(s.h(h - h.mean(0))), 0.5, s.training),
    options=SMALL,
    mentioned=APART,
)
middle("batch_norm_without_statistics", lambda s, h: F.dropout(F.batch_norm(s.h(h), None, None, training=True), 0.3))


class OwnNorm(Net):
    """Statistics of batches, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(32))

    def mid(self, h: Tensor) -> Tensor:
        if self.training:
            self.running.mul_(0.9).add_(0.1 * h.mean(0))
        return torch.relu(self.h(h - self.running))


add("own_normalisation", OwnNorm, warned="buffers")


class Trimmed(nn.Module):
    """Cuts all rows to the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.o = nn.Linear(1, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        some = x[:, : int((x != 0).sum(1).max()), None]
        return self.o((F.dropout(torch.tanh(self.e(some)), 0.3, self.training) * (some != 0)).sum(1))


def _lengths() -> Tensor:
    x = torch.rand(ROWS, 7, generator=torch.Generator().manual_seed(3)) + 0.1
    x[:, 1:] = 0
    x[ROWS // 2 + 3] = 1.0  # one long row, neither first nor last
    return x


add("trimmed_to_the_longest", Trimmed, x=_lengths())


class RateOfInputs(Net):
    """A rate computed from the batch."""

    def forward(self, x: Tensor) -> Tensor:
        p = float((x > 0).float().mean().clamp(0.1, 0.9))
        return self.o(F.dropout(torch.relu(self.i(x)), p, self.training))


class Branch(Net):
    """A branch that only later rows reach."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.i(x))
        return self.o(F.dropout(h, 0.5, self.training) if bool((x > 1.5).any()) else self.d(h))


add("rate_of_inputs", RateOfInputs)
add("branch_of_inputs", Branch)

# ------------------------------------------------------------------------------ memory and state


class Buffered(Net):
    """Returns the same memory every time."""

    def __init__(self) -> None:
        super().__init__()
        self.buf = torch.zeros(1000, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.buf[: len(x)]
        out.copy_(super().forward(x))
        return out


class Remembering(Net):
    """Adds its last activations to the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def mid(self, h: Tensor) -> Tensor:
        self.last = h if self.last is None or len(self.last) != len(h) else 0.5 * self.last + h
        return self.last


add("output_in_a_buffer", Buffered)
add("remembering", Remembering, refused="from call to call")

# ------------------------------------------------------------------------------ kinds of modules


def _traced() -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)))


def _exported() -> Any:
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    return torch.export.export(model.train(), (_x(),)).module(), nn.Identity()


add("graph_module", _traced)
add("export_module", _exported)
middle("checkpointed", lambda s, h: checkpoint(lambda t: s.d(torch.relu(s.h(t))), h, use_reentrant=False))
middle("sparse_inside", lambda s, h: s.d((s.h.weight.detach().to_sparse() @ h.mT).mT))
middle("linear_with_vector", lambda s, h: s.d(torch.relu(s.h(h))) * F.linear(h, s.h.weight[0])[:, None])
