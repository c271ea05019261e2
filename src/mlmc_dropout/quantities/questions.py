"""All that is asked of a run: what the network returns, and the quantities that are wanted of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import entr
from torch import Tensor

from mlmc_dropout.errors import InputError, did_you_mean
from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.quantities.base import Feature, GroupMeans, Quantity, QuantityEstimate, Question
from mlmc_dropout.quantities.class_axis import ClassesLast
from mlmc_dropout.quantities.classes import ENTROPY, EXPECTED_ENTROPY, MUTUAL_INFORMATION
from mlmc_dropout.quantities.custom import question_of
from mlmc_dropout.quantities.label import LABEL
from mlmc_dropout.quantities.outputs import CLASS_OUTPUTS, PAIR_OUTPUTS, check_outputs
from mlmc_dropout.quantities.pairs import ALEATORIC, EPISTEMIC, TOTAL
from mlmc_dropout.quantities.quantile import LOCATION_PASSES, Quantile
from mlmc_dropout.quantities.shares import VOTES, Above
from mlmc_dropout.quantities.view import View

__all__ = ["Asked", "Observation", "Questions", "kinds_of_outputs", "questions_for"]

Array = NDArray[np.float64]
Asked = str | Quantity | Above | Quantile

MOMENTS = ("mean", "variance", "std")  # of every component; they need no features
_OF_CLASSES = (ENTROPY, EXPECTED_ENTROPY, MUTUAL_INFORMATION, VOTES, LABEL)
_OF_PAIRS = (ALEATORIC, EPISTEMIC, TOTAL)
_RESERVED = ("decision", "passes", "input", "output", "mean_stderr", "variance_stderr", "S2_mean", "S2_variance")
_OF_ROWS = tuple(question.name for question in (ENTROPY, EXPECTED_ENTROPY, MUTUAL_INFORMATION, LABEL))
UNSEEN = math.log(100)  # over the passes: the share of masks that none of them has had, with 99 % confidence
_DOUBTFUL = 0.05  # share of the entropy
_RARE, _ERRORS = 3.0, 3.0  # the same with 95 % confidence; standard errors that they may change an entropy by
_OFF = 1e-3  # by how much probabilities may miss 1: single precision, many classes
_PARAMETERS: dict[str, Callable[[float], Above | Quantile]] = {"above": Above, "quantile": Quantile}


def _named(outputs: str) -> dict[str, Question]:
    kinds = {**dict.fromkeys(CLASS_OUTPUTS, _OF_CLASSES), **dict.fromkeys(PAIR_OUTPUTS, _OF_PAIRS)}
    return {question.name: question for question in kinds.get(outputs, ())}


@dataclass(frozen=True, slots=True)
class Questions:
    """What a network returns, and what is asked beside mean and variance.

    Attributes:
        outputs: What the network returns.
        asked: Quantities, of which names are those of the library's own.
        std: Whether standard deviations are asked, which follow from the variances.
        class_axis: The axis of the outputs that holds the classes, rows being axis 0; ``None``: the last one.
    """

    outputs: str = "values"
    asked: tuple[Asked, ...] = ()
    std: bool = False
    class_axis: int | None = None

    @property
    def carries(self) -> Callable[[Any], Any] | None:
        """What is applied to the output of each pass before it is kept, if anything."""
        found = {"logits": _finite_logits, "probabilities": _logarithms}.get(self.outputs)
        if found is None:
            return None
        return partial(_on_leaves, function=found if self.class_axis is None else ClassesLast(self.class_axis, found))

    @property
    def need_locations(self) -> bool:
        """Whether a few passes have to tell first where outputs lie."""
        return any(isinstance(asked, Quantile) for asked in self.asked)

    def describe(self) -> list[str]:
        """What is asked, in words that tell one run from another."""
        axis = [] if self.class_axis is None else [f"class_axis={self.class_axis}"]
        names = (asked.name if isinstance(asked, Quantity) else str(asked) for asked in self.asked)
        return [self.outputs, *axis, *names]

    @property
    def names(self) -> list[str]:
        """Names of what is asked, as in results."""
        return [asked if isinstance(asked, str) else asked.name for asked in self.asked]

    @property
    def own(self) -> list[Quantity]:
        """Quantities of the user's own."""
        return [asked for asked in self.asked if isinstance(asked, Quantity)]

    def observation(self, structure: Any) -> Observation:
        """The questions to a network whose outputs have a given structure.

        Args:
            structure: The structure of its outputs.

        Returns:
            What to observe of its passes.

        Raises:
            InputError: If the outputs cannot be what they are said to be.
        """
        if self.outputs == "values" and not self.asked:
            return Observation("values", structure, structure)
        main = _main_structure(self.outputs, structure)
        known = _named(self.outputs)
        questions = tuple(
            known[asked]
            if isinstance(asked, str)
            else question_of(asked, self.outputs, structure)
            if isinstance(asked, Quantity)
            else asked.question(self.outputs)
            for asked in self.asked
        )
        return Observation(self.outputs, structure, main, questions)


