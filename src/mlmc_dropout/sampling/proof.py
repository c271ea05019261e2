"""Proof that our pass is the model's: compared with a real pass in training mode, for the same random numbers."""

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
from mlmc_dropout.sampling.recording import ModelRunner, SuppliedNumbers, fresh_numbers, select_rows, warn
from mlmc_dropout.sampling.sites import Site, full_shape, outputs_close

__all__ = ["ShapesFollowRowsError", "prove", "rows_split"]

_ATTEMPTS = 3
_PROOF_ROWS = 48  # from the beginning, the middle and the end of a batch


class ShapesFollowRowsError(Exception):
    """The shape of a mask depends on which rows there are, not only on how many."""


def prove(runner: ModelRunner, sites: Sequence[Site], batch: Batch, by_row: bool) -> tuple[list[Tensor | None], Batch]:
    """Prove that our pass equals a real pass in training mode, for the same random numbers.

    Args:
        runner: Runs the copy of the model.
        sites: The sites that the census found.
        batch: The inputs.
        by_row: Whether masks follow the rows, so that a part of the rows is enough.

    Returns:
        Masks of the sites and the rows that they belong to, for further tests.

    Raises:
        ModelError: If the passes differ, or the model draws numbers that cannot be controlled.
        ShapesFollowRowsError: If a mask does not have the shape that follows from the number of rows.
    """
    probe = _rows_to_compare(batch) if by_row else batch
    if not runner.training:  # there is no real pass to compare with
        return _fair_masks(sites, probe), probe
    with _watching_modules(runner.copy) as foreign_modules:
        real, supplied = _controlled_pass(runner, probe)
    _warn_of_foreign_modules(foreign_modules())
    _warn_of_statistics(runner, probe, real)
    masks = _match_sites(sites, supplied, probe.rows)
    ours = runner.run_with_masks(sites, probe, masks)
    if not outputs_close(ours, real):
        raise ModelError(_why_different(runner, probe, ours, real))
    return masks, probe


def _controlled_pass(runner: ModelRunner, probe: Batch) -> tuple[Tensor, list[SuppliedNumbers]]:
    """A real pass that draws no numbers outside torch.

    Other threads may draw from the global generators of numpy and Python, so a pass gets three attempts.
    """
    passes: list[tuple[Tensor, list[SuppliedNumbers]]] = []
    moved = {"numpy.random", "random"}
    for _ in range(_ATTEMPTS):
        moved &= set(moved_generators(lambda: passes.append(runner.run_real(probe))))
        if not moved:
            return passes[0]
    raise ModelError(
        f"the forward pass draws random numbers with {' and '.join(sorted(moved))}, which cannot be controlled; "
        "write it with torch.nn.functional.dropout, or remove it for inference"
    )


def _match_sites(sites: Sequence[Site], supplied: Sequence[SuppliedNumbers], rows: int) -> list[Tensor | None]:
    """The numbers that kernels got, as masks of the sites; every draw has to belong to a site."""
    remaining = iter(supplied)
    masks: list[Tensor | None] = []
    for site in sites:
        draw = next(remaining, None) if site.active or (site.law == "uniform" and site.units == 1) else None
        if site.active:
            _check_draw(site, draw)
        values = draw.values if draw is not None and site.active else None
        if values is not None and values.shape != full_shape(site, rows):
            raise ShapesFollowRowsError
        masks.append(values)
    if (extra := next(remaining, None)) is not None:
        raise ModelError(
            f"a pass in training mode draws {extra.law} numbers at {extra.where} that belong to no dropout site; "
            "write it with torch.nn.functional.dropout, or remove it for inference"
        )
    return masks


def _check_draw(site: Site, draw: SuppliedNumbers | None) -> None:
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


