"""Our pass is the model's pass: compared with a real one in training mode, for the same random numbers."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from mlmc_dropout.errors import ModelError
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.isolation import Isolated
from mlmc_dropout.sampling.randomness import moved_generators
from mlmc_dropout.sampling.recording import Given, Look, fresh_numbers, some_rows, warn
from mlmc_dropout.sampling.sites import Site, full_shape, outputs_close

__all__ = ["ShapesFollowRowsError", "prove", "rows_split"]

_LOOKS = 3
_PROVED = 48  # rows: from the beginning, the middle and the end of a batch


class ShapesFollowRowsError(Exception):
    """The shape of a mask depends on which rows there are, not only on how many."""


def prove(look: Look, sites: Sequence[Site], batch: Batch, by_row: bool) -> tuple[list[Tensor | None], Batch]:
    """Prove that our pass equals a real pass in training mode, for the same random numbers.

    Args:
        look: Runs the copy of the model.
        sites: The sites that the census found.
        batch: The inputs.
        by_row: Whether masks follow the rows, so that a part of the rows is enough.

    Returns:
        Masks of the sites and the rows that they belong to, for further tests.

    Raises:
        ModelError: If the passes differ, or the model draws numbers that cannot be controlled.
        ShapesFollowRowsError: If a mask does not have the shape that follows from the number of rows.
    """
    probe = _rows_toprove(batch) if by_row else batch
    if not look.training:  # there is no real pass to compare with
        return _coins(sites, probe), probe
    with _watching_modules(look.copy) as strangers:
        real, given = _controlled(look, probe)
    _warn_of_strangers(strangers())
    _warn_of_statistics(look, probe, real)
    masks = _matched(sites, given, probe.rows)
    ours = look.play(sites, probe, masks)
    if not outputs_close(ours, real):
        raise ModelError(_why_different(look, probe, ours, real))
    return masks, probe


def _controlled(look: Look, probe: Batch) -> tuple[Tensor, list[Given]]:
    """A real pass without numbers that do not come from torch.

    Other threads may draw from the global generators of numpy and Python; three passes in a row are no accident.
    """
    passes: list[tuple[Tensor, list[Given]]] = []
    moved = {"numpy.random", "random"}
    for _ in range(_LOOKS):
        moved &= set(moved_generators(lambda: passes.append(look.real(probe))))
        if not moved:
            return passes[0]
    raise ModelError(
        f"the forward pass draws random numbers with {' and '.join(sorted(moved))}, which cannot be controlled; "
        "write it with torch.nn.functional.dropout, or remove it for inference"
    )


def _matched(sites: Sequence[Site], given: Sequence[Given], rows: int) -> list[Tensor | None]:
    """The numbers that kernels got, as masks of the sites; every draw has to belong to a site."""
    left = iter(given)
    masks: list[Tensor | None] = []
    for site in sites:
        draw = next(left, None) if site.active or (site.law == "uniform" and site.units == 1) else None
        if site.active:
            _check_draw(site, draw)
        values = draw.values if draw is not None and site.active else None
        if values is not None and values.shape != full_shape(site, rows):
            raise ShapesFollowRowsError
        masks.append(values)
    if (extra := next(left, None)) is not None:
        raise ModelError(
            f"a pass in training mode draws {extra.law} numbers at {extra.where} that belong to no dropout site; "
            "write it with torch.nn.functional.dropout, or remove it for inference"
        )
    return masks


def _check_draw(site: Site, draw: Given | None) -> None:
    """Refuse a pass whose draws are not those of its sites."""
    if draw is None or draw.law != site.law:
        seen = "no further draw" if draw is None else f"{draw.law} numbers at {draw.where}"
        raise ModelError(
            f"a pass in training mode has {seen} where {site.kind} at {site.name!r} was expected; the control flow of "
            "the forward pass must not depend on random numbers"
        )
    if abs(draw.p - site.model_p) > 1e-6:
        raise ModelError(
            f"the dropout rate at {site.name!r} is computed from activations that other dropout changes: "
            f"{site.model_p:g}, then {draw.p:g} ({draw.where}); use a fixed rate for inference"
        )


def rows_split(look: Look, sites: Sequence[Site], probe: Batch, masks: Sequence[Tensor | None]) -> bool:
    """Whether rows computed in two parts, in reverse order, have the same outputs as together.

    Args:
        look: Runs the copy of the model.
        sites: The sites that the census found.
        probe: The rows to compare.
        masks: Their masks, one per site, or ``None``.

    Returns:
        True if the outputs agree; False if they differ or the parts cannot be run.

    Raises:
        ShapesFollowRowsError: If a mask does not have the shape that follows from the number of rows.
    """
    together = look.play(sites, probe, masks)
    order = torch.arange(probe.rows - 1, -1, -1, device=probe.device)
    for rows in (order[:2], order[2:]):
        part = probe.map(lambda t, rows=rows: t[rows], len(rows))  # type: ignore[misc]
        own = [None if m is None else _rows_of(m, s, rows, probe.rows) for s, m in zip(sites, masks, strict=True)]
        try:
            apart = look.play(sites, part, own)
        except ModelError as error:
            raise ShapesFollowRowsError from error
        except Exception:  # cannot be run so
            return False
        if not outputs_close(apart, together[rows]):
            return False
    return True


def _rows_of(mask: Tensor, site: Site, rows: Tensor, of: int) -> Tensor:
    """The part of a mask that belongs to some rows."""
    if site.row_axis is None:
        return mask
    axis = site.row_axis
    split: Tensor = mask.unflatten(axis, (of, -1))
    return split.index_select(axis, rows).flatten(axis, axis + 1)


def _coins(sites: Sequence[Site], probe: Batch) -> list[Tensor | None]:
    return [fresh_numbers(s.index, s.law, full_shape(s, probe.rows), probe.device) if s.active else None for s in sites]


def _why_different(look: Look, probe: Batch, ours: Tensor, real: Tensor) -> str:
    """What can be said when our pass is not the model's."""
    worst = (ours.double() - real.double()).abs().nan_to_num(0.0).amax() if ours.shape == real.shape else float("nan")
    again: list[Tensor] = []
    moved = moved_generators(lambda: again.append(look.real(probe)[0]))
    message = f"a pass with given masks is not the model's pass in training mode (largest difference {worst:.3g})"
    if moved or not outputs_close(again[0], real):
        source = f"random numbers of {' and '.join(moved)}" if moved else "what it remembers from call to call"
        return f"{message}: the forward pass depends on {source}, which cannot be controlled; remove it for inference"
    return f"{message}: it notices that its dropout is watched; write it with torch.nn.functional.dropout"


