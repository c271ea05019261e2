"""Names of files -> models and weights. Only the model's own file is ever executed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from mlmc_dropout.errors import InputError, ModelError, did_you_mean
from mlmc_dropout.runtime.fingerprint import of_model
from mlmc_dropout.sampling.outputs import as_transform

__all__ = ["read_model", "read_transform", "read_weights", "with_weights"]
__all__ += ["describe", "first_line", "is_file", "read_safetensors", "read_torch_file", "type_of"]

PICKLE = "it holds objects that only running code could rebuild"
MAX_COMPARED = 50_000_000  # parameters of a model that is made twice to see whether its weights are random
_RANDOM = (
    "the model has random weights, not trained ones: no --weights were given, and its factory makes other ones with "
    "another seed (here {seed}); give the trained state dict with --weights"
)
_MAYBE_RANDOM = "no --weights were given: if the weights with which the model was made are random, so are the results"


# ---------------------------------------------------------------------------------------- models


def read_model(spec: str, seed: int = 0, trained: bool = True) -> tuple[Callable[..., Any], str | None]:
    """The model that a name stands for.

    Args:
        spec: ``package.module:name`` or ``path/to/file.py:name``, where ``name`` is a model, or a function without
            arguments (a class, too) that makes one; or the folder of a run of ``mlmc-dropout train``.
        seed: torch is seeded with it first, so that a model without weights is the same one every time.
        trained: Whether weights will be loaded into it; otherwise it is found out whether those it has are random.

    Returns:
        The model, in eval mode, and a warning if its weights are or may be random.

    Raises:
        InputError: If there is no such module or name.
        ModelError: If importing or calling it fails.
    """
    if spec and _is_folder(spec):
        from mlmc_dropout.pinn import load_run

        return load_run(spec).model, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, name = _module(spec)
        factory = _attribute(module, name, spec)
        if isinstance(factory, nn.Module):
            return factory.eval(), None if trained else _MAYBE_RANDOM
        model = _made(factory, spec)
        if trained or not isinstance(model, nn.Module):
            return model, None
        if sum(parameter.numel() for parameter in model.parameters()) > MAX_COMPARED:
            return model, _MAYBE_RANDOM
        torch.manual_seed(seed + 1)
        same = of_model(_made(factory, spec)) == of_model(model)
        return model, None if same else _RANDOM.format(seed=seed)


def _made(factory: Any, spec: str) -> Callable[..., Any]:
    """Let a factory make the model."""
    if not callable(factory):
        raise InputError(f"{spec!r} is a {type(factory).__name__}, neither a model nor a function that makes one")
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{spec!r} could not be called without arguments: {describe(error)}") from error
    if not callable(model):
        raise ModelError(f"{spec!r} returned {type_of(model)}, not a model; let it return an nn.Module")
    return model.eval() if isinstance(model, nn.Module) else model


def read_transform(spec: str) -> Callable[[Any], Any]:
    """The function that is applied to the output of each pass.

    Args:
        spec: ``softmax`` (over the last axis), ``sigmoid``, or ``module:function``.

    Returns:
        The function.

    Raises:
        InputError: If there is no such function.
        ModelError: If importing its module fails.
    """
    if ":" not in spec:
        try:
            return as_transform(spec)  # type: ignore[arg-type, return-value]
        except InputError:
            raise InputError(f"unknown transform {spec!r}; use softmax, sigmoid or module:function") from None
    module, name = _module(spec)
    transform = _attribute(module, name, spec)
    if not callable(transform):
        raise InputError(f"the transform {spec!r} is a {type(transform).__name__}, not a function")
    return transform  # type: ignore[no-any-return]


def _module(spec: str) -> tuple[ModuleType, str]:
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise InputError(f"{spec!r} does not name a model; write package.module:factory or path/to/file.py:factory")
    try:
        is_file = where.endswith(".py") or "/" in where or "\\" in where
        return (_from_file(Path(where)) if is_file else _from_package(where)), name
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's module may do while it is imported
        raise ModelError(f"{where!r} could not be imported: {describe(error)}") from error


def _from_file(path: Path) -> ModuleType:
    if not is_file(path):
        raise InputError(f"there is no file {str(path)!r}; give the path of a Python file")
    spec = importlib.util.spec_from_file_location(f"mlmc_dropout_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look modules up by name
    _with_folder(path.resolve().parent)
    spec.loader.exec_module(module)
    _send_with_the_model(module)
    return module


def _send_with_the_model(module: ModuleType) -> None:
    """Workers cannot import a file by the name it has here: let its contents travel by value, if cloudpickle can."""
    try:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return
    cloudpickle.register_pickle_by_value(module)


def _from_package(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"{name!r} is not the name of a Python module")
    if name.split(".")[0] in sys.stdlib_module_names:
        raise InputError(f"{name!r} belongs to Python itself and holds no model; give a module of your own")
    _with_folder(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise InputError(f"there is no module {name!r} here or among the installed packages") from None
        raise


def _with_folder(folder: Path) -> None:
    """Let a model import its neighbours, as ``python file.py`` would."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _attribute(module: ModuleType, name: str, spec: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        own = [
            key
            for key, value in vars(module).items()
            if not (key.startswith("_") or isinstance(value, ModuleType))
            and getattr(value, "__module__", module.__name__) == module.__name__
        ]
        has = ", ".join(own[:8]) or "nothing"
        raise InputError(f"{spec!r}: the module has no {name!r}{did_you_mean(name, own)}; it has {has}") from None


