"""Dropout, intercepted where torch dispatches it.

:class:`Interceptor` is a torch-function mode. While it is active, every form of dropout a forward
pass can meet -- module or functional, feature-wise, alpha, inside attention, between the layers of
a recurrent network -- is reduced to one call of :meth:`Interceptor.drop` with the activation, the
rate and the shape of the mask. Random numbers that the model draws by itself -- hand-made masks,
stochastic depth, noise layers -- become calls of :meth:`Interceptor.draw` with their law and shape.
Subclasses decide what happens there: record the site, or apply a mask. Torch's own generators are
never used.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from mlmc_dropout.sampling.linear_maps import linear_map, suits_onednn

__all__ = ["Interceptor", "Normalised", "apply_mask"]

_ALPHA = 1.7580993408473766  # minus the limit of SELU at −∞, as in torch


def apply_mask(kind: str, x: Tensor, keep: Tensor, p: float) -> Tensor:
    """Apply a mask to an activation; the result is affine in ``keep``, which may be any real number.

    Plain and feature dropout: x·keep/(1−p). Alpha dropout (Klambauer et al. 2017) replaces dropped
    units by −α and restores mean and variance: a·(x + α)·keep − α·a·(1−p), a² = 1/((1−p)(1 + α²p)).

    Args:
        kind: Kind of dropout; those that end in "alpha" are alpha dropout.
        x: The activation.
        keep: The mask, 1 where a unit is kept and 0 where it is dropped; broadcast to ``x``.
        p: The dropout rate p.

    Returns:
        The activation after dropout.
    """
    (x, keep), level = _unwrapped(x, keep)
    alpha = kind.endswith("alpha")
    scale = 1.0 / math.sqrt((1.0 - p) * (1.0 + _ALPHA**2 * p)) if alpha else 1.0 / (1.0 - p)
    if alpha:
        x = x + _ALPHA
    if keep.dtype == x.dtype or keep.shape != x.shape or torch.is_grad_enabled():
        out = x * (keep.to(x.dtype) * scale)
    else:
        out = keep.to(x.dtype).mul_(scale).mul_(x)  # one new tensor instead of three
    if alpha:
        out = out - _ALPHA * scale * (1.0 - p)
    return out if level is None else _functorch._add_batch_dim(out, 0, level)


def _unwrapped(*tensors: Tensor) -> tuple[list[Tensor], int | None]:
    """Tensors without vmap's wrapper, and its level; unchanged where the passes are not the leading axis.

    Operations that treat all passes alike can then be computed for all at once, without vmap's cost per operation.
    """
    level = max((_functorch.maybe_get_level(t) for t in tensors), default=-1)
    plain = []
    for tensor in tensors:
        if _functorch.is_batchedtensor(tensor):
            inner = _functorch.get_unwrapped(tensor)
            leading = _functorch.maybe_get_level(tensor) == level and _functorch.maybe_get_bdim(tensor) == 0
            if not leading or _functorch.is_functorch_wrapped_tensor(inner):
                return list(tensors), None
            plain.append(inner)
        elif _functorch.is_functorch_wrapped_tensor(tensor):
            return list(tensors), None
        else:
            plain.append(tensor)
    return plain, level if level > 0 else None


class Interceptor(TorchFunctionMode):
    """Intercepts every random call of a forward pass; subclasses implement :meth:`drop` and :meth:`draw`.

    Attributes:
        fills: Whether functions that fill a tensor with random numbers may do so. Under vmap a tensor without passes
            cannot hold the numbers of many, and they are only returned.
    """

    fills = True

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        """Handle one dropout call.

        Args:
            kind: Kind of dropout, as in ``Site.kind``.
            x: The activation.
            p: The dropout rate.
            training: Whether torch would drop units here.
            shape: Shape of the mask.
            inplace: Whether torch would change ``x``.

        Returns:
            The activation after dropout.

        Raises:
            NotImplementedError: Always, unless a subclass overrides it.
        """
        raise NotImplementedError

    def draw(self, law: str, p: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Handle one call that draws other random numbers.

        Args:
            law: "bernoulli", "uniform" on [0, 1), or standard "normal".
            p: Probability of 0, for "bernoulli".
            shape: Shape of the numbers.
            dtype: Their type.
            device: Where they go.

        Returns:
            The numbers.

        Raises:
            NotImplementedError: Always, unless a subclass overrides it.
        """
        raise NotImplementedError

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = _RULES.get(func)
        kwargs = kwargs or {}
        return func(*args, **kwargs) if rule is None else rule(self, func, *args, **kwargs)


