"""A model -> its dropout sites, all of them, with proof.

The census. A pass runs in training mode (normalisation layers in evaluation mode), and every call that drops units or
draws random numbers is intercepted: calls of torch's Python functions and, below them, those of kernels. Rates and
shapes are those of training mode.

The proof. A real pass in training mode, in which only the kernels that draw random numbers are intercepted and get
ours, has to equal our pass with the same masks; and rows computed in parts and in another order have to equal rows
computed together. A model that fails is refused, with the place named, or run in a mode that does not fail.
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
from mlmc_dropout.sampling.recording import Call, ModelRunner, Record, select_rows, spaced_rows, warn
from mlmc_dropout.sampling.sites import Site, outputs_close, select_sites

__all__ = ["Census", "take_census"]

_FEW = 2  # rows of the small record
_MANY = 48  # rows of the large one, at least, whatever the memory limit is
_EXTREMES = (0.0, 1.0 - 2.0**-24)  # of uniform numbers


@dataclass(frozen=True, slots=True)
class Census:
    """The dropout sites of a model, and what else is known of its passes.

    Attributes:
        copy: An isolated copy of the model, in the mode in which passes are run.
        sites: Its sites, with the rates of the model.
        structure: The structure of its outputs.
        rows_independent: Whether rows can be computed in any parts and order.
        notes: Sentences that the user should read.
    """

    copy: Isolated
    sites: tuple[Site, ...]
    structure: Structure
    rows_independent: bool
    notes: tuple[str, ...]


def take_census(model: Any, call: Call, batch: Batch, memory_limit: int) -> Census:
    """Find all sites of a model and prove that passes with explicit masks are its passes.

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
    if not torch.is_inference_mode_enabled() and not any(map(_is_inference_tensor, batch.values)):
        return _run_census(model, call, batch, memory_limit)
    with torch.inference_mode(False):  # in inference mode composite kernels would not be decomposed
        return _run_census(model, call, batch.map(torch.clone, batch.rows), memory_limit)


def _is_inference_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_inference()


def _run_census(model: Any, call: Call, batch: Batch, memory_limit: int) -> Census:
    copy = isolate(model)
    runner = ModelRunner(copy, call, {id(module): name for module, name in copy.modules.items()})
    few, whole = _small_and_large(runner, batch, memory_limit)
    sites, by_row = _sites_of(few, whole)
    if not by_row and whole.rows != batch.rows:
        whole = runner.record(batch)
        sites, _ = _sites_of(None, whole)
    select_sites(sites)  # refuses impossible rates
    copy.restore()
    if whole.training:
        sites = _without_idle_draws(runner, sites, batch if not by_row else select_rows(batch, _FEW))
    try:
        masks, probe = prove(runner, sites, batch, by_row)
        independent = by_row and rows_split(runner, sites, probe, masks)
    except ShapesFollowRowsError:  # masks that seemed to grow with the number of rows
        whole = whole if whole.rows == batch.rows else runner.record(batch)
        sites, by_row = _sites_of(None, whole)
        _prove_whole(runner, sites, batch)
    copy.restore()
    if not by_row:
        independent = _independent_of_other_rows(few, whole, batch)
    return Census(copy, sites, whole.structure, independent, tuple(_notes(copy, sites, whole.skipped)))


def _prove_whole(runner: ModelRunner, sites: Sequence[Site], batch: Batch) -> None:
    try:
        prove(runner, sites, batch, by_row=False)
    except ShapesFollowRowsError:
        raise ModelError(
            "the masks of a pass in training mode do not have the shapes that the dropout sites have: "
            f"{[(site.name, site.shape) for site in sites if site.active][:4]}; the control flow of the forward pass "
            "must not depend on random numbers"
        ) from None


def _independent_of_other_rows(few: Record | None, whole: Record, batch: Batch) -> bool:
    """Whether rows have the same outputs at the mean masks, whether few or all rows are computed together."""
    if few is None or [(m.identity, m.p) for m in few.calls] != [(m.identity, m.p) for m in whole.calls]:
        return False
    return outputs_close(few.output, whole.output[spaced_rows(batch, few.rows)])


# ------------------------------------------------------------------------------------------ modes


def _small_and_large(runner: ModelRunner, batch: Batch, memory_limit: int) -> tuple[Record | None, Record]:
    """Records of few rows, if they can be run, and of all rows, or of as many as the memory limit allows."""
    few_rows = _FEW if batch.rows != _FEW else _FEW + 1
    try:
        few = _record_in_best_mode(runner, select_rows(batch, few_rows))
    except MLMCDropoutError:
        raise
    except Exception:  # perhaps the model takes the whole batch only
        return None, _record_in_best_mode(runner, batch)
    fitting = max(_MANY, int(memory_limit / max(few.bytes / few.rows, 1)))
    whole = runner.record(batch if batch.rows <= fitting else batch[:fitting])
    return few, whole


def _record_in_best_mode(runner: ModelRunner, batch: Batch) -> Record:
    """A record in training mode or, where that fails or gives outputs of another structure, in evaluation mode."""
    try:
        training = runner.record(batch)
    except MLMCDropoutError:
        raise
    except Exception as error:
        return _record_in_evaluation_mode(runner, batch, error)
    runner.training = False
    try:
        evaluation = runner.record(batch)
    except Exception:
        evaluation = None
    runner.training = True
    if evaluation is None:
        return training
    _compare_modes(training, evaluation)
    if training.structure == evaluation.structure:
        return training
    _use_evaluation_mode(runner, training, evaluation)
    return runner.record(batch)


