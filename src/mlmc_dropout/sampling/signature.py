"""What a model takes, read from the signature of its forward pass: labels are left out, misfits are named."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from mlmc_dropout.errors import InputError, ModelError
from mlmc_dropout.sampling.reading import is_sequence

__all__ = ["Signature", "check_model"]

LABELS = frozenset({"label", "labels", "target", "targets", "y", "class", "classes", "id", "ids", "idx", "index"})
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments that a model takes; nothing is known of them by default.

    Attributes:
        model: What the model is called, for messages.
        parameters: The signature; ``None`` if it cannot be read.
        hooked: Whether hooks may change the arguments before the forward pass.
    """

    model: str = "the model"
    parameters: inspect.Signature | None = None
    hooked: bool = False

    @classmethod
    def of(cls, model: Any) -> Signature:
        """The signature of a model.

        Args:
            model: A module or another callable.

        Returns:
            Its signature.

        Examples:
            >>> Signature.of(nn.Linear(2, 1)).positional, Signature.of(lambda *inputs: 0).positional
            (1, None)
        """
        name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "the model")
        try:
            found = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
        except (TypeError, ValueError):
            found = None
        return cls(name, found, bool(getattr(model, "_forward_pre_hooks", None)))

    @property
    def positional(self) -> int | None:
        """How many positional arguments there can be; ``None`` if there is no limit or it is not known."""
        if self.parameters is None:
            return None
        kinds = [parameter.kind for parameter in self.parameters.parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            return None
        return sum(kind in _POSITIONAL for kind in kinds)

    def without_labels(self, item: Any) -> Any:
        """What a loader yields, without the labels that the model does not take.

        Args:
            item: A tensor, or a tuple, list or dict of them.

        Returns:
            The first so many of a tuple as the model takes; a dict without names of labels it does not take, or the
            one input that is left for a model that takes one.
        """
        if is_sequence(item):
            return item[: self.positional] if self.positional else item
        if isinstance(item, Mapping) and not self._takes_any_name:
            kept = {key: value for key, value in item.items() if key in self._names or str(key).lower() not in LABELS}
            alone = len(kept) == 1 and self.positional == 1 and not set(kept) & set(self._names)
            return next(iter(kept.values())) if alone else kept
        return item

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the model does not take.

        Args:
            args: Positional arguments.
            kwargs: Named arguments.

        Raises:
            InputError: If they do not fit; names those given, those taken, and what to write.
        """
        if self.parameters is None or self.hooked:
            return
        try:
            self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(self._misfit(args, kwargs, str(error))) from None

    @property
    def _names(self) -> tuple[str, ...]:
        found = () if self.parameters is None else self.parameters.parameters.values()
        return tuple(p.name for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY))

    @property
    def _takes_any_name(self) -> bool:
        found = () if self.parameters is None else self.parameters.parameters.values()
        return self.parameters is None or any(p.kind == p.VAR_KEYWORD for p in found)

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str) -> str:
        takes = ", ".join(self._names) or "nothing"
        if kwargs:
            names = ", ".join(map(repr, kwargs))
            return (
                f"x has the named inputs {names}, but {self.model} takes {takes} ({reason}); rename or leave out what "
                "does not belong there, or give x as (x,) for a model that takes one dict"
            )
        if self.positional == 0 and not self._names and not self._takes_any_name:
            return f"{self.model} takes no inputs; if it makes the model, call it: {self.model}()"
        given = f"x has {len(args)} positional input{'s' * (len(args) != 1)}"
        if self.positional is not None and len(args) > self.positional:
            return f"{given}, but {self.model} takes {self.positional} ({takes}); leave out labels, as in x[0]"
        return f"{given}, but {self.model} takes {takes} ({reason}); give a tuple with one input for each"


def check_model(model: Any) -> None:
    """Refuse what cannot be called on inputs.

    Args:
        model: What was given as the model.

    Raises:
        InputError: If it is a class or cannot be called.
        ModelError: If its parameters have no values yet.
    """
    if isinstance(model, type):
        raise InputError(f"the model is the class {model.__name__}; give an instance: {model.__name__}(...)")
    if not callable(model):
        raise InputError(f"the model must be an nn.Module or a callable of tensors: got {type(model).__name__}")
    if not isinstance(model, nn.Module):
        return
    parameters = dict(model.named_parameters())
    if lazy := [name for name, value in parameters.items() if is_lazy(value)]:
        raise ModelError(
            f"the parameter {lazy[0]!r} has no shape yet (a lazy module); call the model once on its inputs"
        )
    if meta := [name for name, value in parameters.items() if value.is_meta]:
        raise ModelError(f"the parameter {meta[0]!r} is on the meta device and has no values; load the weights first")