def _dropout(kind: str, mask_shape: Callable[[Tensor], tuple[int, ...]]) -> Callable[..., Tensor]:
    """The rule for a dropout function whose mask for ``input`` has the shape ``mask_shape(input)``."""

    def rule(
        mode: Interceptor,
        func: Any,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        **kw: Any,
    ) -> Tensor:
        training = kw.get("train", training)
        inplace = inplace or func.__name__.removesuffix(".default").endswith("_")
        return mode.drop(kind, input, p, training, mask_shape(input), inplace)

    return rule


def _elementwise(kind: str) -> Callable[..., Tensor]:
    return _dropout(kind, lambda x: tuple(x.shape))


def _featurewise(kind: str, batched_dim: int | None = None) -> Callable[..., Tensor]:
    """Whole channels are dropped; an input without batch axis (see ``batched_dim``) has its channels first."""

    def mask_shape(x: Tensor) -> tuple[int, ...]:
        kept = 1 if batched_dim is not None and x.dim() < batched_dim else 2
        return (*x.shape[:kept], *(1,) * (x.dim() - kept))

    return _dropout(kind, mask_shape)


def _native_dropout(mode: Interceptor, func: Any, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    out = mode.drop("dropout", input, p, bool(train), tuple(input.shape), False)
    return out, torch.ones_like(input, dtype=torch.bool)


def _attention(
    mode: Interceptor,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(QKᵀ·scale + mask), dropped, times V: the fused kernels would draw their own masks."""
    if dropout_p == 0.0:
        return func(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)  # type: ignore[no-any-return]
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~causal, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = scores.softmax(dim=-1)
    if attn_mask is not None:  # a query without any key gets zeros, as in torch
        weights = weights.masked_fill((scores == -math.inf).all(dim=-1, keepdim=True), 0.0)
    return mode.drop("attention", weights, dropout_p, True, tuple(weights.shape), False) @ value


def _normalise(
    mode: Interceptor | None, func: Any, input: Tensor, running_mean: Any, running_var: Any, *rest: Any, **kw: Any
) -> Tensor:
    """Batch normalisation uses its running statistics where it has them, whatever the mode of the model."""
    names = ("weight", "bias", "training", "momentum", "eps")
    arguments = {**dict(zip(names, rest, strict=False)), **kw}
    if running_mean is not None and running_var is not None:
        arguments["training"] = False
        return _pass_by_pass(lambda x: func(x, running_mean, running_var, **arguments), input, *arguments.values())
    return func(input, running_mean, running_var, **arguments)  # type: ignore[no-any-return]


def _convolve(mode: Interceptor, func: Any, input: Tensor, weight: Tensor, *rest: Any, **kw: Any) -> Tensor:
    """Convolutions of all passes in one call, without the copies that vmap makes to have the passes elsewhere."""
    if input.dim() != weight.dim():  # a single input
        return func(input, weight, *rest, **kw)  # type: ignore[no-any-return]
    return _pass_by_pass(lambda x: func(x, weight, *rest, **kw), input, weight, *rest, *kw.values())


def _pass_by_pass(function: Callable[[Tensor], Tensor], input: Tensor, *others: Any) -> Tensor:
    """A function that treats all rows alike: under vmap, the rows of all passes are given to it at once."""
    (plain,), level = _unwrapped(input)
    if level is None or any(isinstance(o, Tensor) and _functorch.is_functorch_wrapped_tensor(o) for o in others):
        return function(input)
    out = function(plain.flatten(0, 1)).unflatten(0, plain.shape[:2])
    return _functorch._add_batch_dim(out, 0, level)


def _linear(mode: Interceptor, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Under vmap over masks all passes have the same weights: one fused call instead of vmap's product and sum."""
    if any(_functorch.is_functorch_wrapped_tensor(t) for t in (weight, bias) if t is not None) or weight.dim() != 2:
        return func(input, weight, bias)  # type: ignore[no-any-return]
    if input.layout != torch.strided or weight.layout != torch.strided:
        return func(input, weight, bias)  # type: ignore[no-any-return]
    if input.shape[-1:] != weight.shape[1:]:
        return func(input, weight, bias)  # type: ignore[no-any-return] # torch says what does not fit
    if bias is not None and math.prod(bias.shape[:-1]) != 1:  # rows have biases of their own
        return _linear(mode, func, input, weight).add_(bias)
    (plain,), level = _unwrapped(input)
    if plain is input and _functorch.is_functorch_wrapped_tensor(input):
        return func(input, weight, bias)  # type: ignore[no-any-return]
    out = linear_map(func, plain, weight, bias)
    return out if level is None else _functorch._add_batch_dim(out, 0, level)


def _tanh(mode: Interceptor, func: Any, input: Tensor, **kw: Any) -> Tensor:
    """Hyperbolic tangents of many passes by oneDNN's kernel, as accurate as torch's own and four times as fast."""
    (plain,), level = _unwrapped(input)
    if level is None or kw or not suits_onednn(plain):
        return func(input, **kw)  # type: ignore[no-any-return]
    return _functorch._add_batch_dim(torch.tanh(plain.to_mkldnn()).to_dense(), 0, level)


def _with_mode_inside(mode: Interceptor, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a Python function of torch with the mode active inside it.

    A mode is suspended while it handles a call; were it not, the function would dispatch to the mode again.
    So a copy of the function is called, whose check for modes always says no.
    """
    checks = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda _: False)
    function = types.FunctionType(func.__code__, {**func.__globals__, **checks})
    function.__defaults__, function.__kwdefaults__ = func.__defaults__, func.__kwdefaults__
    with mode:
        return function(*args, **kwargs)


def _sort(mode: Interceptor, func: Any, input: Tensor, dim: int = -1, descending: bool = False, **kw: Any) -> Any:
    """Sort stably: packed sequences sort by length, and passes of equal length must not be reordered."""
    return func(input, **{**kw, "stable": True, "dim": dim, "descending": descending})


def _recurrent(mode: Interceptor, func: Any, input: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Run the layers one at a time, with our dropout between them instead of torch's."""
    if isinstance(rest[2], (list, tuple)):  # a packed sequence brings its batch sizes and is always time-first
        lead, (hx, weights, biases, layers, p, training, *tail) = rest[:1], rest[1:]
    else:
        lead, (hx, weights, biases, layers, p, training, *tail) = (), rest
    if layers == 1 or p == 0.0:
        return func(input, *rest)  # type: ignore[no-any-return]
    directions = 2 if tail[0] else 1
    batch_first = not lead and tail[1]
    if batch_first:  # torch's own masks are time-first, too
        input, tail = input.transpose(0, 1), [tail[0], False]
    per_layer = len(weights) // layers
    states: list[Any] = []
    for layer in range(layers):
        in_layer = slice(layer * directions, (layer + 1) * directions)
        start = tuple(h[in_layer] for h in hx) if isinstance(hx, (list, tuple)) else hx[in_layer]
        layer_weights = weights[layer * per_layer : (layer + 1) * per_layer]
        input, *state = func(input, *lead, start, layer_weights, biases, 1, 0.0, training, *tail)
        states.append(state)
        if layer < layers - 1:
            input = mode.drop("recurrent", input, p, training, tuple(input.shape), False)
    output = input.transpose(0, 1) if batch_first else input
    return (output, *(torch.cat(parts) for parts in zip(*states, strict=True)))


# ---------------------------------------------------------------------------- hand-made randomness


def _put(mode: Interceptor, x: Tensor, value: Tensor) -> Tensor:
    """What a function returns that fills ``x``."""
    return x.copy_(value) if mode.fills else value.to(x.dtype)


def _numbers_like(mode: Interceptor, law: str, x: Tensor, p: float = 0.0) -> Tensor:
    return mode.draw(law, p, tuple(x.shape), x.dtype, x.device)


def _bernoulli(mode: Interceptor, func: Any, x: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
    """``torch.bernoulli(probabilities)`` or ``torch.bernoulli(like, p)``."""
    if p is None or isinstance(p, Tensor):
        return (_numbers_like(mode, "uniform", x) < (x if p is None else p)).to(x.dtype)
    return _numbers_like(mode, "bernoulli", x, 1.0 - p).to(x.dtype)


def _bernoulli_(mode: Interceptor, func: Any, x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    if isinstance(p, Tensor):
        return _put(mode, x, (_numbers_like(mode, "uniform", x) < p).to(x.dtype))
    return _put(mode, x, _numbers_like(mode, "bernoulli", x, 1.0 - p))


def _new_numbers(law: str) -> Callable[..., Tensor]:
    """``torch.rand(size)`` and ``torch.randn(size)``."""

    def rule(mode: Interceptor, func: Any, *size: Any, generator: Any = None, **kw: Any) -> Tensor:
        return _numbers_like(mode, law, torch.empty(*size, **kw))

    return rule


def _new_numbers_like(law: str) -> Callable[..., Tensor]:
    def rule(mode: Interceptor, func: Any, x: Tensor, *, generator: Any = None, **kw: Any) -> Tensor:
        return _numbers_like(mode, law, torch.empty_like(x, **kw))

    return rule


def _uniform_(mode: Interceptor, func: Any, x: Tensor, *limits: float, generator: Any = None, **kw: float) -> Tensor:
    low, high = (*limits, *(0.0, 1.0)[len(limits) :])
    low, high = kw.get("from", low), kw.get("to", high)
    return _put(mode, x, low + (high - low) * _numbers_like(mode, "uniform", x))


def _normal_(
    mode: Interceptor, func: Any, x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Tensor:
    return _put(mode, x, mean + std * _numbers_like(mode, "normal", x))


def _exponential_(mode: Interceptor, func: Any, x: Tensor, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    return _put(mode, x, torch.log1p(-_numbers_like(mode, "uniform", x)) / -lambd)


def _normal(
    mode: Interceptor, func: Any, mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Any = None, **kw: Any
) -> Tensor:
    like = torch.empty(size, **kw) if size is not None else torch.empty_like(mean + 0.0 * std)
    return mean + std * _numbers_like(mode, "normal", like)  # type: ignore[no-any-return]


def _rrelu(
    mode: Interceptor,
    func: Any,
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
    **kw: Any,
) -> Tensor:
    """Leaky ReLU with a random slope for every negative entry."""
    if not training:
        return func(input, lower, upper, training, **({"inplace": inplace} if func is F.rrelu else {}))  # type: ignore[no-any-return]
    slope = lower + (upper - lower) * _numbers_like(mode, "uniform", input)
    out = torch.where(input <= 0, input * slope, input)
    return _put(mode, input, out) if inplace or func is torch.rrelu_ else out


_RULES: dict[Any, Callable[..., Any]] = {
    F.dropout: _elementwise("dropout"),
    torch.dropout: _elementwise("dropout"),
    torch.dropout_: _elementwise("dropout"),
    F.alpha_dropout: _elementwise("alpha"),
    torch.alpha_dropout: _elementwise("alpha"),
    torch.alpha_dropout_: _elementwise("alpha"),
    F.dropout1d: _featurewise("feature", 3),
    F.dropout2d: _featurewise("feature"),
    F.dropout3d: _featurewise("feature", 5),
    torch.feature_dropout: _featurewise("feature"),
    torch.feature_dropout_: _featurewise("feature"),
    F.feature_alpha_dropout: _featurewise("feature_alpha"),
    torch.feature_alpha_dropout: _featurewise("feature_alpha"),
    torch.feature_alpha_dropout_: _featurewise("feature_alpha"),
    torch.native_dropout: _native_dropout,
    F.linear: _linear,
    torch.tanh: _tanh,
    torch.Tensor.tanh: _tanh,
    F.batch_norm: _normalise,
    torch.conv1d: _convolve,
    torch.conv2d: _convolve,
    torch.conv3d: _convolve,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _with_mode_inside,
    torch.sort: _sort,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
    F.rrelu: _rrelu,
    torch.rrelu: _rrelu,
    torch.rrelu_: _rrelu,
    F.gumbel_softmax: _with_mode_inside,
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
    torch.Tensor.bernoulli_: _bernoulli_,
    torch.rand: _new_numbers("uniform"),
    torch.randn: _new_numbers("normal"),
    torch.rand_like: _new_numbers_like("uniform"),
    torch.randn_like: _new_numbers_like("normal"),
    torch.Tensor.uniform_: _uniform_,
    torch.Tensor.normal_: _normal_,
    torch.Tensor.exponential_: _exponential_,
    torch.normal: _normal,
    # the same in exported graphs
    torch.ops.aten.dropout.default: _elementwise("dropout"),
    torch.ops.aten.dropout_.default: _elementwise("dropout"),
    torch.ops.aten.alpha_dropout.default: _elementwise("alpha"),
    torch.ops.aten.feature_dropout.default: _featurewise("feature"),
    torch.ops.aten.feature_alpha_dropout.default: _featurewise("feature_alpha"),
    torch.ops.aten.native_dropout.default: _native_dropout,
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    torch.ops.aten.linear.default: _linear,
}


class Normalised(TorchFunctionMode):
    """Leaves everything to torch but batch normalisation, which uses its running statistics where it has them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.batch_norm:
            return _normalise(None, func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