def _rows_toprove(batch: Batch) -> Batch:
    """Rows from the beginning, the middle and the end; at least four."""
    rows = max(4, min(batch.rows, _PROVED))
    if batch.rows <= rows:
        return some_rows(batch, rows)
    third, middle = rows // 3, batch.rows // 2
    blocks = (range(third), range(middle, middle + third), range(batch.rows - third, batch.rows))
    chosen = torch.tensor([row for block in blocks for row in block], device=batch.device)
    return batch.map(lambda t: t[chosen], len(chosen))


# ------------------------------------------------------------------------------------ surroundings


@contextlib.contextmanager
def _watching_modules(copy: Isolated) -> Iterator[Callable[[], list[nn.Module]]]:
    """Notes modules that run although they do not belong to the copy; those made during the pass are gone after it."""
    thread, known = threading.get_ident(), {id(module) for module in copy.modules}
    met: dict[int, weakref.ref[nn.Module]] = {}

    def note(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == thread and id(module) not in known:
            met[id(module)] = weakref.ref(module)

    handle = register_module_forward_pre_hook(note)
    try:
        yield lambda: [module for ref in met.values() if (module := ref()) is not None]
    finally:
        handle.remove()


def _warn_of_strangers(modules: Sequence[nn.Module]) -> None:
    quiet = sorted({type(module).__name__ for module in modules if not module.training})
    if quiet:
        warn(
            f"the forward pass runs modules that are not part of the model, in evaluation mode as they were found: "
            f"{quiet}; their dropout is off; make them attributes of the model, or pass the module, not a function"
        )


def _warn_of_statistics(look: Look, probe: Batch, real: Tensor) -> None:
    """Warn of buffers that a pass changes if the next pass depends on them; counters do no harm."""
    if not look.copy.changed():
        return
    again = look.real(probe)[0]
    changed = look.copy.restore()
    if not outputs_close(again, real):
        warn(
            f"a pass in training mode changes the buffers {list(changed[:4])}: statistics of batches, which are not "
            "those of single inputs and move from pass to pass; use layers of torch.nn, which stay in evaluation mode"
        )
