"""A run directory: everything a training run leaves behind, readable without executing anything.

    config.toml             every value that determines the run
    run.json                what made it: versions, revision, and each process that trained it
    losses.csv              average terms of the loss, one line a window
    checkpoint.safetensors  weights, optimiser moments, multiplier, best weights, epoch
    weights.safetensors     the weights kept, once training is over
    summary.json            distance of the dropout mean from the exact solution
    loss.png, solution.png  the same to look at

Files are written under another name and then renamed, so that a kill leaves the old one or the new
one, never half of one.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from mlmc_dropout.errors import ConfigError, RunDirectoryError
from mlmc_dropout.files import replacing
from mlmc_dropout.pinn.config import Config, dump, parse
from mlmc_dropout.pinn.networks import initialized
from mlmc_dropout.pinn.problem import Problem
from mlmc_dropout.pinn.problems import by_name
from mlmc_dropout.pinn.provenance import provenance

__all__ = ["History", "Run", "create", "load_run", "open_run", "read_history", "read_tensors", "write_history"]
__all__ += ["new_model", "pretrained", "publish", "read_json", "write_json", "write_tensors"]

CONFIG, INFO, LOSSES, SUMMARY = "config.toml", "run.json", "losses.csv", "summary.json"
CHECKPOINT, WEIGHTS, PICTURES = "checkpoint.safetensors", "weights.safetensors", ("loss.png", "solution.png")

_FORMAT = "mlmc-dropout training run 1"
_SHIPPED = Path(__file__).parent / "weights"

History = list[tuple[int, tuple[float, ...]]]  # (epochs done, total and terms of the loss)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished training run.

    Attributes:
        path: Its directory.
        config: The values that determine it.
        problem: The problem with its exact solution.
        model: The trained network, in eval mode.
        history: (epochs done, average total loss and terms) by window, as in ``losses.csv``.
        summary: Distance of the dropout mean from the exact solution, as in ``summary.json``.
    """

    path: Path
    config: Config
    problem: Problem
    model: nn.Module
    history: History
    summary: Mapping[str, Any]


def create(out: Path, config: Config) -> Path:
    """A fresh directory ``<problem>-<time>``; an existing one is never used again.

    Args:
        out: Directory in which it is made.
        config: The run, written to ``config.toml``.

    Returns:
        The fresh directory.

    Raises:
        RunDirectoryError: If ``out`` cannot be written.
    """
    stamp = f"{config.equation.name}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = _first_free(out, stamp)
    except OSError as error:
        raise RunDirectoryError(f"cannot write to {str(out)!r}: {error.strerror}; choose another directory") from error
    _write(path / CONFIG, dump(config).encode())
    write_json(path / INFO, {"format": _FORMAT, "seed": config.seed, **provenance(), "sessions": []})
    return path


def note_session(path: Path, entry: Mapping[str, Any]) -> None:
    """Add to ``run.json`` from where and how a process trained this run.

    Args:
        path: Directory of the run.
        entry: Plain data about the process.

    Raises:
        RunDirectoryError: If ``run.json`` cannot be read or written.
    """
    info = read_json(path / INFO)
    write_json(path / INFO, {**info, "sessions": [*info.get("sessions", []), dict(entry)]})


def _first_free(out: Path, stamp: str) -> Path:
    for number in range(1, 1000):
        path = out / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise RunDirectoryError(f"{str(out)!r} has a thousand runs called {stamp!r}; choose another directory")