def questions_for(outputs: str, quantities: Sequence[Asked] | Asked | None) -> Questions:
    """The questions behind the arguments of ``estimate``.

    Args:
        outputs: What the network returns.
        quantities: What is wanted; ``None``: what is usual for such outputs.

    Returns:
        The questions.

    Raises:
        InputError: If a name is not known, or is not for such outputs.

    Examples:
        >>> questions_for("logits", None).asked
        ('entropy', 'expected_entropy', 'mutual_information', 'votes', 'label')
        >>> questions_for("values", ("mean", "above_0.3")).asked
        (Above(threshold=0.3),)
    """
    check_outputs(outputs)
    known = tuple(_named(outputs))
    if quantities is None:
        return Questions(outputs, known)
    single = isinstance(quantities, (str, Quantity, Above, Quantile)) or not isinstance(quantities, Iterable)
    wanted: tuple[Any, ...] = (quantities,) if single else tuple(quantities)  # type: ignore[arg-type]
    if not wanted:
        raise InputError("quantities= asks for nothing; leave it out, or name some, as in ('mean', 'variance')")
    asked = [_asked(one, outputs, known) for one in wanted]
    names = [one if isinstance(one, str) else one.name for one in asked]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"quantities {twice} are asked twice; give quantities of your own other names")
    return Questions(outputs, tuple(one for one in asked if one not in MOMENTS), "std" in names)


def kinds_of_outputs(quantity: str) -> tuple[str, ...]:
    """The kinds of outputs that have a quantity of the library's own.

    Args:
        quantity: Its name.

    Returns:
        Values of ``outputs=``; empty if it belongs to none in particular.

    Examples:
        >>> kinds_of_outputs("entropy"), kinds_of_outputs("mean")
        (('logits', 'binary-logits', 'probabilities'), ())
    """
    return tuple(kind for kind in (*CLASS_OUTPUTS, *PAIR_OUTPUTS) if quantity in _named(kind))


def _asked(one: Any, outputs: str, known: tuple[str, ...]) -> Asked:
    if isinstance(one, Quantity):
        if not one.name or not isinstance(one.name, str) or one.name in (*MOMENTS, *_RESERVED, *known):
            raise InputError(f"a quantity of your own needs a name of its own: got {one.name!r}")
        return one
    if isinstance(one, (Above, Quantile)):
        return one
    if not isinstance(one, str):
        raise InputError(f"a quantity is a name, md.Above, md.Quantile or md.Quantity: got {one!r}")
    kind, _, number = one.partition("_")
    if kind in _PARAMETERS and number:
        try:
            value = float(number)
        except ValueError:
            raise InputError(f"{kind}_ is followed by a number, as in {kind}_0.95: got {one!r}") from None
        return _PARAMETERS[kind](value)
    if one not in (*MOMENTS, *known):
        others = kinds_of_outputs(one)
        hint = f"; it is one of outputs={others[0]!r}" if others else ""
        raise InputError(
            f"unknown quantity {one!r}{did_you_mean(one, known)} for outputs={outputs!r}: use "
            f"{', '.join((*MOMENTS, *known))}, above_0.3 (md.Above), quantile_0.95 (md.Quantile) or md.Quantity{hint}"
        )
    return one


