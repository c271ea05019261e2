"""Inputs in a type of numbers that the model can take: as they are if it can, otherwise as torch would promote them.

NumPy's default is float64, that of networks float32; images are bytes, table columns are whole numbers, token ids are
small ones. Whether a model can take them as they are is known only by calling it, so where there is doubt a copy of it
is called on two rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mlmc_dropout.errors import InputError, MLMCDropoutError
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.isolation import isolate

__all__ = ["in_fitting_types"]

_INDICES = (torch.int64, torch.int32)
_COMPLAINT = re.compile(r"dtype|scalar type|not implemented for|Input type|Long|Float|Double|Half|Complex")
Cast = Callable[[Tensor], Tensor]


def in_fitting_types(batches: Iterator[Batch], model: Any, dtype: torch.dtype | None) -> Iterator[Batch]:
    """Convert inputs to types that the model can take; the first batch decides for all.

    Args:
        batches: The inputs.
        model: The model.
        dtype: The type of its parameters; ``None`` if it is not known.

    Yields:
        The batches.

    Raises:
        InputError: If the model can take none of the types in question; names the type and what to write.
    """
    cast: Cast | None = None
    for index, batch in enumerate(batches):
        if not index and _is_doubtful(batch, model, dtype):
            cast = _find_cast(batch, model, dtype or torch.get_default_dtype())
        yield batch if cast is None else batch.cast(cast)


def _is_doubtful(batch: Batch, model: Any, dtype: torch.dtype | None) -> bool:
    """Whether the model may not be able to take these types."""
    tensors = batch.tensors
    floats = {t.dtype for t in tensors if t.is_floating_point()}
    if floats - {dtype or torch.get_default_dtype()} or any(t.is_complex() for t in tensors):
        return True
    integers = {t.dtype for t in tensors if not t.is_floating_point()}
    if not isinstance(model, nn.Module):
        return bool(integers)
    if any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in model.modules()):
        return not integers & {*_INDICES} or bool(integers - {*_INDICES, torch.bool})
    return bool(integers)


def _find_cast(batch: Batch, model: Any, dtype: torch.dtype) -> Cast | None:
    """The first conversion with which the model can be called; ``None`` for none."""
    copy = isolate(model)
    copy.set_mode(training=False)
    few, complaint = batch[: min(2, batch.rows)], None
    for cast in (None, _floats_to(dtype), _all_to(dtype), _indices_and_floats(dtype)):
        given = few if cast is None else few.cast(cast)
        error = _complaint(copy.model, given)
        copy.restore()
        if error is None:
            return cast
        complaint = complaint or error
    first = (str(complaint).splitlines() or [""])[0]
    if not isinstance(complaint, MLMCDropoutError) and _COMPLAINT.search(first):
        raise InputError(_refusal(batch, dtype, first)) from complaint
    return None  # the model fails for another reason, and will say so when it is run


def _complaint(model: Any, batch: Batch) -> Exception | None:
    devices = [batch.device] if batch.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        try:
            model(*batch.args, **batch.kwargs)
        except Exception as error:
            return error
    return None


def _floats_to(dtype: torch.dtype) -> Cast:
    return lambda t: t.to(dtype) if t.is_floating_point() else t


def _all_to(dtype: torch.dtype) -> Cast:
    return lambda t: t if t.is_complex() else t.to(dtype)


def _indices_and_floats(dtype: torch.dtype) -> Cast:
    return lambda t: t.to(dtype) if t.is_floating_point() else t if t.is_complex() else t.long()


def _refusal(batch: Batch, dtype: torch.dtype, reason: str) -> str:
    types = ", ".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in batch.tensors))
    if any(t.is_complex() for t in batch.tensors):
        remedy = "give real numbers: torch.view_as_real(x)"
    elif re.search(r"indices|Long|Int\b", reason):
        remedy = "it looks up indices: use x.long() or .astype(int), in the shell --dtype int64"
    else:
        remedy = f"convert them: x.to({dtype})"
    return f"the model cannot take inputs of type {types} ({reason[:200]}); {remedy}"
