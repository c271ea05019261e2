"""Preparations of models, kept as long as the models live.

What depends on a model and the kind of its inputs only, its sites, the way of batching, the memory of a pass, is found
once. A preparation is lent to one user at a time, since its copy of the model may be written to by a pass, and taken
back if the copy is as it was. Before it is lent again, the model has to be what it was (``snapshot``), and a pass over
the new inputs has to meet the same sites. So nothing that is kept can change a result: if in doubt, it is found anew.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from mlmc_dropout.sampling.batching import Program
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.isolation import Isolated
from mlmc_dropout.sampling.randomness import KernelMode
from mlmc_dropout.sampling.sites import MaskApplier
from mlmc_dropout.sampling.snapshot import Snapshot, UnclearStateError

__all__ = ["Preparation", "give_back", "kind_of", "lend", "snapshot_of"]

_PER_MODEL = 8
_MANY_ROWS = 3  # from which memory is measured in the same way
_LOCK = threading.Lock()
_KEPT: weakref.WeakKeyDictionary[Any, list[Preparation]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """What was found out about a model.

    Attributes:
        program: The prepared model.
        copy: The copy of the model that it runs.
        kind: The kind of inputs, and the settings of the sampler.
        rows: Rows of the inputs that were looked at.
        messages: Warnings to be repeated whenever it is used.
        model: What the model was made of.
        own: What its copy was made of.
        thread: Who uses it.
    """

    program: Program
    copy: Isolated
    kind: Hashable
    rows: int
    messages: tuple[str, ...]
    model: Snapshot | None
    own: Snapshot | None
    thread: int = field(default_factory=threading.get_ident)

    def fits(self, kind: Hashable, rows: int) -> bool:
        """Whether it is about inputs like these.

        Args:
            kind: Their kind.
            rows: Their number of rows.
        """
        same_rows = rows == self.rows or (self.program.rows_split and min(rows, self.rows) >= _MANY_ROWS)
        return kind == self.kind and same_rows

    def is_of(self, model: Any, transform: Any) -> bool:
        """Whether the model is what it was.

        Tensors that were copied are compared with their copies, too: what is written through ``.data`` or ``.numpy()``
        shows in no version.

        Args:
            model: The model.
            transform: What is called on its outputs.
        """
        if self.model is None or self.model != snapshot_of(model, transform):
            return False
        return self.copy.has_values_of_model() or self.own != snapshot_of(self.copy.model)  # passes wrote to the copy

    def confirmed(self, forward: Callable[[Any, Batch], Tensor], batch: Batch, limit: int) -> bool:
        """Whether a pass over these inputs meets the same sites.

        A pass at the mean masks shows it, unless it is known that passes do the same for all inputs of these shapes.

        Args:
            forward: ``forward(model, batch)`` returns the outputs, (rows, width).
            batch: The inputs.
            limit: Memory limit in bytes.

        Returns:
            Whether it does.
        """
        program, rows = self.program, batch.rows
        if program.replay.covers(batch.values):
            return True
        at_once = program.footprint.rows_at_once(rows, limit) if program.rows_split else rows
        for start in range(0, rows, at_once):
            part = batch if at_once == rows else batch[start : min(start + at_once, rows)]
            applier = MaskApplier(program.sites, [None] * len(program.sites), writes=True, rows=part.rows)
            try:
                with torch.no_grad(), KernelMode(applier), applier:
                    out = forward(program.model, part.map(torch.clone, part.rows))
            except Exception:  # of any kind: preparing anew will raise it again, with what there is to say about it
                return False
            if applier.sites_met != len(program.sites) or out.shape[1] != program.structure.width:
                return False
        return True


def kind_of(batch: Batch, *settings: Hashable) -> Hashable:
    """What distinguishes inputs, and the circumstances, besides rows and values.

    Args:
        batch: The inputs.
        settings: Whatever else matters.

    Returns:
        A value that is equal for inputs of the same kind.
    """
    inputs = tuple(
        (name, value.dtype, value.device, value.layout, value.shape[1:], value.dim(), value.is_inference())
        if isinstance(value, Tensor)
        else (name, type(value), value if isinstance(value, (int, float, str)) else id(value))
        for name, value in batch.named.items()
    )
    autocast = tuple(
        (device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    )
    surroundings = autocast, torch.get_default_dtype(), torch.is_inference_mode_enabled()
    return inputs, batch.constants, len(batch.args), settings, surroundings


def snapshot_of(*roots: Any) -> Snapshot | None:
    """The state of some objects, or ``None`` where changes could not be noticed.

    Args:
        roots: The objects.
    """
    try:
        return Snapshot(*roots)
    except (UnclearStateError, RecursionError):
        return None


def lend(model: Any, transform: Any, kind: Hashable, rows: int) -> Preparation | None:
    """A preparation of the model as it is now.

    Args:
        model: The model.
        transform: What is called on its outputs.
        kind: Kind of the inputs.
        rows: Their number of rows.

    Returns:
        The preparation, which nobody else has; ``None`` if there is none.
    """
    with _LOCK:
        kept = _entries(model)
        found = next((p for p in kept if p.fits(kind, rows)), None)
        if found is not None:
            kept.remove(found)
    return found if found is not None and found.is_of(model, transform) else None


def give_back(model: Any, preparation: Preparation, was_called: bool) -> None:
    """Keep a preparation for the next user, unless its copy of the model has changed.

    Args:
        model: The model.
        preparation: The preparation.
        was_called: Whether the copy was called in between, so that it may have changed.
    """
    if preparation.model is None or preparation.own is None or preparation.copy.shared:
        return
    if was_called and preparation.own != snapshot_of(preparation.copy.model):
        return
    with _LOCK:
        kept = _entries(model)
        kept.append(preparation)
        del kept[:-_PER_MODEL]


def _entries(model: Any) -> list[Preparation]:
    """The list of a model's preparations; a list of no consequence where the model cannot be referred to weakly."""
    anchor = model.__self__ if isinstance(model, MethodType) else model
    try:
        return _KEPT.setdefault(anchor, [])
    except TypeError:
        return []