@dataclass(frozen=True, slots=True)
class Observation:
    """What is observed of passes of one structure: the numbers that moments are taken of, and features beside them.

    Attributes:
        outputs: What the network returns.
        structure: Structure of its outputs.
        main: Structure of what mean and variance are taken of.
        questions: What is asked beside mean and variance.
        with_squares: Whether squares of the main numbers are features, too, for methods that know means only.
    """

    outputs: str
    structure: Any
    main: Any
    questions: tuple[Question, ...] = ()
    with_squares: bool = False

    @property
    def plain(self) -> bool:
        """Whether nothing but moments of the outputs themselves is asked."""
        return self.outputs == "values" and not self.features

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features that are needed, each once."""
        own = _MAIN_AND_SQUARES if self.with_squares else ()
        by_name = {feature.name: feature for feature in (*own, *(f for q in self.questions for f in q.uses))}
        return tuple(by_name.values())

    @property
    def cost(self) -> int:
        """Passes that are spent before the first one is observed."""
        return LOCATION_PASSES if any(feature.needs_locations for feature in self.features) else 0

    def put_in_place(self, features: Array) -> Array:
        """Features of an expansion where they are among those of passes.

        Args:
            features: What :meth:`observe` returns of an expansion, or means of it, (…, controlled features).

        Returns:
            The same beside zeros for the others, (…, features).
        """
        if all(feature.controlled for feature in self.features):
            return features
        shapes = self.shapes()
        where = np.concatenate([np.full(int(np.prod(shapes[f.name])), f.controlled) for f in self.features])
        found = np.zeros((*features.shape[:-1], len(where)))
        found[..., where] = features
        return found

    def squared(self) -> Observation:
        """The same with the main numbers and their squares among the features."""
        return replace(self, with_squares=True)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every feature of one pass and input."""
        width = self.structure.width
        example = torch.full((1, 1, width), 0.5, dtype=torch.float64)
        view = View(self.outputs, self.structure, example, torch.ones(1, 1, self.main.width, dtype=torch.float64))
        return {feature.name: tuple(feature.of(view).shape[2:]) for feature in self.features}

    @property
    def width(self) -> int:
        """Numbers of all features of one pass and input."""
        return sum(int(np.prod(shape)) for shape in self.shapes().values())

    def observe(
        self,
        carried: Tensor,
        locations: Tensor | None = None,
        are_passes: bool = True,
        origin: Tensor | None = None,
        together: int = 1,
    ) -> tuple[Tensor, Tensor | None]:
        """Read passes.

        Args:
            carried: Outputs of passes as they are kept, (passes, rows, width).
            locations: A few passes in ascending order, (passes, rows, main width), where quantiles are asked.
            are_passes: Whether they are checked to be what they are said to be. An expansion of logarithms of
                probabilities does not add up to 1 before it is normalised, and one of a variance can be negative.
            origin: What squares are taken about, (rows, main width), where there are squares; 0 by default.
            together: Passes whose features are averaged, one after the other; 1 by default.

        Returns:
            The main numbers (passes, rows, main width) and the features (passes / together, rows, features), if there
            are any; of an expansion only those that may stand in for those of passes (:meth:`put_in_place`).

        Raises:
            InputError: If outputs that were said to be probabilities are none.
        """
        if self.plain:
            return carried, None
        view = View(self.outputs, self.structure, carried, locations, origin)
        if are_passes and self.outputs == "probabilities":
            _check_sums(carried, self.structure)
        if are_passes and self.outputs in PAIR_OUTPUTS:
            _check_variances(view)
        if not self.features:
            return view.main, None
        lead = carried.shape[:2]
        found = (f.of(view).reshape(*lead, -1).to(carried.dtype) for f in self.features if are_passes or f.controlled)
        # As probabilities lie in memory: features before inputs.
        parts = [_averaged(values.movedim(-1, 1), together) for values in found]
        return view.main, torch.cat(parts, dim=1).movedim(1, -1)

    def answers(self, groups: GroupBlock, mean: Array, trusted: NDArray[np.bool_]) -> dict[str, QuantityEstimate]:
        """Estimates of everything that is asked beside mean and variance.

        Args:
            groups: Means of the features over groups of passes.
            mean: Means of the main numbers, (rows, main width).
            trusted: Whether their standard errors can be believed, of the same shape.

        Returns:
            Estimates by name, inputs along the first axis; what is like the outputs has their structure.
        """
        means = self.group_means(groups)
        found = {question.name: self._answer(question, means) for question in self.questions}
        if self.outputs not in CLASS_OUTPUTS:
            return found
        reliable = _settled_classes(self.main.unflatten(mean), self.main.unflatten(trusted), self.outputs)
        for name in set(found).intersection(_OF_ROWS):
            if name == LABEL.name:
                known: NDArray[np.bool_] | bool = _clear_labels(self.main.unflatten(mean), self.outputs, groups.count)
            else:
                known = _rare_passes_matter_little(name, found[name], groups.count, self.main.shape[-1:])
            found[name] = replace(found[name], reliable=reliable | known)
        return found

    def group_means(self, groups: GroupBlock) -> GroupMeans:
        """Means of the features by their names.

        Args:
            groups: Means of the features over groups of passes.

        Returns:
            The same, in the shapes of the features.
        """
        filled, means, start = groups.filled, {}, 0
        for name, shape in self.shapes().items():
            size = int(np.prod(shape))
            means[name] = filled.means[..., start : start + size].reshape(*filled.means.shape[:2], *shape)
            start += size
        return GroupMeans(filled.counts, means, groups.count)

    def _answer(self, question: Question, means: GroupMeans) -> QuantityEstimate:
        found = question.answer(means)
        if not question.like_outputs:
            return found
        return found.map(self.main.unflatten)