# --------------------------------------------------------------------------------------- weights


_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model")  # how training scripts wrap a state dict
_PARALLEL = "module."  # how DataParallel begins every name


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from a safetensors file, or from a torch file that holds nothing but tensors.

    Args:
        path: The file.

    Returns:
        Tensors by name.

    Raises:
        InputError: If the file is missing, damaged, or would have to be executed.
    """
    if not is_file(path):
        raise InputError(f"there is no weights file {str(path)!r}")
    tensors = read_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path, "weights")
    if isinstance(tensors, Mapping):
        wrapped = [tensors[name] for name in _WRAPPERS if isinstance(tensors.get(name), Mapping)]
        tensors = wrapped[0] if wrapped else tensors
    if not isinstance(tensors, Mapping) or not all(isinstance(value, Tensor) for value in tensors.values()):
        holds = f" but {', '.join(map(repr, tensors))[:120]}" if isinstance(tensors, Mapping) else ""
        raise InputError(
            f"{str(path)!r} holds no state dict{holds}; save one with torch.save(model.state_dict(), path)"
        )
    named = {str(name): value for name, value in tensors.items()}
    parallel = bool(named) and all(name.startswith(_PARALLEL) for name in named)
    return {name.removeprefix(_PARALLEL) if parallel else name: value for name, value in named.items()}


def with_weights(model: Callable[..., Any], weights: Mapping[str, Tensor], path: Path) -> Callable[..., Any]:
    """The model with weights loaded; names and shapes must match exactly.

    Args:
        model: The model.
        weights: Tensors by name.
        path: The file they came from, for the message.

    Returns:
        The model.

    Raises:
        InputError: If the weights do not fit.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"weights were given, but the model is {type_of(model)} and not an nn.Module")
    try:
        model.load_state_dict(dict(weights))
    except (RuntimeError, AttributeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise InputError(f"the weights {str(path)!r} do not fit the model: {' '.join(lines[1:3] or lines)}") from error
    return model


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Args:
        path: The file.

    Returns:
        Tensors by name.

    Raises:
        InputError: If it is damaged.
    """
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise InputError(f"{str(path)!r} is not a complete safetensors file ({first_line(error)})") from error
    return tensors


def read_torch_file(path: Path, what: str) -> Any:
    """Read with ``weights_only``: torch refuses everything that would have to be executed.

    Args:
        path: The file.
        what: What it should hold, for the message.

    Returns:
        Its content.

    Raises:
        InputError: If it is damaged, or would have to be executed.
    """
    try:
        with warnings.catch_warnings():  # about foreign pickles: the error says what matters
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = PICKLE if "weights_only" in str(error).lower() or "unpickl" in str(error).lower() else "it is damaged"
        remedy = "torch.save(model.state_dict(), path)" if what == "weights" else "torch.save(tensor, path)"
        raise InputError(
            f"{str(path)!r} was not loaded as {what}: {reason}, or it is no torch file; write one with {remedy}"
        ) from error


# ---------------------------------------------------------------------------------------- helpers


def is_file(path: Path) -> bool:
    """Whether a path is a file; names no system accepts (NUL, too long) are none.

    Args:
        path: The path.

    Returns:
        Whether it is.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def type_of(value: object) -> str:
    """What something is, for a message.

    Args:
        value: Anything.

    Returns:
        "None", or "a" and its type.
    """
    return "None" if value is None else f"a {type(value).__name__}"


def describe(error: BaseException) -> str:
    """An error in a line.

    Args:
        error: The error.

    Returns:
        Its type and the first line of its message.
    """
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message.

    Args:
        error: The error.

    Returns:
        At most 200 characters.
    """
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no further message"
