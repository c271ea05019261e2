"""A model -> its dropout sites, all of them, with proof.

The census. A pass in training mode (normalisation layers in evaluation) is run with every call that drops units or
draws random numbers caught, those that torch's Python functions show and, below them, those of kernels. Rates and
shapes are those met in training.

The proof. A real pass in training mode, with nothing caught but the kernels that draw random numbers, which are given
ours, has to equal our pass with the same masks; and rows computed in parts and in another order have to equal rows
computed together. What fails is refused by name, or run in the way that does not fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mlmc_dropout.errors import MLMCDropoutError, ModelError
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.isolation import Isolated, isolate
from mlmc_dropout.sampling.outputs import Structure
from mlmc_dropout.sampling.proof import ShapesFollowRowsError, prove, rows_split
from mlmc_dropout.sampling.recording import Call, Look, Record, some_rows, spread, warn
from mlmc_dropout.sampling.sites import Site, choose, outputs_close

__all__ = ["Found", "take_census"]

_FEW = 2  # rows of the small census
_MANY = 48  # rows of the large one, at least, whatever the memory limit is
_ENDS = (0.0, 1.0 - 2.0**-24)  # of uniform numbers


@dataclass(frozen=True, slots=True)
class Found:
    """What a census tells.

    Attributes:
        model: An isolated copy of the model, in the mode in which passes are run.
        sites: Its sites, with the rates of the model.
        structure: The shape of its outputs.
        rows_independent: Whether rows can be computed in any parts and order.
        notes: What its user should know.
    """

    model: Any
    sites: tuple[Site, ...]
    structure: Structure
    rows_independent: bool
    notes: tuple[str, ...]


def take_census(model: Any, call: Call, batch: Batch, memory_limit: int) -> Found:
    """Find all sites of a model and prove that passes with given masks are its passes.

    Args:
        model: Any module or callable.
        call: Calls it on a batch.
        batch: The inputs.
        memory_limit: Bytes that a pass may hold if rows can be computed in parts.

    Returns:
        The census.

    Raises:
        ModelError: If random numbers cannot be controlled, or the proof fails.
    """
    if not torch.is_inference_mode_enabled() and not any(map(_made_for_inference, batch.values)):
        return _census(model, call, batch, memory_limit)
    with torch.inference_mode(False):  # where kernels are seen in their parts
        return _census(model, call, batch.map(torch.clone, batch.rows), memory_limit)


def _made_for_inference(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_inference()


def _census(model: Any, call: Call, batch: Batch, memory_limit: int) -> Found:
    copy = isolate(model)
    look = Look(copy, call, {id(module): name for module, name in copy.modules.items()})
    few, whole = _small_and_large(look, batch, memory_limit)
    sites, by_row = _as_sites(few, whole)
    if not by_row and whole.rows != batch.rows:
        whole = look.record(batch)
        sites, _ = _as_sites(None, whole)
    choose(sites)  # refuses impossible rates
    copy.restore()
    if whole.training:
        sites = _without_idle_draws(look, sites, batch if not by_row else some_rows(batch, _FEW))
    try:
        masks, probe = prove(look, sites, batch, by_row)
        independent = by_row and rows_split(look, sites, probe, masks)
    except ShapesFollowRowsError:  # and only seemed to grow with their number
        whole = whole if whole.rows == batch.rows else look.record(batch)
        sites, by_row = _as_sites(None, whole)
        _prove_whole(look, sites, batch)
    copy.restore()
    if not by_row:
        independent = _alike_in_other_company(few, whole, batch)
    return Found(copy.model, sites, whole.structure, independent, tuple(_notes(copy, sites, whole.skipped)))


def _prove_whole(look: Look, sites: Sequence[Site], batch: Batch) -> None:
    try:
        prove(look, sites, batch, by_row=False)
    except ShapesFollowRowsError:
        raise ModelError(
            "the masks of a pass in training mode do not have the shapes that the dropout sites have: "
            f"{[(site.name, site.shape) for site in sites if site.active][:4]}; the control flow of the forward pass "
            "must not depend on random numbers"
        ) from None


def _alike_in_other_company(few: Record | None, whole: Record, batch: Batch) -> bool:
    """Whether some rows have the same outputs, at the mean masks, among few rows as among all."""
    if few is None or [(m.identity, m.p) for m in few.met] != [(m.identity, m.p) for m in whole.met]:
        return False
    return outputs_close(few.output, whole.output[spread(batch, few.rows)])


# ------------------------------------------------------------------------------------------ modes


def _small_and_large(look: Look, batch: Batch, memory_limit: int) -> tuple[Record | None, Record]:
    """Records of few rows and of all rows (of as many as the memory limit holds); no small one if it cannot be run."""
    few_rows = _FEW if batch.rows != _FEW else _FEW + 1
    try:
        few = _in_some_mode(look, some_rows(batch, few_rows))
    except MLMCDropoutError:
        raise
    except Exception:  # perhaps the model takes nothing but the whole batch
        return None, _in_some_mode(look, batch)
    fitting = max(_MANY, int(memory_limit / max(few.bytes / few.rows, 1)))
    whole = look.record(batch if batch.rows <= fitting else batch[:fitting])
    return few, whole


def _in_some_mode(look: Look, batch: Batch) -> Record:
    """A record in training mode, or, where the model cannot be run so or returns something else, in evaluation mode."""
    try:
        training = look.record(batch)
    except MLMCDropoutError:
        raise
    except Exception as error:
        return _in_evaluation(look, batch, error)
    look.training = False
    try:
        evaluation = look.record(batch)
    except Exception:
        evaluation = None
    look.training = True
    if evaluation is None:
        return training
    _compare_modes(training, evaluation)
    if training.structure == evaluation.structure:
        return training
    _other_structure(look, training, evaluation)
    return look.record(batch)


def _in_evaluation(look: Look, batch: Batch, error: Exception) -> Record:
    look.training = False
    record = look.record(batch)  # an error in both modes is the model's own
    warn(
        f"the model cannot be run in training mode ({type(error).__name__}: {str(error).splitlines()[0][:120]}), "
        "so passes run in evaluation mode with dropout layers on; dropout that depends on self.training is missed"
    )
    return record


def _compare_modes(training: Record, evaluation: Record) -> None:
    """Warn of numbers that are drawn in evaluation but not in training."""
    always = Counter((met.name, met.law) for met in evaluation.met if met.on and met.p < 1)
    extra = always - Counter((met.name, met.law) for met in training.met)
    if extra:
        warn(
            f"the model draws random numbers at {sorted({name for name, _ in extra})} in evaluation mode but not in "
            "training mode; passes are those of training mode, without them"
        )


def _other_structure(look: Look, training: Record, evaluation: Record) -> None:
    """The model returns something else in training, such as auxiliary outputs: use evaluation where sites agree."""
    same = _without_mode(training) == _without_mode(evaluation)
    shapes = f"{training.structure.names()} in training mode and {evaluation.structure.names()} in evaluation mode"
    if not same:
        raise ModelError(
            f"the model returns {shapes}, and its dropout differs between the modes, too; use transform= to select the "
            "same outputs in both modes, or set what makes the difference"
        )
    look.training, look.on = False, [met.on for met in training.met]
    warn(
        f"the model returns {shapes}; passes run in evaluation mode with dropout switched on; use transform= to select "
        "the outputs if those of training mode are meant"
    )


def _without_mode(record: Record) -> list[Any]:
    """What the calls of a record have in common in both modes."""
    return [(met.name, met.kind, met.p, met.shape) for met in record.met]


# ------------------------------------------------------------------------------------------ sites


def _as_sites(few: Record | None, whole: Record) -> tuple[tuple[Site, ...], bool]:
    """Sites, and whether their masks follow the rows: by comparison of a pass of few rows with one of many."""
    follows = few is not None and [(m.identity, m.p) for m in few.met] == [(m.identity, m.p) for m in whole.met]
    seen = Counter(met.name for met in whole.met)
    used: Counter[str] = Counter()
    sites = []
    for index, met in enumerate(whole.met):
        used[met.name] += 1
        name = f"{met.name}#{used[met.name]}" if seen[met.name] > 1 else met.name
        axis, simple = None, False
        if few is not None and follows:
            axis, simple = _row_axis(few.met[index].shape, met.shape, few.rows, whole.rows)
        shape = tuple(n // whole.rows if k == axis else n for k, n in enumerate(met.shape))
        on = met.on and (met.p > 0 or met.law != "bernoulli") and 0 not in met.shape
        sites.append(Site(index, name, met.kind, met.p, shape, axis, on, simple, met.law, met.p, met.in_kernel))
    return tuple(sites), all(site.splits_by_row for site in sites if site.active)


def _row_axis(few: tuple[int, ...], many: tuple[int, ...], rows: int, more: int) -> tuple[int | None, bool]:
    """The axis along which a mask grows with the rows, and whether that is all there is to it."""
    differing = [axis for axis, (a, b) in enumerate(zip(few, many, strict=True)) if a != b]
    if not differing:
        return None, True
    axis = differing[0]
    if len(differing) == 1 and many[axis] * rows == few[axis] * more:
        return axis, True
    return None, False


def _without_idle_draws(look: Look, sites: tuple[Site, ...], batch: Batch) -> tuple[Site, ...]:
    """Switch off single numbers that have no effect, such as those of layer drop with rate 0; refuse those that steer.

    Raises:
        ModelError: If a single number decides which layers a pass goes through.
    """
    single = [s for s in sites if s.law == "uniform" and s.row_axis is None and s.units == 1 and s.active]
    if not single:
        return sites
    plain = look.record(batch)
    changed = list(sites)
    for site in single:
        ends = [look.record(batch, {site.index: end}) for end in _ENDS]
        if any([m.identity for m in end.met] != [m.identity for m in plain.met] for end in ends):
            raise ModelError(
                f"a single random number drawn at {plain.met[site.index].where} decides which layers a pass goes "
                f"through ({site.name!r}: layer drop?), which cannot be controlled; set its rate to 0 for inference"
            )
        if all(outputs_close(plain.output, end.output) for end in ends):
            changed[site.index] = replace(site, active=False)
    return tuple(changed)


def _notes(copy: Isolated, sites: Sequence[Site], skipped: Sequence[str]) -> Iterator[str]:
    by_hand = [f"{site.name!r} ({site.kind})" for site in sites if site.made_by_hand and site.active]
    if by_hand:
        yield f"Besides dropout, passes contain the random numbers that the model draws at {', '.join(by_hand[:6])}."
    if skipped:
        yield f"Left out of the output, since it has no rows: {', '.join(skipped[:6])}."
    if copy.shared:
        yield f"Used as they are, since they cannot be copied: {', '.join(copy.shared[:6])}."
