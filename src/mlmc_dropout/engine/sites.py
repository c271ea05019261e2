"""A trained model -> its dropout sites, and a forward pass with given masks.

The model runs as in ``eval()`` with dropout switched on. Where dropout shows up only in training mode
(``if self.training: ...``) it runs as in ``train()`` with normalisation layers in ``eval()``.
"""

from __future__ import annotations

import fnmatch
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mlmc_dropout.engine.data import Batch
from mlmc_dropout.engine.interception import Interceptor, apply_mask
from mlmc_dropout.engine.replica import CARRIERS, replica
from mlmc_dropout.engine.watch import Watch
from mlmc_dropout.errors import InputError, ModelError

__all__ = ["Found", "Player", "Recorder", "Site", "find_sites", "play", "same"]

Forward = Callable[[Any, Batch], Any]


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
        root = getattr(model, "__self__", model)
        self._names = {id(m): n for n, m in root.named_modules()} if isinstance(root, nn.Module) else {}

    def drop(self, kind: str, x: Tensor, p: float, training: bool, shape: tuple[int, ...], inplace: bool) -> Tensor:
        owner = self._owner()
        path = self._names.get(id(owner), "")
        own = path if isinstance(owner, nn.modules.dropout._DropoutNd) else f"{path}.{kind}".lstrip(".")
        # A dropout layer is on, even one kept where train() and eval() do not reach it.
        self.calls.append(_Call(own or kind, kind, float(p), training or isinstance(owner, CARRIERS), shape))
        if kind.endswith("alpha") and 0 < p < 1:
            return apply_mask(kind, x, torch.full(shape, 1.0 - p, dtype=x.dtype, device=x.device), p)
        return x

    def where(self) -> str:
        """The module being run, for messages."""
        owner = self._owner()
        return self._names.get(id(owner), "") or (type(owner).__name__ if owner is not None else "the model")

    def _owner(self) -> nn.Module | None:
        """The innermost module being run, read off the Python stack."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                return owner
            frame = frame.f_back
        return None


@dataclass(frozen=True, slots=True)
class Found:
    """What looking at a model told: the twin to run, its sites, and whether rows ignore each other."""

    model: Any
    sites: tuple[Site, ...]
    rows_independent: bool


def find_sites(
    model: Any,
    forward: Forward,
    batch: Batch,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    rates: float | Mapping[str, float] | None = None,
) -> Found:
    """Run the model on a few rows, in both modes, and note its dropout sites.

    ``forward(model, batch)`` returns the flattened output (rows, width).
    """
    rows = min(batch.rows, 2)
    some, more = batch[:rows], batch[: rows + 1]
    if batch.rows == rows:
        more = batch.map(lambda t: torch.cat([t, t[:1]]), rows + 1)
    quiet = _look(replica(model, training=False), forward, some, more)
    busy = _look_in_training(model, forward, some, more) or quiet
    found = quiet
    if [(c.name, c.kind) for c in quiet.some.calls] != [(c.name, c.kind) for c in busy.some.calls]:
        found = busy  # dropout that shows up only in training mode
        if busy.random:
            hidden = [c.name for c in busy.some.calls if c.name not in {q.name for q in quiet.some.calls}]
            raise ModelError(
                f"the dropout at {hidden} is met only in training mode, where the model also draws random numbers that "
                f"cannot be controlled: {busy.random[0]}; write it with torch.nn.functional.dropout, or switch it off"
            )
    calls = [replace(c, training=t.training) for c, t in zip(found.some.calls, busy.some.calls, strict=True)]
    sites = _as_sites(calls, found.more.calls, rows)
    if not all(site.splits_by_row for site in sites):
        whole = _record(found.twin, forward, batch).calls
        sites = [s if s.splits_by_row else replace(s, shape=c.shape) for s, c in zip(sites, whole, strict=True)]
    a, b = found.some.output, found.more.output[:rows]
    return Found(found.twin, _choose(sites, include, exclude, rates), same(a, b))


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two outputs agree up to rounding in their precision."""
    tolerance = max(1e-4, 8.0 * torch.finfo(a.dtype).eps) if a.is_floating_point() else 0.0
    a, b = a.double(), b.double()
    scale = a.nan_to_num(0.0, 0.0, 0.0).abs().amax(dim=tuple(range(a.dim() - 1)))  # of each output component
    close = ((a - b).abs() <= tolerance * (a.abs() + scale)) | (a == b) | (a.isnan() & b.isnan())
    return bool(close.all())