def _settled_classes(mean: Array, trusted: NDArray[np.bool_], outputs: str) -> NDArray[np.bool_]:
    """Where the classes whose probabilities cannot be believed yet have hardly a share in the entropy."""
    if outputs == "binary-logits":
        return np.asarray(trusted[..., 0] if trusted.ndim > 1 and trusted.shape[-1] == 1 else trusted)
    parts = np.asarray(entr(np.clip(mean, 0.0, 1.0)))
    whole = parts.sum(axis=-1)
    return np.asarray(((parts * ~trusted).sum(axis=-1) <= _DOUBTFUL * whole) & (whole > 0))


def _averaged(values: Tensor, together: int) -> Tensor:
    """Means over neighbouring passes, (passes / together, …)."""
    if together == 1:
        return values
    means = np.add.reduce(values.unflatten(0, (-1, together)).numpy(), axis=1) / together
    return torch.from_numpy(means)


def _clear_labels(mean: Array, outputs: str, passes: int) -> NDArray[np.bool_]:
    """Where masks that have not come up cannot change the label: with 99 % confidence they have less than ln(100)/n."""
    if outputs == "binary-logits":
        first = mean[..., 0] if mean.ndim > 1 and mean.shape[-1] == 1 else mean
        gap = np.abs(2 * first - 1)
    else:
        second, leader = np.moveaxis(np.sort(mean, axis=-1)[..., -2:], -1, 0)
        gap = leader - second
    return np.asarray(gap > 2 * UNSEEN / max(passes, 1))