def open_run(path: Path, problems: Iterable[type[Problem]] = ()) -> Config:
    """The config of a run, after a check that the directory is one of ours.

    Args:
        path: Directory of the run.
        problems: Problem classes of the user, if the run is of one of them.

    Returns:
        The config.

    Raises:
        RunDirectoryError: If the directory is not that of a training run.
        ConfigError: If its config is not understood.
    """
    if not path.is_dir():
        raise RunDirectoryError(f"{str(path)!r} is not a directory; give the directory of a training run")
    if not (path / INFO).is_file() or read_json(path / INFO).get("format") != _FORMAT:
        raise RunDirectoryError(f"{str(path)!r} is not a training run: it has no {INFO} of the format {_FORMAT!r}")
    try:
        return parse((path / CONFIG).read_text(encoding="utf-8"), by_name(problems))
    except (OSError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{str(path / CONFIG)!r} cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{str(path / CONFIG)!r}: {error}") from error


def load_run(path: str | Path, problems: Iterable[type[Problem]] = ()) -> Run:
    """A finished run: model, config and problem, with nothing executed from its directory.

    Args:
        path: Directory of the run.
        problems: Problem classes of the user, if the run is of one of them.

    Returns:
        The run.

    Raises:
        RunDirectoryError: If the directory is not that of a finished run, or a file in it is damaged.
        ConfigError: If its config is not understood.

    Examples:
        >>> run = pretrained("boundary-layer")
        >>> run.config.epochs, run.model.training
        (50000, False)
    """
    path = Path(path)
    config = open_run(path, problems)
    if not (path / WEIGHTS).is_file():
        raise RunDirectoryError(f"{str(path)!r} has no {WEIGHTS}: training has not ended; resume it first")
    model = new_model(config)
    tensors, _ = read_tensors(path / WEIGHTS)
    load_weights(model, tensors, path / WEIGHTS)
    summary = read_json(path / SUMMARY) if (path / SUMMARY).is_file() else {}
    return Run(path, config, config.equation, model.eval(), read_history(path / LOSSES, config), summary)


def pretrained(name: str) -> Run:
    """A trained run that comes with the library.

    Args:
        name: ``"boundary-layer"`` or ``"source-inference"``, the runs of the paper's experiments; or one with another
            seed or target, such as ``"boundary-layer-seed-1"`` (``docs/pinn.md`` lists them).

    Returns:
        The run.

    Raises:
        RunDirectoryError: If there is none of that name.
    """
    shipped = sorted(path.name for path in _SHIPPED.iterdir()) if _SHIPPED.is_dir() else []
    if name not in shipped:
        raise RunDirectoryError(f"no weights come with the library for {name!r}; there are: {', '.join(shipped)}")
    return load_run(_SHIPPED / name)


def publish(path: str | Path, target: str | Path, every: int = 1) -> None:
    """Copy a finished run to a new directory, as the runs of :func:`pretrained` were made.

    The checkpoint is left out.

    Args:
        path: Directory of the run.
        target: The new directory.
        every: Of the loss history, only every so many lines are copied.

    Raises:
        RunDirectoryError: If ``target`` exists or cannot be written.
    """
    run, target = load_run(path), Path(target)
    try:
        target.mkdir(parents=True)
        for name in (CONFIG, INFO, WEIGHTS, SUMMARY, *PICTURES):
            if (run.path / name).is_file():
                _write(target / name, (run.path / name).read_bytes())
    except OSError as error:
        raise RunDirectoryError(f"cannot publish to {str(target)!r}: {error.strerror}; give a new directory") from error
    write_history(target / LOSSES, run.config, run.history[every - 1 :: every])


def new_model(config: Config) -> nn.Module:
    """The untrained network of a config; its weights follow from the seed.

    Args:
        config: The run.

    Returns:
        The network.
    """
    return initialized(
        lambda: config.equation.network(config.network), config.network.start, config.seed, config.torch_dtype
    )


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy tensors into a model, refusing names, shapes and types that differ from the model's.

    Args:
        model: The network.
        tensors: Its state dict.
        source: The file they came from, for the message.

    Raises:
        RunDirectoryError: If they do not fit.
    """
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in model.state_dict().items()}
    loaded = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    if expected != loaded:
        first = min(name for name in expected.keys() | loaded.keys() if expected.get(name) != loaded.get(name))
        raise RunDirectoryError(
            f"{str(source)!r} does not fit the network of its config: {first!r} is {loaded.get(first)}, "
            f"expected {expected.get(first)}; the file or the config was changed"
        )
    model.load_state_dict(dict(tensors))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> None:
    """Write tensors as a safetensors file, in one step.

    Args:
        path: The file.
        tensors: Tensors by name.
        notes: Texts by name, kept in the file's header.

    Raises:
        RunDirectoryError: If the file cannot be written.
    """
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    _write(path, safetensors.torch.save(plain, dict(notes or {})))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and notes of a safetensors file.

    Args:
        path: The file.

    Returns:
        Tensors by name, and notes by name.

    Raises:
        RunDirectoryError: If the file is damaged or of another format.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        kind = _other_format(path)
        raise RunDirectoryError(
            f"{str(path)!r} is not a complete safetensors file ({kind or error}); nothing was loaded from it"
        ) from error


def _other_format(path: Path) -> str | None:
    """What the file looks like instead, by its first bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError:
        return None
    pickle, archive = start[:1] == b"\x80", start == b"PK"
    return "it looks like a pickle, which could run code" if pickle or archive else None


def write_history(path: Path, config: Config, history: History) -> None:
    """Write ``losses.csv``.

    Args:
        path: The file.
        config: The run, for the names of the terms.
        history: Average losses by window.

    Raises:
        RunDirectoryError: If the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["epoch", "total", *config.equation.terms])
    writer.writerows([epoch, *(f"{loss:.7g}" for loss in losses)] for epoch, losses in history)
    _write(path, text.getvalue().encode())


def read_history(path: Path, config: Config) -> History:
    """Read ``losses.csv``.

    Args:
        path: The file.
        config: The run, for the names of the terms.

    Returns:
        Average losses by window.

    Raises:
        RunDirectoryError: If the file is not the loss history of this run.
    """
    try:
        header, *lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        if header != ["epoch", "total", *config.equation.terms]:
            raise ValueError(f"its columns are {header}")
        return [(int(epoch), tuple(float(loss) for loss in losses)) for epoch, *losses in lines]
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{str(path)!r} is not the loss history of this run: {error}") from error


def write_json(path: Path, entries: Mapping[str, Any]) -> None:
    """Write a JSON object, in one step.

    Args:
        path: The file.
        entries: Plain data.

    Raises:
        RunDirectoryError: If the file cannot be written.
    """
    _write(path, (json.dumps(entries, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: The file.

    Returns:
        Its entries.

    Raises:
        RunDirectoryError: If the file holds no JSON object.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{str(path)!r} cannot be read as JSON: {error}") from error
    if not isinstance(entries, dict):
        raise RunDirectoryError(f"{str(path)!r} holds no JSON object")
    return entries


def _write(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` in one step."""
    try:
        with replacing(path) as scratch:
            scratch.write_bytes(content)
    except OSError as error:
        raise RunDirectoryError(f"cannot write {str(path)!r}: {error.strerror}; what was there is unchanged") from error