def _record_in_evaluation_mode(runner: ModelRunner, batch: Batch, error: Exception) -> Record:
    runner.training = False
    record = runner.record(batch)  # an error in both modes is an error of the model
    warn(
        f"the model cannot be run in training mode ({type(error).__name__}: {str(error).splitlines()[0][:120]}), "
        "so passes run in evaluation mode with dropout layers on; dropout that depends on self.training is missed"
    )
    return record


def _compare_modes(training: Record, evaluation: Record) -> None:
    """Warn of numbers that are drawn in evaluation but not in training."""
    in_evaluation = Counter((call.name, call.law) for call in evaluation.calls if call.on and call.p < 1)
    extra = in_evaluation - Counter((call.name, call.law) for call in training.calls)
    if extra:
        warn(
            f"the model draws random numbers at {sorted({name for name, _ in extra})} in evaluation mode but not in "
            "training mode; passes are those of training mode, without them"
        )


def _use_evaluation_mode(runner: ModelRunner, training: Record, evaluation: Record) -> None:
    """Where training mode returns other outputs, such as auxiliary ones, use evaluation mode if the sites agree."""
    same_sites = _calls_without_mode(training) == _calls_without_mode(evaluation)
    shapes = f"{training.structure.names()} in training mode and {evaluation.structure.names()} in evaluation mode"
    if not same_sites:
        raise ModelError(
            f"the model returns {shapes}, and its dropout differs between the modes, too; use transform= to select the "
            "same outputs in both modes, or set what makes the difference"
        )
    runner.training, runner.on = False, [call.on for call in training.calls]
    warn(
        f"the model returns {shapes}; passes run in evaluation mode with dropout switched on; use transform= to select "
        "the outputs if those of training mode are meant"
    )


def _calls_without_mode(record: Record) -> list[Any]:
    """What the calls of a record have in common in both modes."""
    return [(call.name, call.kind, call.p, call.shape) for call in record.calls]


# ------------------------------------------------------------------------------------------ sites


def _sites_of(few: Record | None, whole: Record) -> tuple[tuple[Site, ...], bool]:
    """Sites, and whether their masks follow the rows: by comparison of a pass of few rows with one of many."""
    follows = few is not None and [(m.identity, m.p) for m in few.calls] == [(m.identity, m.p) for m in whole.calls]
    uses = Counter(call.name for call in whole.calls)
    used: Counter[str] = Counter()
    sites = []
    for index, call in enumerate(whole.calls):
        used[call.name] += 1
        name = f"{call.name}#{used[call.name]}" if uses[call.name] > 1 else call.name
        axis, simple = None, False
        if few is not None and follows:
            axis, simple = _row_axis(few.calls[index].shape, call.shape, few.rows, whole.rows)
        shape = tuple(n // whole.rows if k == axis else n for k, n in enumerate(call.shape))
        on = call.on and (call.p > 0 or call.law != "bernoulli") and 0 not in call.shape
        sites.append(Site(index, name, call.kind, call.p, shape, axis, on, simple, call.law, call.p, call.in_kernel))
    return tuple(sites), all(site.splits_by_row for site in sites if site.active)


def _row_axis(few: tuple[int, ...], many: tuple[int, ...], rows: int, more: int) -> tuple[int | None, bool]:
    """The axis along which a mask grows with the rows, and whether it changes in no other way."""
    differing = [axis for axis, (a, b) in enumerate(zip(few, many, strict=True)) if a != b]
    if not differing:
        return None, True
    axis = differing[0]
    if len(differing) == 1 and many[axis] * rows == few[axis] * more:
        return axis, True
    return None, False


def _without_idle_draws(runner: ModelRunner, sites: tuple[Site, ...], batch: Batch) -> tuple[Site, ...]:
    """Switch off single numbers that have no effect, such as those of layer drop with rate 0.

    Raises:
        ModelError: If a single number decides which layers a pass goes through.
    """
    single = [s for s in sites if s.law == "uniform" and s.row_axis is None and s.units == 1 and s.active]
    if not single:
        return sites
    plain = runner.record(batch)
    changed = list(sites)
    for site in single:
        ends = [runner.record(batch, {site.index: end}) for end in _EXTREMES]
        if any([m.identity for m in end.calls] != [m.identity for m in plain.calls] for end in ends):
            raise ModelError(
                f"a single random number drawn at {plain.calls[site.index].where} decides which layers a pass goes "
                f"through ({site.name!r}: layer drop?), which cannot be controlled; set its rate to 0 for inference"
            )
        if all(outputs_close(plain.output, end.output) for end in ends):
            changed[site.index] = replace(site, active=False)
    return tuple(changed)


def _notes(copy: Isolated, sites: Sequence[Site], skipped: Sequence[str]) -> Iterator[str]:
    drawn_by_model = [f"{site.name!r} ({site.kind})" for site in sites if site.made_by_hand and site.active]
    if drawn_by_model:
        names = ", ".join(drawn_by_model[:6])
        yield f"Besides dropout, passes contain the random numbers that the model draws at {names}."
    if skipped:
        yield f"Left out of the output, since it has no rows: {', '.join(skipped[:6])}."
    if copy.shared:
        yield f"Used as they are, since they cannot be copied: {', '.join(copy.shared[:6])}."
