"""2 · A trained model -> its dropout sites, and a forward pass with given masks.

The model itself is never changed: a :func:`replica` shares its parameters and has its own mode
flags. It runs as in ``eval()`` with dropout switched on. Where dropout shows up only in training
mode (``if self.training: ...``) it runs as in ``train()`` with normalisation layers in ``eval()``.
"""

from __future__ import annotations

import fnmatch
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mlmc_dropout.data import Batch
from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.interception import Interceptor, apply_mask

__all__ = ["Player", "Recorder", "Site", "find_sites", "play", "replica"]

_CARRIERS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)
_NOT_DROPOUT = (nn.modules.batchnorm._NormBase, nn.RReLU)  # behave otherwise in training, without being dropout


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a forward pass drops units.

    ``shape`` is that of the mask of one input row; in a mask for n rows, axis ``row_axis`` is n
    times as long (``None``: the mask does not depend on the rows, as for dropout of weights). If
    the mask follows the rows in no simple way, as in packed sequences, ``splits_by_row`` is false
    and ``shape`` is that of the mask of the whole batch.
    """

    index: int
    name: str
    kind: str  # "dropout", "feature", "alpha", "feature_alpha", "attention", "recurrent"
    p: float
    shape: tuple[int, ...]
    row_axis: int | None
    active: bool = True
    splits_by_row: bool = True

    @property
    def units(self) -> int:
        """Mask bits, per input row where the rows have their own."""
        return int(torch.Size(self.shape).numel())


# --------------------------------------------------------------------------------------- replica


def replica(model: Any, training: bool) -> Any:
    """A copy of the module tree that shares all parameters; buffers and mode flags are its own."""
    if not isinstance(model, nn.Module):
        return model
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("TorchScript hides its dropout from Python; pass the original nn.Module instead")
    return _copy(model, training, {})


def _copy(module: nn.Module, training: bool, done: dict[int, nn.Module]) -> nn.Module:
    if id(module) in done:
        return done[id(module)]
    original = module.__dict__.get("_modules", {}).get("_orig_mod")
    if original is not None:  # torch.compile's wrapper would run the original module, out of our sight
        return _copy(original, training, done)
    twin = module.__new__(type(module))
    done[id(module)] = twin
    twin.__dict__ = module.__dict__.copy()
    twin._parameters = module._parameters.copy()
    twin._buffers = {name: None if b is None else b.detach().clone() for name, b in module._buffers.items()}
    twin._modules = {name: None if m is None else _copy(m, training, done) for name, m in module._modules.items()}
    twin.training = isinstance(module, _CARRIERS) or (training and not isinstance(module, _NOT_DROPOUT))
    if isinstance(module, nn.RNNBase):  # keeps its weights in a list of their own, which is shared on purpose
        twin.__dict__["_flat_weights"] = list(module._flat_weights)
    return twin


# ----------------------------------------------------------------------------------- finding sites


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    kind: str
    p: float
    training: bool
    shape: tuple[int, ...]


class Recorder(Interceptor):
    """Lets activations through at their mean mask and notes every site met."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self._names = {id(m): n for n, m in model.named_modules()} if isinstance(model, nn.Module) else {}

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        self.calls.append(_Call(self._where(kind), kind, float(p), training, shape))
        if kind.endswith("alpha") and 0 < p < 1:
            mean = torch.full(shape, 1.0 - p, dtype=x.dtype, device=x.device)
            return apply_mask(kind, x, mean, p)
        return x

    def _where(self, kind: str) -> str:
        """Name of the innermost module being run, read off the Python stack."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module) and id(owner) in self._names:
                path = self._names[id(owner)]
                own = path if isinstance(owner, nn.modules.dropout._DropoutNd) else f"{path}.{kind}".lstrip(".")
                return own or kind
            frame = frame.f_back
        return kind


class _Watch(TorchDispatchMode):
    """Refuses random numbers drawn behind our back and measures the memory a pass holds."""

    def __init__(self, where: Callable[[str], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where = where
        self.live = self.peak = 0

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in name:
            raise ModelError(
                f"the forward pass draws random numbers with {name} at {self.where('random numbers')!r}, which cannot "
                "be controlled; write it with torch.nn.functional.dropout, or remove it for inference"
            )
        out = func(*args, **(kwargs or {}))
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in known:  # views are free
                self.live += value.untyped_storage().nbytes()
                weakref.finalize(value, self._release, value.untyped_storage().nbytes())
        self.peak = max(self.peak, self.live)
        return out

    def _release(self, size: int) -> None:
        self.live -= size


@dataclass(frozen=True, slots=True)
class Found:
    """What looking at a model told: how to run it, its sites, and what a row costs."""

    model: Any
    sites: tuple[Site, ...]
    rows_independent: bool
    bytes_per_row: int


def find_sites(
    model: Any,
    forward: Callable[[Any, Batch], Any],
    batch: Batch,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    rates: float | Mapping[str, float] | None = None,
) -> Found:
    """Run the model on one and two rows and note its dropout sites.

    ``forward(model, batch)`` returns the flattened output (rows, width).
    """
    one = batch[:1]
    two = batch[:2] if batch.rows > 1 else batch.map(lambda t: torch.cat([t, t]), 2)
    runs = {}
    for training in (False, True):
        twin = replica(model, training)
        try:
            runs[training] = (twin, _record(twin, forward, one), _record(twin, forward, two))
        except Exception:
            if not training:
                raise  # as in eval(): the user's own error, or ours
    quiet = runs[False]
    busy = runs.get(True, quiet)
    same = [(c.name, c.kind) for c in quiet[1].calls] == [(c.name, c.kind) for c in busy[1].calls]
    twin, first, second = quiet if same else busy
    calls = [replace(c, training=t.training) for c, t in zip(first.calls, busy[1].calls, strict=True)]
    sites = _as_sites(calls, second.calls)
    if not all(site.splits_by_row for site in sites):
        whole = _record(twin, forward, batch).calls
        sites = [s if s.splits_by_row else replace(s, shape=c.shape) for s, c in zip(sites, whole, strict=True)]
    sites = list(_choose(sites, include, exclude, rates))
    return Found(
        twin,
        tuple(sites),
        bool(torch.allclose(first.output[0], second.output[0], rtol=1e-3, atol=1e-5, equal_nan=True)),
        max(second.peak - first.peak, 1),
    )


@dataclass(slots=True)
class _Record:
    calls: list[_Call]
    output: Tensor
    peak: int


def _record(model: Any, forward: Callable[[Any, Batch], Any], batch: Batch) -> _Record:
    recorder = Recorder(model)
    watch = _Watch(recorder._where)
    with torch.no_grad(), watch, recorder:
        output = forward(model, batch.map(torch.clone, batch.rows))
    return _Record(recorder.calls, output, watch.peak)


def _as_sites(one: Sequence[_Call], two: Sequence[_Call]) -> list[Site]:
    if [(c.name, c.kind, len(c.shape)) for c in one] != [(c.name, c.kind, len(c.shape)) for c in two]:
        raise ModelError(
            f"the dropout sites depend on the inputs: {[c.name for c in one]} for one row, {[c.name for c in two]} for "
            "two; the control flow of the model must not depend on its data"
        )
    seen = Counter(c.name for c in one)
    used: Counter[str] = Counter()
    sites = []
    for index, (a, b) in enumerate(zip(one, two, strict=True)):
        used[a.name] += 1
        name = f"{a.name}#{used[a.name]}" if seen[a.name] > 1 else a.name
        axis, simple = _row_axis(a.shape, b.shape)
        sites.append(Site(index, name, a.kind, a.p, a.shape, axis, a.training, simple))
    return sites


def _row_axis(one: tuple[int, ...], two: tuple[int, ...]) -> tuple[int | None, bool]:
    differing = [axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if not differing:
        return None, True
    if len(differing) == 1 and two[differing[0]] == 2 * one[differing[0]]:
        return differing[0], True
    return None, False


def _choose(
    sites: list[Site],
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    rates: float | Mapping[str, float] | None,
) -> tuple[Site, ...]:
    """Apply include, exclude and rates, all by glob pattern on the site's name."""
    names = [site.name for site in sites]
    for label, patterns in (("include", include), ("exclude", exclude), ("rates", rates)):
        if isinstance(patterns, str):
            raise InputError(f"{label} is a list of patterns: got the string {patterns!r}; write [{patterns!r}]")
        if patterns is None or isinstance(patterns, (int, float)):
            continue
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise InputError(f"{label}: no dropout site matches {pattern!r}; the sites are {names}")
    chosen = []
    for site in sites:
        wanted = include is None or any(fnmatch.fnmatchcase(site.name, p) for p in include)
        barred = exclude is not None and any(fnmatch.fnmatchcase(site.name, p) for p in exclude)
        p = _rate(site, rates)
        if not 0 <= p < 1:
            raise ModelError(
                f"the dropout rate at {site.name!r} is {p}, which drops everything or is no probability; use 0 <= p < 1"
            )
        chosen.append(replace(site, p=p, active=site.active and wanted and not barred and p > 0))
    return tuple(chosen)


