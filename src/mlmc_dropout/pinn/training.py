"""The training loop: Adam on the weights, Uzawa's ascent on the multiplier. It exists once.

Every epoch ``e`` draws ``repeats`` passes named by ``e``, takes an Adam step on the problem's loss,
and every ``uzawa.every`` epochs moves the multiplier, ``lambda <- lambda + rho c``, where ``c`` is the
residual of the constraint before the step. After every window of epochs the average loss is logged
and, if it is time, a checkpoint is written. All that an epoch needs is the state below; all that is
random follows from the epoch's number; so a run that was killed continues as if it had not been.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor, nn

from mlmc_dropout.errors import ConfigError, MissingExtraError, MLMCDropoutError, RunDirectoryError
from mlmc_dropout.pinn import runs
from mlmc_dropout.pinn.config import Config, parse
from mlmc_dropout.pinn.draws import LAG, TRAINING, Drawer
from mlmc_dropout.pinn.evaluation import summary
from mlmc_dropout.pinn.plots import draw_losses, draw_solution
from mlmc_dropout.pinn.problem import Draw, Problem
from mlmc_dropout.pinn.problems import by_name
from mlmc_dropout.pinn.progress import TrainingProgress, automatic
from mlmc_dropout.runtime.signals import ending_by_exception

__all__ = ["TrainingError", "TrainingState", "resume", "start", "step", "train"]

_BLOCK = 10  # epochs whose masks are drawn together

Evaluate = Callable[[Draw, Tensor], tuple[Tensor, Tensor, Tensor]]


class TrainingError(MLMCDropoutError):
    """Training cannot go on: the loss is not finite any more."""


@dataclass(slots=True)
class TrainingState:
    """What a checkpoint holds: everything that changes from epoch to epoch.

    Attributes:
        model: The network, in training mode.
        optimizer: Adam with its moments.
        multiplier: The multiplier ``lambda``.
        epoch: Epochs done.
        best_loss: Lowest average loss of a window so far.
        best: The weights at the end of that window, if they are kept.
        history: Average losses by window.
    """

    model: nn.Module
    optimizer: torch.optim.Adam
    multiplier: Tensor
    epoch: int = 0
    best_loss: float = math.inf
    best: dict[str, Tensor] = field(default_factory=dict)
    history: runs.History = field(default_factory=list)


def train(
    problem: str | None,
    config: Path | None = None,
    resume_from: Path | None = None,
    out: Path = Path("runs"),
    progress: TrainingProgress | None = None,
) -> Path:
    """Train a problem by name, as the command line does.

    Args:
        problem: Its name; None if ``config`` or ``resume_from`` says it.
        config: TOML file with what differs from the defaults; None for those of the benchmark.
        resume_from: Directory of a run to continue.
        out: Directory in which the run gets a directory.
        progress: What shows how it goes; by default a bar on a terminal, lines elsewhere.

    Returns:
        Directory of the run.

    Raises:
        ConfigError: If the config cannot be read or is not understood.
        RunDirectoryError: If a directory cannot be written or is not that of a run.
        TrainingError: If the loss stops being finite.
    """
    if resume_from is not None:
        if config is not None:
            raise ConfigError("a resumed run has its own config; leave out the config file")
        return resume(resume_from, progress, expected=problem)
    if config is None:
        return start(parse("", by_name(), problem), out, progress)
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config {str(config)!r}: {error}") from error
    return start(parse(text, by_name(), problem), out, progress)


def start(config: Config, out: Path = Path("runs"), progress: TrainingProgress | None = None) -> Path:
    """Train from scratch in a fresh directory.

    Args:
        config: The run.
        out: Directory in which the run gets a directory.
        progress: What shows how it goes; by default a bar on a terminal, lines elsewhere.

    Returns:
        Directory of the run.

    Raises:
        RunDirectoryError: If ``out`` cannot be written.
        TrainingError: If the loss stops being finite.
    """
    path = runs.create(out, config)
    state = new_state(config)
    Snapshot.of(state).write(path, config)
    return _run(path, config, state, progress)


def resume(
    path: Path,
    progress: TrainingProgress | None = None,
    expected: str | None = None,
    problems: Iterable[type[Problem]] = (),
) -> Path:
    """Continue a run from its last checkpoint; a finished run is left as it is.

    Args:
        path: Directory of the run.
        progress: What shows how it goes; by default a bar on a terminal, lines elsewhere.
        expected: Name of the problem it has to be of, if that matters.
        problems: Problem classes of the user, if the run is of one of them.

    Returns:
        ``path``.

    Raises:
        RunDirectoryError: If the directory is not that of a run, or of another problem.
        ConfigError: If its config is not understood.
        TrainingError: If the loss stops being finite.
    """
    config = runs.open_run(path, problems)
    if expected not in (None, config.equation.name):
        raise RunDirectoryError(f"{str(path)!r} is a run of {config.equation.name!r}, not of {expected!r}")
    if (path / runs.SUMMARY).is_file():
        with progress or automatic() as display:
            display.say(f"{path} is finished; it is left as it is")
        return path
    return _run(path, config, restore(path, config), progress)


def new_state(config: Config) -> TrainingState:
    """The state before the first epoch.

    Args:
        config: The run.

    Returns:
        Fresh weights, optimiser and multiplier.
    """
    model = runs.new_model(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.optimizer.rate(0), fused=True)
    return TrainingState(model, optimizer, config.equation.multiplier(config.points).to(config.torch_dtype))


def _run(path: Path, config: Config, state: TrainingState, progress: TrainingProgress | None) -> Path:
    with ending_by_exception(), progress or automatic() as display:
        display.say(f"{config.equation.name}: {config.epochs} epochs from {state.epoch}, in {path}")
        if state.epoch < config.epochs:
            _loop(path, config, state, display)
        _finish(path, config, state, display)
    return path


def _loop(path: Path, config: Config, state: TrainingState, display: TrainingProgress) -> None:
    drawer, evaluate = new_drawer(config, state.model), evaluator(config, state.model)
    fast = _compiled(config, state, evaluate, drawer, display) if config.compile else None
    threads = torch.get_num_threads()
    runs.note_session(path, {"epoch": state.epoch, "compiled": fast is not None, "threads": threads})
    display.begin(state.epoch, config.epochs)
    saved, last = time.monotonic(), Snapshot.of(state)
    try:
        while state.epoch < config.epochs:
            _window(config, state, fast or evaluate, drawer)
            last = Snapshot.of(state)
            losses = dict(zip(("total", *config.equation.terms), state.history[-1][1], strict=True))
            display.update(state.epoch, losses)
            if time.monotonic() - saved >= config.checkpoint_seconds or state.epoch == config.epochs:
                last.write(path, config)
                saved = time.monotonic()
    except (KeyboardInterrupt, SystemExit):  # in mid-step, perhaps: what is kept is the end of the last window
        last.write(path, config)
        display.say(f"stopped; {last.epoch} epochs are saved, and this goes on with them:")
        display.say(f"mlmc-dropout train --resume {shlex.quote(str(path))}")
        raise


def new_drawer(config: Config, model: nn.Module) -> Drawer:
    """The draws of a run.

    Args:
        config: The run.
        model: Its network.

    Returns:
        Masks and noise by epoch.
    """
    rows = len(config.equation.rows(config.points))
    return Drawer(model, rows, config.seed, config.torch_dtype, config.equation.noisy)


def evaluator(config: Config, model: nn.Module) -> Evaluate:
    """The function ``(draw, multiplier) -> (total loss, its terms, residual of the constraint)``.

    Args:
        config: The run.
        model: Its network.

    Returns:
        The function; only the total loss carries gradients.
    """
    rows = config.equation.rows(config.points).to(config.torch_dtype)

    def evaluate(draw: Draw, multiplier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses = config.equation.loss(model, rows, draw, multiplier)
        return losses.terms.sum(), losses.terms.detach(), losses.constraint.detach()

    return evaluate


def _compiled(
    config: Config, state: TrainingState, evaluate: Evaluate, drawer: Drawer, display: TrainingProgress
) -> Evaluate | None:
    """``evaluate`` compiled, if a trial call works; otherwise nothing, and the user is told."""
    display.say("compiling; this takes up to a minute")
    fast: Evaluate = torch.compile(evaluate, dynamic=False)
    (draw,) = drawer.block(TRAINING, state.epoch, 1, config.repeats)
    try:
        fast(draw, state.multiplier)[0].backward()
    except Exception as error:  # whatever a compiler may raise: training does not depend on it
        display.say(f"torch.compile does not work here ({type(error).__name__}); training without it")
        return None
    finally:
        state.optimizer.zero_grad()
    return fast


def _window(config: Config, state: TrainingState, evaluate: Evaluate, drawer: Drawer) -> None:
    """Train to the end of the current window, then log it and keep it if it is the best."""
    end = min(state.epoch - state.epoch % config.window + config.window, config.epochs)
    terms: list[Tensor] = []
    while state.epoch < end:
        count = min(_BLOCK, end - state.epoch)
        draws = drawer.block(TRAINING, state.epoch, count, config.repeats)
        terms += [step(config, state, evaluate, drawer, draw) for draw in draws]
    average = torch.stack(terms).to(torch.float64).mean(dim=0)
    total = float(average.sum())
    if not math.isfinite(total):
        raise TrainingError(
            f"the loss is {total} after {state.epoch} epochs; lower learning_rate ({config.optimizer.learning_rate})"
        )
    state.history.append((state.epoch, (total, *average.tolist())))
    if config.keep == "best" and total < state.best_loss:
        state.best_loss = total
        state.best = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


def step(config: Config, state: TrainingState, evaluate: Evaluate, drawer: Drawer, draw: Draw) -> Tensor:
    """One epoch. The multiplier moves by the residual before the weights move.

    Args:
        config: The run.
        state: The state, changed in place.
        evaluate: The function of :func:`evaluator`, perhaps compiled.
        drawer: Draws the passes of the multiplier.
        draw: The passes of the loss.

    Returns:
        The terms of the loss.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = config.optimizer.rate(state.epoch)
    state.optimizer.zero_grad()
    total, terms, constraint = evaluate(draw, state.multiplier)
    total.backward()
    if state.epoch % config.uzawa.every == 0:
        if config.uzawa.lag_passes:
            constraint = _lagged(config, state, evaluate, drawer)
        state.multiplier = state.multiplier + config.uzawa.rho * constraint
    state.optimizer.step()
    state.epoch += 1
    return terms


