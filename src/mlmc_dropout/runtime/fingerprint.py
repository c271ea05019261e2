"""What a run is a run of: parameters, inputs and settings, condensed so that two runs can be told apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlmc_dropout.groups import GroupBlock
from mlmc_dropout.methods.base import MethodSpec
from mlmc_dropout.runtime.collector import versions
from mlmc_dropout.sampling.inputs import Batch
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.sampler import DropoutSampler
from mlmc_dropout.sampling.source import Source

__all__ = ["difference", "of_inputs", "of_model", "of_run", "probe", "probe_quantities"]

_PROBED = 32  # output values kept to recognise a model by its behaviour
_AGREE = 1e-2  # relative; another processor rounds differently, another model differs by far more


def of_run(sampler: DropoutSampler, method: MethodSpec, seed: int) -> dict[str, Any]:
    """Everything all batches have in common, in words a refusal can quote.

    Args:
        sampler: The model and how it is sampled.
        method: The method that was asked for.
        seed: The seed.

    Returns:
        Facts by name.
    """
    known = versions()
    facts = {
        "mlmc-dropout version": known["mlmc_dropout"],
        "torch version": known["torch"],
        "seed": seed,
        "method": method.name,
        "method's settings": method.describe(),
        "masks": sampler.masks,
        "quantities": sampler.questions.describe(),
        "choice of dropout sites": [_plain(sampler.include), _plain(sampler.exclude), _plain(sampler.rates)],
        "model's parameters": of_model(sampler.model),
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts))  # as it will be read back
    return plain


def of_inputs(batch: Batch) -> str:
    """A hash of all inputs of a batch.

    Args:
        batch: The inputs.

    Returns:
        The hash.
    """
    return _of_tensors(batch.named.items())


def probe(source: Source) -> list[float]:
    """Some outputs of the first pass: they change with the architecture, the transform, the dropout sites.

    Args:
        source: The passes of a batch.

    Returns:
        Some of the outputs.
    """
    out = source.sampler.run(
        source.program, source.batch, pass_keys(source.seed, 0, 0, 0).flatten(), source.row_numbers
    )
    return [float(value) for value in out.flatten()[:_PROBED].double().cpu()]


def probe_quantities(source: Source) -> list[float]:
    """Some values of users' own quantities from two passes: they change with the functions behind a name.

    Args:
        source: The passes of a batch.

    Returns:
        Some of the values; none where there are no such quantities.
    """
    own = [quantity.name for quantity in source.sampler.questions.own]
    if not own:
        return []
    main, features = source.observe(source.passes(0, range(1), range(2))[:, 0])
    assert features is not None
    trusted = np.ones(main.shape[1:], dtype=bool)
    answers = source.observation.answers(GroupBlock.of(features, 0, 2), main.mean(axis=0), trusted)
    values = np.concatenate([np.asarray(answers[name].value, dtype=np.float64).ravel()[:_PROBED] for name in own])
    return [float(value) for value in np.nan_to_num(values)]


def difference(now: dict[str, Any], then: dict[str, Any]) -> str | None:
    """The first thing in which two fingerprints differ, in words; ``None`` if they agree.

    Args:
        now: The fingerprint of this run.
        then: The fingerprint that was saved.

    Returns:
        A sentence, or ``None``.
    """
    for name in now:
        if name in ("model's outputs", "own quantities"):
            a, b = np.asarray(now[name]), np.asarray(then.get(name, []))
            scale = np.nanmax(np.abs(a), initial=0.0) * _AGREE
            numbers = a.shape == b.shape and b.dtype.kind in "fiu"  # a file may hold anything
            same = numbers and np.allclose(a, b, rtol=_AGREE, atol=scale, equal_nan=True)
        else:
            same = now[name] == then.get(name)
        if not same:
            short = max(len(str(now[name])), len(str(then.get(name)))) <= 120
            verb = "differ" if name.split(" of ")[0].endswith("s") else "differs"
            return f"the {name} {verb}" + (f" (it has {then.get(name)}, this run has {now[name]})" if short else "")
    return None


def of_model(model: Any) -> str:
    """A hash of parameters and buffers; a plain function is recognised by its outputs alone.

    Args:
        model: The model.

    Returns:
        The hash, or ``"none"``.
    """
    if not isinstance(model, nn.Module):
        return "none"
    return _of_tensors([*model.named_parameters(), *model.named_buffers()])


def _of_tensors(named: Iterable[tuple[str, Any]]) -> str:
    digest = hashlib.sha256()
    for name, value in named:
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            dense = value if value.layout == torch.strided else value.to_dense()
            flat = dense.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().data)
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()[:32]


def _plain(value: Any) -> Any:
    return (
        value
        if value is None or isinstance(value, (int, float))
        else dict(value)
        if hasattr(value, "items")
        else list(value)
    )
