"""The model's twin: the same parameters, its own mode flags and buffers.

All forward passes run on a twin, so that the model itself is never touched, not even for a moment:
another thread may train it, estimate with it, or read its mode at the same time.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

from mlmc_dropout.errors import ModelError

__all__ = ["CARRIERS", "replica"]

CARRIERS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)  # drop units themselves: always on
_NOT_DROPOUT = (nn.modules.batchnorm._NormBase, nn.RReLU)  # behave otherwise in training, without being dropout


def replica(model: Any, training: bool) -> Any:
    """A twin of the module tree with dropout on; the rest as in ``train()`` if ``training``, else as in ``eval()``.

    Normalisation layers are always as in ``eval()``. The wrappers of ``torch.compile`` are taken off,
    since they would run the original out of our sight.
    """
    if isinstance(model, nn.Module):
        return _copy(model, training, {}, "")
    model = getattr(model, "_torchdynamo_orig_callable", model)
    if isinstance(model, types.MethodType) and isinstance(model.__self__, nn.Module):
        return types.MethodType(model.__func__, _copy(model.__self__, training, {}, ""))
    return model


def _copy(module: nn.Module, training: bool, done: dict[int, nn.Module], name: str) -> nn.Module:
    if id(module) in done:
        return done[id(module)]
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"TorchScript hides its dropout from Python: {name or 'the model'} is a {type(module).__name__}; "
            "pass the original nn.Module instead"
        )
    original = module.__dict__.get("_modules", {}).get("_orig_mod")
    if original is not None:
        return _copy(original, training, done, name)
    twin = module.__new__(type(module))
    done[id(module)] = twin
    twin.__dict__ = module.__dict__.copy()
    twin._compiled_call_impl = None
    twin._parameters = module._parameters.copy()
    twin._buffers = {key: None if b is None else b.detach().clone() for key, b in module._buffers.items()}
    twin._modules = {
        key: None if m is None else _copy(m, training, done, f"{name}.{key}".lstrip("."))
        for key, m in module._modules.items()
    }
    twin.training = isinstance(module, CARRIERS) or (training and not isinstance(module, _NOT_DROPOUT))
    if isinstance(module, nn.RNNBase):  # keeps its weights in a list of their own, which is shared on purpose
        twin.__dict__["_flat_weights"] = list(module._flat_weights)
    return twin