@torch.no_grad()
def _lagged(config: Config, state: TrainingState, evaluate: Evaluate, drawer: Drawer) -> Tensor:
    """The residual of the constraint over passes of its own."""
    (draw,) = drawer.block(LAG, state.epoch, 1, config.uzawa.lag_passes)
    return evaluate(draw, state.multiplier)[2]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of a state, which changes in place, as a checkpoint holds it.

    Attributes:
        epoch: Epochs done.
        best_loss: Lowest average loss of a window so far.
        tensors: Weights, best weights, Adam's moments and the multiplier, by name.
        history: Average losses by window.
    """

    epoch: int
    best_loss: float
    tensors: dict[str, Tensor]
    history: runs.History

    @classmethod
    def of(cls, state: TrainingState) -> Snapshot:
        """Copy a state.

        Args:
            state: The state.

        Returns:
            The copy.
        """
        tensors = {"multiplier": state.multiplier}
        tensors |= {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in state.best.items()}
        for number, moments in state.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": tensor for name, tensor in moments.items()}
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return cls(state.epoch, state.best_loss, copies, list(state.history))

    def write(self, path: Path, config: Config) -> None:
        """Write the losses, then the checkpoint: lines of later epochs are dropped again by :func:`restore`.

        Args:
            path: Directory of the run.
            config: The run.

        Raises:
            RunDirectoryError: If a file cannot be written.
        """
        runs.write_history(path / runs.LOSSES, config, self.history)
        notes = {"epoch": str(self.epoch), "best_loss": repr(self.best_loss)}
        runs.write_tensors(path / runs.CHECKPOINT, self.tensors, notes)


def restore(path: Path, config: Config) -> TrainingState:
    """The state saved in a run.

    Args:
        path: Directory of the run.
        config: Its config.

    Returns:
        The state at the last checkpoint.

    Raises:
        RunDirectoryError: If the checkpoint is damaged or of another network.
    """
    source = path / runs.CHECKPOINT
    tensors, notes = runs.read_tensors(source)
    state = new_state(config)
    try:
        state.epoch, state.best_loss = int(notes["epoch"]), float(notes["best_loss"])
        state.multiplier = tensors["multiplier"]
    except (KeyError, ValueError) as error:
        raise RunDirectoryError(f"{str(source)!r} is not a checkpoint: {error} is missing or wrong") from error
    runs.load_weights(state.model, _part(tensors, "model."), source)
    state.best = _part(tensors, "best.")
    _restore_moments(state, tensors, source)
    history = runs.read_history(path / runs.LOSSES, config)
    state.history = [line for line in history if line[0] <= state.epoch]
    return state


def _restore_moments(state: TrainingState, tensors: dict[str, Tensor], source: Path) -> None:
    """Adam's moments; before the first epoch there are none."""
    moments = {}
    for number, parameter in enumerate(state.model.parameters() if state.epoch else ()):
        moments[number] = _part(tensors, f"adam.{number}.")
        shapes = {name: tensor.shape for name, tensor in moments[number].items()}
        if shapes != {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}:
            raise RunDirectoryError(f"{str(source)!r} lacks the optimiser's state of weight {number}; it was changed")
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _finish(path: Path, config: Config, state: TrainingState, display: TrainingProgress) -> None:
    """Write the weights that are kept, the pictures, and last the summary that marks the run as finished."""
    if state.best:
        state.model.load_state_dict(state.best)
    runs.write_tensors(path / runs.WEIGHTS, state.model.state_dict())
    try:
        draw_losses(path / runs.PICTURES[0], config, state.history)
        draw_solution(path / runs.PICTURES[1], config, state.model)
    except MissingExtraError as error:
        display.say(f"no pictures: {error}")
    results = summary(config, state.model)
    runs.write_json(path / runs.SUMMARY, {**results, "finished": datetime.now(UTC).isoformat(timespec="seconds")})
    errors = ", ".join(f"{name} {error:.3g}" for name, error in results["relative_l2_of_mean"].items())
    display.say(f"relative L2 error of the dropout mean: {errors}")
