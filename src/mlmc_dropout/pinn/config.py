"""A training run as a value: every number that determines the weights, read from and written to TOML.

A config file states only what differs from a profile of its problem:

    problem = "boundary-layer"
    epochs = 1000

    [network]
    width = 32

The values are those of the profile ``"paper"`` unless ``profile = "quick"`` says otherwise. Unknown
keys and values of the wrong type are refused by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from mlmc_dropout.errors import ConfigError
from mlmc_dropout.pinn.networks import ACTIVATIONS, STARTS
from mlmc_dropout.pinn.problem import Problem

__all__ = ["PROFILES", "Config", "Network", "Optimizer", "Uzawa", "at_least", "dump", "parse", "positive"]

PROFILES = ("paper", "quick")
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_T = TypeVar("_T")


def positive(owner: object, *names: str) -> None:
    """Refuse fields that are not positive and finite.

    Args:
        owner: The dataclass whose fields are checked.
        *names: Names of its fields.

    Raises:
        ConfigError: If one of them is not; the message names it.
    """
    for name in names:
        number = getattr(owner, name)
        if not (math.isfinite(number) and number > 0):
            raise ConfigError(f"{name} must be a positive number: got {number!r}")


def at_least(owner: object, minimum: int, *names: str) -> None:
    """Refuse fields below a minimum.

    Args:
        owner: The dataclass whose fields are checked.
        minimum: The smallest value allowed.
        *names: Names of its fields.

    Raises:
        ConfigError: If one of them is smaller; the message names it.
    """
    for name in names:
        number = getattr(owner, name)
        if number < minimum:
            raise ConfigError(f"{name} must be at least {minimum}: got {number!r}")


def _one_of(owner: object, name: str, choices: Mapping[str, object] | tuple[str, ...]) -> None:
    choice = getattr(owner, name)
    if choice not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}: got {choice!r}")


@dataclass(frozen=True, slots=True)
class Network:
    """The shape of a network and the start of its weights.

    Attributes:
        width: Units of a hidden layer.
        depth: Number of hidden layers.
        activation: One of :data:`~mlmc_dropout.pinn.networks.ACTIVATIONS`.
        dropout: Dropout rate p in [0, 1).
        start: How the weights start: ``"torch"`` or ``"xavier"``.
    """

    width: int
    depth: int
    activation: str
    dropout: float
    start: str

    def __post_init__(self) -> None:
        at_least(self, 1, "width", "depth")
        _one_of(self, "activation", ACTIVATIONS)
        _one_of(self, "start", STARTS)
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must lie in [0, 1): got {self.dropout!r}")


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Adam, its learning rate multiplied by ``decay`` every ``decay_every`` epochs.

    Attributes:
        learning_rate: The rate of the first epochs.
        decay: Factor of the rate; 1 keeps it constant.
        decay_every: Epochs between two changes of the rate.

    Examples:
        >>> Optimizer(learning_rate=1e-3, decay=0.5, decay_every=100).rate(epoch=250)
        0.00025
    """

    learning_rate: float
    decay: float
    decay_every: int

    def __post_init__(self) -> None:
        positive(self, "learning_rate", "decay")
        at_least(self, 1, "decay_every")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch.

        Args:
            epoch: Its number, from 0.

        Returns:
            The rate, ``learning_rate · decay^(epoch // decay_every)``.
        """
        return self.learning_rate * float(self.decay ** (epoch // self.decay_every))


@dataclass(frozen=True, slots=True)
class Uzawa:
    """Uzawa's ascent on the multiplier: ``lambda <- lambda + rho c``, with ``c`` the residual of the constraint.

    Attributes:
        rho: Step of the multiplier.
        every: Epochs between two steps.
        lag_passes: Fresh passes from which the residual is taken; with 0, that of the passes of the loss.
    """

    rho: float
    every: int
    lag_passes: int

    def __post_init__(self) -> None:
        at_least(self, 0, "rho", "lag_passes")
        at_least(self, 1, "every")


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that determines a training run.

    Attributes:
        equation: The problem, with the constants of its equation.
        epochs: Length of the training.
        keep: Which weights are kept: those at the end (``"last"``), or of the window with the lowest average loss
            (``"best"``).
        network: Shape and start of the network.
        optimizer: Adam's learning rate.
        uzawa: Steps of the multiplier.
        seed: Every weight, mask and noise follows from it; 0 or more.
        points: Uniform points on [0, 1] at which the equation is imposed.
        repeats: Passes averaged in every epoch.
        window: Epochs over which losses are averaged before they are logged, compared and checkpointed.
        dtype: ``"float32"`` or ``"float64"``.
        compile: Whether to compile the loss by ``torch.compile``, where that works.
        checkpoint_seconds: Least time between two checkpoints.
        evaluation_passes: Passes of the final comparison with the exact solution.
    """

    equation: Problem
    epochs: int
    keep: str
    network: Network
    optimizer: Optimizer
    uzawa: Uzawa
    seed: int = 0
    points: int = 200
    repeats: int = 5
    window: int = 50
    dtype: str = "float32"
    compile: bool = True
    checkpoint_seconds: float = 30.0
    evaluation_passes: int = 10_000

    def __post_init__(self) -> None:
        at_least(self, 1, "epochs", "repeats", "window")
        at_least(self, 0, "seed", "checkpoint_seconds")
        at_least(self, 2, "points", "evaluation_passes")
        _one_of(self, "keep", ("best", "last"))
        _one_of(self, "dtype", _DTYPES)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of weights and inputs."""
        return _DTYPES[self.dtype]

    def shortened(self) -> Config:
        """The quick profile: the same problem, small enough for a test."""
        return replace(
            self,
            epochs=200,
            points=20,
            window=10,
            compile=False,
            evaluation_passes=100,
            network=replace(self.network, width=8),
            uzawa=replace(self.uzawa, every=10, lag_passes=min(self.uzawa.lag_passes, 4)),
        )


def parse(text: str, problems: Mapping[str, type[Problem]], problem: str | None = None) -> Config:
    """The config that a TOML text states.

    Args:
        text: The text; what it leaves out is taken from the profile ``"paper"`` of its problem.
        problems: The known problems by name.
        problem: The one asked for; the text may then leave it out, but not name another.

    Returns:
        The config.

    Raises:
        ConfigError: If the text is not TOML, or a key or value is not understood; the message names it.
    """
    try:
        entries = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config is not valid TOML: {error}") from error
    name = entries.pop("problem", problem)
    if name is None:
        raise ConfigError(f'the config names no problem; add  problem = "...", one of {", ".join(problems)}')
    if problem is not None and name != problem:
        raise ConfigError(f"the config is for the problem {name!r}, not {problem!r}; use a config of the latter")
    profile = entries.pop("profile", "paper")
    if profile not in PROFILES:
        raise ConfigError(f"profile must be one of {', '.join(PROFILES)}: got {profile!r}")
    if name not in problems:
        raise ConfigError(f"unknown problem {name!r}; known: {', '.join(problems)}")
    return _merged(problems[name].profile(profile), entries, "")


def _merged(base: _T, entries: Mapping[str, Any], section: str) -> _T:
    """``base`` with the fields of ``entries`` replaced; ``section`` is the path of the section, for messages."""
    assert is_dataclass(base)
    assert not isinstance(base, type)
    names = [field.name for field in fields(base)]
    changes: dict[str, Any] = {}
    for key, value in entries.items():
        if key not in names:
            raise ConfigError(_unknown(section + key, key, names))
        changes[key] = _checked(getattr(base, key), value, section + key)
    try:
        return replace(base, **changes)
    except ConfigError as error:
        raise ConfigError(section + str(error)) from None


def _unknown(path: str, key: str, names: list[str]) -> str:
    close = difflib.get_close_matches(key, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(names)}"
    return f"unknown key {path!r}; {hint}"


def _checked(current: object, value: object, path: str) -> object:
    """``value`` if it has the type of ``current``; an integer may stand for a float."""
    if is_dataclass(current) and isinstance(value, dict):
        return _merged(current, value, path + ".")
    if isinstance(current, float) and type(value) is int:
        return float(value)
    if type(value) is not type(current):
        expected = "a section" if is_dataclass(current) else type(current).__name__
        raise ConfigError(f"{path} must be {expected}: got {value!r} ({type(value).__name__})")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} must be finite: got {value!r}")
    return value


def dump(config: Config) -> str:
    """A config as TOML, complete: every value is stated, whatever a profile may say later.

    Args:
        config: The config.

    Returns:
        The text, which :func:`parse` reads back.
    """
    lines = [f"problem = {json.dumps(config.equation.name)}"]
    sections: list[str] = []
    for field in fields(config):
        entry = getattr(config, field.name)
        if is_dataclass(entry) and not isinstance(entry, type):
            table = dataclasses.asdict(entry)
            sections += ["", f"[{field.name}]", *(f"{key} = {_literal(part)}" for key, part in table.items())]
        else:
            lines.append(f"{field.name} = {_literal(entry)}")
    return "\n".join([*lines, *sections]) + "\n"


def _literal(entry: object) -> str:
    """A TOML literal; JSON's agree with TOML's for text, booleans and integers, ``repr`` for floats."""
    return repr(entry) if isinstance(entry, float) else json.dumps(entry)