def rows_split(runner: ModelRunner, sites: Sequence[Site], probe: Batch, masks: Sequence[Tensor | None]) -> bool:
    """Whether rows computed in two parts, in reverse order, have the same outputs as together.

    Args:
        runner: Runs the copy of the model.
        sites: The sites that the census found.
        probe: The rows to compare.
        masks: Their masks, one per site, or ``None``.

    Returns:
        True if the outputs agree; False if they differ or the parts cannot be run.

    Raises:
        ShapesFollowRowsError: If a mask does not have the shape that follows from the number of rows.
    """
    together = runner.run_with_masks(sites, probe, masks)
    order = torch.arange(probe.rows - 1, -1, -1, device=probe.device)
    for rows in (order[:2], order[2:]):
        part = probe.map(lambda t, rows=rows: t[rows], len(rows))  # type: ignore[misc]
        part_masks = [
            None if m is None else _rows_of(m, s, rows, probe.rows) for s, m in zip(sites, masks, strict=True)
        ]
        try:
            separate = runner.run_with_masks(sites, part, part_masks)
        except ModelError as error:
            raise ShapesFollowRowsError from error
        except Exception:  # the part cannot be run
            return False
        if not outputs_close(separate, together[rows]):
            return False
    return True


def _rows_of(mask: Tensor, site: Site, rows: Tensor, of: int) -> Tensor:
    """The part of a mask that belongs to ``rows``."""
    if site.row_axis is None:
        return mask
    axis = site.row_axis
    split: Tensor = mask.unflatten(axis, (of, -1))
    return split.index_select(axis, rows).flatten(axis, axis + 1)


def _fair_masks(sites: Sequence[Site], probe: Batch) -> list[Tensor | None]:
    return [fresh_numbers(s.index, s.law, full_shape(s, probe.rows), probe.device) if s.active else None for s in sites]


def _why_different(runner: ModelRunner, probe: Batch, ours: Tensor, real: Tensor) -> str:
    """The message where our pass is not the model's."""
    worst = (ours.double() - real.double()).abs().nan_to_num(0.0).amax() if ours.shape == real.shape else float("nan")
    again: list[Tensor] = []
    moved = moved_generators(lambda: again.append(runner.run_real(probe)[0]))
    message = f"a pass with given masks is not the model's pass in training mode (largest difference {worst:.3g})"
    if moved or not outputs_close(again[0], real):
        source = f"random numbers of {' and '.join(moved)}" if moved else "what it remembers from call to call"
        return f"{message}: the forward pass depends on {source}, which cannot be controlled; remove it for inference"
    return f"{message}: it notices that its dropout is watched; write it with torch.nn.functional.dropout"


def _rows_to_compare(batch: Batch) -> Batch:
    """Rows from the beginning, the middle and the end; at least four."""
    rows = max(4, min(batch.rows, _PROOF_ROWS))
    if batch.rows <= rows:
        return select_rows(batch, rows)
    third, middle = rows // 3, batch.rows // 2
    blocks = (range(third), range(middle, middle + third), range(batch.rows - third, batch.rows))
    chosen = torch.tensor([row for block in blocks for row in block], device=batch.device)
    return batch.map(lambda t: t[chosen], len(chosen))


# ------------------------------------------------------------------------------------ surroundings


@contextlib.contextmanager
def _watching_modules(copy: Isolated) -> Iterator[Callable[[], list[nn.Module]]]:
    """Collect modules that run but do not belong to the copy, except those created during the pass."""
    thread, own_modules = threading.get_ident(), {id(module) for module in copy.modules}
    foreign: dict[int, weakref.ref[nn.Module]] = {}

    def collect(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == thread and id(module) not in own_modules:
            foreign[id(module)] = weakref.ref(module)

    handle = register_module_forward_pre_hook(collect)
    try:
        yield lambda: [module for ref in foreign.values() if (module := ref()) is not None]
    finally:
        handle.remove()


def _warn_of_foreign_modules(modules: Sequence[nn.Module]) -> None:
    in_evaluation = sorted({type(module).__name__ for module in modules if not module.training})
    if in_evaluation:
        warn(
            f"the forward pass runs modules that are not part of the model, in evaluation mode as they were found: "
            f"{in_evaluation}; their dropout is off; make them attributes of the model, or pass the module, not a "
            "function"
        )


def _warn_of_statistics(runner: ModelRunner, probe: Batch, real: Tensor) -> None:
    """Warn of buffers that a pass changes, if the next pass depends on them; counters do not matter."""
    if not runner.copy.changed():
        return
    again = runner.run_real(probe)[0]
    changed = runner.copy.restore()
    if not outputs_close(again, real):
        warn(
            f"a pass in training mode changes the buffers {list(changed[:4])}: statistics of batches, which are not "
            "those of single inputs and move from pass to pass; use layers of torch.nn, which stay in evaluation mode"
        )
