"""Names of files -> models, weights and inputs. Only the model's own file is ever executed."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mlmc_dropout.errors import InputError, MissingExtraError, ModelError

__all__ = ["read_inputs", "read_model", "read_transform", "read_weights", "with_weights"]

_PICKLE = "it holds objects that only running code could rebuild"


# ---------------------------------------------------------------------------------------- models


def read_model(spec: str) -> Callable[..., Any]:
    """The model that a name stands for.

    Args:
        spec: ``package.module:name`` or ``path/to/file.py:name``, where ``name`` is a model, or a function without
            arguments (a class, too) that makes one.

    Returns:
        The model, in eval mode.

    Raises:
        InputError: If there is no such module or name.
        ModelError: If importing or calling it fails.
    """
    module, name = _module(spec)
    factory = _attribute(module, name, spec)
    if isinstance(factory, nn.Module):
        return factory.eval()
    if not callable(factory):
        raise InputError(f"{spec!r} is a {type(factory).__name__}, neither a model nor a function that makes one")
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{spec!r} could not be called without arguments: {_describe(error)}") from error
    if not callable(model):
        raise ModelError(f"{spec!r} returned {_type(model)}, not a model; let it return an nn.Module")
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
    named: dict[str, Callable[[Any], Any]] = {"softmax": _softmax, "sigmoid": torch.sigmoid}
    if spec in named:
        return named[spec]
    if ":" not in spec:
        raise InputError(f"unknown transform {spec!r}; use softmax, sigmoid or module:function")
    module, name = _module(spec)
    transform = _attribute(module, name, spec)
    if not callable(transform):
        raise InputError(f"the transform {spec!r} is a {type(transform).__name__}, not a function")
    return transform  # type: ignore[no-any-return]


def _softmax(output: Tensor) -> Tensor:  # a named function: worker processes look it up
    return torch.softmax(output, dim=-1)


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
        raise ModelError(f"{where!r} could not be imported: {_describe(error)}") from error


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
        public = [key for key in vars(module) if not key.startswith("_")]
        raise InputError(f"{spec!r}: the module has no {name!r}; it has {', '.join(public[:8]) or 'nothing'}") from None


# --------------------------------------------------------------------------------------- weights


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
    tensors = _safetensors(path) if path.suffix == ".safetensors" else _torch_file(path, "weights")
    if isinstance(tensors, Mapping) and isinstance(tensors.get("state_dict"), Mapping):
        tensors = tensors["state_dict"]  # how several training frameworks wrap it
    if not isinstance(tensors, Mapping) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise InputError(f"{str(path)!r} holds no state dict; save one with torch.save(model.state_dict(), path)")
    return {str(name): value for name, value in tensors.items()}


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
        raise InputError(f"weights were given, but the model is {_type(model)} and not an nn.Module")
    try:
        model.load_state_dict(dict(weights))
    except (RuntimeError, AttributeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise InputError(f"the weights {str(path)!r} do not fit the model: {' '.join(lines[1:3] or lines)}") from error
    return model


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise InputError(f"{str(path)!r} is not a complete safetensors file ({_first_line(error)})") from error
    return tensors


def _torch_file(path: Path, what: str) -> Any:
    """Read with ``weights_only``: torch refuses everything that would have to be executed."""
    try:
        with warnings.catch_warnings():  # about foreign pickles: the error says what matters
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = _PICKLE if "weights_only" in str(error).lower() or "unpickl" in str(error).lower() else "it is damaged"
        raise InputError(f"{str(path)!r} was not loaded as {what}: {reason}, or it is no torch file") from error


# ---------------------------------------------------------------------------------------- inputs


def read_inputs(path: Path) -> Any:
    """Inputs from ``.npy``, ``.npz``, ``.csv``, ``.parquet``, ``.pt``/``.pth`` or ``.safetensors``.

    Files with several arrays become keyword inputs of the model by their names; a ``.npz`` written without names
    (``arr_0``, …) becomes positional inputs.

    Args:
        path: The file; its suffix says the format.

    Returns:
        An array or tensor with the inputs first, a tuple of such, or a dict of such.

    Raises:
        InputError: If the file is missing, damaged, not numeric, or would have to be executed.
        MissingExtraError: If a parquet file is read without pyarrow.
    """
    readers: dict[str, Callable[[Path], Any]] = {
        ".npy": _npy,
        ".npz": _npz,
        ".csv": _csv,
        ".parquet": _parquet,
        ".pt": lambda p: _torch_file(p, "inputs"),
        ".pth": lambda p: _torch_file(p, "inputs"),
        ".safetensors": _safetensors,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"inputs in {path.name!r} are not understood; use one of {', '.join(readers)}")
    if not is_file(path):
        raise InputError(f"there is no inputs file {str(path)!r}")
    inputs = _unwrap(reader(path))
    for name, value in _named_arrays(inputs):
        _check(value, path, name)
    return inputs


def _unwrap(content: Any) -> Any:
    """A single array as itself, arrays without names as a tuple."""
    if isinstance(content, Mapping) and len(content) == 1:
        return next(iter(content.values()))
    if isinstance(content, Mapping) and content and all(name.startswith("arr_") for name in content):
        return tuple(content.values())
    return tuple(content) if isinstance(content, list) else content


def _named_arrays(inputs: Any) -> list[tuple[str, Any]]:
    if isinstance(inputs, Mapping):
        return [(f" ({name})", value) for name, value in inputs.items()]
    return [("", value) for value in (inputs if isinstance(inputs, tuple) else (inputs,))]


def _check(value: Any, path: Path, name: str) -> None:
    """Numbers with rows, all finite."""
    if not isinstance(value, (Tensor, np.ndarray)):
        raise InputError(f"{str(path)!r}{name} holds {_type(value)}, not an array or tensor")
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fiub":
        raise InputError(f"{str(path)!r}{name} has dtype {value.dtype}, which is not a number; convert it first")
    if not value.ndim or not len(value):
        raise InputError(f"{str(path)!r}{name} has shape {tuple(value.shape)}; the first axis must run over the inputs")


def _npy(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError, SyntaxError, TypeError) as error:
        raise InputError(f"{str(path)!r} was not read: {_numpy_reason(error)}") from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{str(path)!r} is a .npz archive; rename it")
    return array


def _npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {str(name): np.asarray(file[name]) for name in file.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, AttributeError, TypeError, KeyError) as e:
        raise InputError(f"{str(path)!r} was not read: {_numpy_reason(e)}") from e
    if not arrays:
        raise InputError(f"{str(path)!r} holds no arrays")
    return arrays


def _numpy_reason(error: BaseException) -> str:
    return (
        f"{_PICKLE}; save plain numbers"
        if "pickle" in str(error)
        else f"it is no complete numpy file ({_describe(error)})"
    )


def _csv(path: Path) -> NDArray[np.float64]:
    """Numbers separated by commas, with or without a line of column names."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), 1) if any(map(str.strip, row))]
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"{str(path)!r} is no readable CSV file ({_first_line(error)})") from error
    if lines and not any(map(_is_number, lines[0][1])):
        lines = lines[1:]
    if not lines:
        raise InputError(f"{str(path)!r} has no rows of numbers")
    width = len(lines[0][1])
    for number, row in lines:
        if len(row) != width or not all(map(_is_number, row)):
            raise InputError(f"{str(path)!r}, line {number}: expected {width} numbers, got {','.join(row)[:60]!r}")
    return np.array([[float(cell) for cell in row] for _, row in lines])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> NDArray[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "report") from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is no readable parquet file ({_first_line(error)})") from error
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    for name, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise InputError(f"{str(path)!r}: the column {name!r} is not numeric ({column.dtype}); drop or encode it")
    if not columns:
        raise InputError(f"{str(path)!r} has no columns")
    return np.column_stack(list(columns.values())).astype(np.float64)


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


def _type(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no further message"