def _rare_passes_matter_little(
    name: str, one: QuantityEstimate, passes: int, classes: tuple[int, ...]
) -> NDArray[np.bool_] | bool:
    """Where masks that none of n passes had, of a share below 3/n, hardly change an entropy, in standard errors.

    A share q of passes that are quite uncertain adds at most q log C to the expected entropy, and about q (1 − log q)
    to that of the mean.
    """
    if one.stderr is None:
        return False
    q = min(_RARE / max(passes, 1), 1.0)
    most = np.log(max([2, *classes]))
    change = q * most if name == EXPECTED_ENTROPY.name else q * (1 - np.log(q))
    return np.asarray(change <= _ERRORS * one.stderr)


_MAIN_AND_SQUARES = (
    Feature("main", lambda view: view.main),
    Feature("square of main", lambda view: view.squares),
)


# ------------------------------------------------------------------------------ reading outputs


def _finite_logits(z: Tensor) -> Tensor:
    """Logits of classes that are ruled out, −inf, as very small numbers."""
    return torch.nan_to_num(z, nan=float("nan"), posinf=float("inf"), neginf=torch.finfo(z.dtype).min / 4)


def _logarithms(p: Tensor) -> Tensor:
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()


def _on_leaves(output: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the only tensor of an output; anything else is refused later, by its structure."""
    if isinstance(output, Tensor):
        return function(output) if output.is_floating_point() else output
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    tensors = [value for value in values if isinstance(value, Tensor) and value.dim() > 1]
    return function(tensors[0]) if len(tensors) == 1 else output


def _main_structure(outputs: str, structure: Any) -> Any:
    """The structure of what mean and variance are taken of."""
    leaves = structure.names()
    if outputs in CLASS_OUTPUTS:
        if len(leaves) != 1:
            names = [name for name, _ in leaves]
            raise InputError(
                f"outputs={outputs!r} needs one output, but the model returns {names}; select one, as in "
                f"transform=lambda out: out[{names[0]!r}]"
            )
        shape = leaves[0][1]
        if outputs != "binary-logits" and (not shape or shape[-1] < 2):
            raise InputError(
                f"outputs={outputs!r} needs two or more classes along the last axis, but an output has the shape "
                f"{shape}; use outputs='binary-logits' for single logits"
            )
        return structure
    return _mean_structure(outputs, structure) if outputs in PAIR_OUTPUTS else structure


def _mean_structure(outputs: str, structure: Any) -> Any:
    leaves = structure.names()
    if structure.kind != "tensor":
        if len(leaves) != 2 or leaves[0][1] != leaves[1][1]:
            raise InputError(f"outputs={outputs!r} needs a mean and a variance of one shape: got {leaves}")
        return structure.parts[0]
    (shape,) = (shape for _, shape in leaves)
    if not shape or shape[-1] % 2:
        raise InputError(
            f"outputs={outputs!r} needs two outputs, or one with means and then as many variances along its last axis: "
            f"got the shape {shape}"
        )
    return replace(structure, shape=(*shape[:-1], shape[-1] // 2))


def _check_variances(view: View) -> None:
    least = float(view.pair[1].min())
    if not least > 0:
        raise InputError(
            f"outputs={view.outputs!r}, but a pass has a variance of {least:.3g}; use 'mean-log-variance' if the head "
            "gives its logarithm"
        )


def _check_sums(carried: Tensor, structure: Any) -> None:
    ((_, shape),) = structure.names()
    off = float((carried.reshape(-1, shape[-1]).exp().sum(dim=-1) - 1).abs().max())
    if not off <= _OFF:
        raise InputError(
            f"outputs='probabilities', but a pass has sums over the classes that differ from 1 by {off:.3g}; use "
            "outputs='logits' if the network ends before its softmax, 'binary-logits' before its sigmoid"
        )