def _rate(site: Site, rates: float | Mapping[str, float] | None) -> float:
    if rates is None:
        return site.p
    if isinstance(rates, (int, float)):
        return float(rates)
    return next((float(p) for pattern, p in rates.items() if fnmatch.fnmatchcase(site.name, pattern)), site.p)


# ------------------------------------------------------------------------------ running with masks


class Player(Interceptor):
    """Applies given keep masks, one per site in the order of the forward pass."""

    def __init__(self, sites: Sequence[Site], masks: Sequence[Tensor | None], inplace: bool) -> None:
        super().__init__()
        self._sites, self._masks, self._inplace = sites, masks, inplace
        self.met = 0

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        site = self._sites[self.met] if self.met < len(self._sites) else None
        if site is None or site.kind != kind or len(site.shape) != len(shape):
            raise ModelError(
                f"the forward pass met dropout ({kind}, mask {shape}) where {site.name if site else 'none'!r} was "
                "expected; its control flow must not change from pass to pass"
            )
        keep = self._masks[self.met]
        self.met += 1
        if keep is None:
            return x
        out = apply_mask(kind, x, keep, site.p)
        return x.copy_(out) if inplace and self._inplace else out


def play(
    model: Any,
    forward: Callable[[Any, Batch], Any],
    batch: Batch,
    sites: Sequence[Site],
    masks: Sequence[Tensor | None],
    inplace: bool = False,
) -> Any:
    """One forward pass with the keep mask of every site given (``None``: nothing is dropped there).

    ``inplace`` also changes the argument of in-place dropout, as torch would.
    """
    player = Player(sites, masks, inplace)
    with player:
        out = forward(model, batch)
    if player.met != len(sites):
        raise ModelError(
            f"the forward pass met {player.met} dropout sites instead of {len(sites)}; its control flow must not "
            "change from pass to pass"
        )
    return out