@dataclass(frozen=True, slots=True)
class _Record:
    calls: list[_Call]
    output: Tensor
    random: list[str]


@dataclass(frozen=True, slots=True)
class _Look:
    """A twin and its records on some rows and on one more."""

    twin: Any
    some: _Record
    more: _Record

    @property
    def random(self) -> list[str]:
        return self.some.random


def _look(twin: Any, forward: Forward, some: Batch, more: Batch, allow_random: bool = False) -> _Look:
    return _Look(twin, _record(twin, forward, some, allow_random), _record(twin, forward, more, allow_random))


def _look_in_training(model: Any, forward: Forward, some: Batch, more: Batch) -> _Look | None:
    try:
        return _look(replica(model, training=True), forward, some, more, allow_random=True)
    except Exception:  # some models cannot run so: they want targets, or return losses
        return None


def _record(model: Any, forward: Forward, batch: Batch, allow_random: bool = False) -> _Record:
    recorder = Recorder(model)
    watch = Watch(recorder.where, allow_random)
    with torch.no_grad(), watch, recorder:
        output = forward(model, batch.map(torch.clone, batch.rows))
    return _Record(recorder.calls, output, watch.random)


def _as_sites(some: Sequence[_Call], more: Sequence[_Call], rows: int) -> list[Site]:
    """Sites from the calls met with ``rows`` rows and with one more."""
    if [(c.name, c.kind, len(c.shape)) for c in some] != [(c.name, c.kind, len(c.shape)) for c in more]:
        raise ModelError(
            f"the dropout sites depend on the inputs: {[c.name for c in some]} for {rows} rows, "
            f"{[c.name for c in more]} for {rows + 1}; the control flow of the model must not depend on its data"
        )
    seen = Counter(c.name for c in some)
    used: Counter[str] = Counter()
    sites = []
    for index, (a, b) in enumerate(zip(some, more, strict=True)):
        used[a.name] += 1
        name = f"{a.name}#{used[a.name]}" if seen[a.name] > 1 else a.name
        axis, simple = _row_axis(a.shape, b.shape, rows)
        shape = tuple(n // rows if k == axis else n for k, n in enumerate(a.shape))
        sites.append(Site(index, name, a.kind, a.p, shape, axis, a.training, simple))
    return sites


def _row_axis(some: tuple[int, ...], more: tuple[int, ...], rows: int) -> tuple[int | None, bool]:
    """The axis along which the mask grows with the rows, and whether that is all there is to it."""
    differing = [axis for axis, (a, b) in enumerate(zip(some, more, strict=True)) if a != b]
    if not differing:
        return None, True
    if len(differing) == 1 and more[differing[0]] * rows == some[differing[0]] * (rows + 1):
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

    def __init__(
        self,
        sites: Sequence[Site],
        masks: Sequence[Tensor | None],
        inplace: bool,
        started: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._sites, self._masks, self._inplace, self._started = sites, masks, inplace, started
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
        if self._started is not None:
            self._started()
        out = apply_mask(kind, x, keep, site.p)
        return x.copy_(out) if inplace and self._inplace else out


def play(
    model: Any,
    forward: Forward,
    batch: Batch,
    sites: Sequence[Site],
    masks: Sequence[Tensor | None],
    inplace: bool = False,
    started: Callable[[], None] | None = None,
) -> Any:
    """One forward pass with the keep mask of every site given (``None``: nothing is dropped there).

    ``inplace`` also changes the argument of in-place dropout, as torch would. ``started`` is called
    before each mask is applied.
    """
    player = Player(sites, masks, inplace, started)
    with player:
        out = forward(model, batch)
    if player.met != len(sites):
        raise ModelError(
            f"the forward pass met {player.met} dropout sites instead of {len(sites)}; its control flow must not "
            "change from pass to pass"
        )
    return out
