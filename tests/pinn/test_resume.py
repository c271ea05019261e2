"""A run that is killed and resumed ends like one that was left alone."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from mlmc_dropout.pinn import BoundaryLayer, Config, Poisson, SourceInference, load_run, resume, start, train
from mlmc_dropout.pinn.problem import Problem
from mlmc_dropout.pinn.progress import Silent
from mlmc_dropout.pinn.runs import read_json, read_tensors

SAME = ("weights.safetensors", "losses.csv", "config.toml")


class Interrupted(Exception):
    """Stands for a kill inside this process."""


class StopAt(Silent):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def update(self, done: int, losses: Mapping[str, float]) -> None:
        if done >= self.epoch:
            raise Interrupted


def same_end(one: Path, other: Path) -> None:
    for name in SAME:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    left, right = load_run(one).summary, load_run(other).summary
    assert left["relative_l2_of_mean"] == right["relative_l2_of_mean"]


def interrupted_and_resumed(config: Config, out: Path, *stops: int) -> Path:
    with pytest.raises(Interrupted):
        start(config, out, StopAt(stops[0]))
    (path,) = out.iterdir()
    for stop in stops[1:]:
        with pytest.raises(Interrupted):
            resume(path, StopAt(stop))
    return resume(path, Silent())


@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference, Poisson])
def test_interrupted_run_ends_the_same(problem: type[Problem], tmp_path: Path) -> None:
    """The learning rate decays and the multiplier moves between the stops, so all of it must come back."""
    config = replace(problem.profile("quick"), epochs=75, checkpoint_seconds=0.0)
    config = replace(config, optimizer=replace(config.optimizer, decay=0.5, decay_every=20))
    whole = start(config, tmp_path / "whole", Silent())
    path = interrupted_and_resumed(config, tmp_path / "cut", 10, 40, 60)
    same_end(whole, path)


def test_checkpoints_are_bounded_in_time(tmp_path: Path) -> None:
    """With an interval that never passes, only the start is saved, and the run still ends the same."""
    config = replace(BoundaryLayer.profile("quick"), epochs=30, checkpoint_seconds=1e9)
    with pytest.raises(Interrupted):
        start(config, tmp_path / "cut", StopAt(20))
    (path,) = (tmp_path / "cut").iterdir()
    assert read_tensors(path / "checkpoint.safetensors")[1]["epoch"] == "0"
    same_end(start(config, tmp_path / "whole", Silent()), resume(path, Silent()))


def test_a_lost_multiplier_would_be_noticed(tmp_path: Path) -> None:
    """The comparison can fail: another multiplier step gives other weights."""
    config = replace(SourceInference.profile("quick"), epochs=40)
    one = start(config, tmp_path, Silent())
    other = start(replace(config, uzawa=replace(config.uzawa, rho=0.0)), tmp_path, Silent())
    assert (one / SAME[0]).read_bytes() != (other / SAME[0]).read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler has some of its own
def test_compiled_run_ends_the_same(tmp_path: Path) -> None:
    config = replace(SourceInference.profile("quick"), epochs=60, compile=True, checkpoint_seconds=0.0)
    whole = start(config, tmp_path / "whole", Silent())
    cut = interrupted_and_resumed(config, tmp_path / "cut", 20, 50)
    sessions = read_json(cut / "run.json")["sessions"]
    assert [session["compiled"] for session in sessions] == [True, True, True]
    same_end(whole, cut)


# ------------------------------------------------------------------------------------ real kills

CONFIG = """
profile = "quick"
epochs = 600
checkpoint_seconds = 0.0
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[multiprocessing.context.ForkServerContext]:
    """Real processes of one thread each, forked from one that has imported everything already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["mlmc_dropout.pinn"])
        yield context


def launch(processes: multiprocessing.context.ForkServerContext, out: Path, source: Path) -> BaseProcess:
    """A process that trains by the config file ``source``, or resumes the run ``source``."""
    files = (None, source) if source.is_dir() else (source, None)
    process = processes.Process(target=train, args=("source-inference", *files, out, Silent()))
    process.start()
    return process


def saved_epoch(path: Path) -> int:
    return int(read_tensors(path / "checkpoint.safetensors")[1]["epoch"])


def wait_for_progress(process: BaseProcess, out: Path, beyond: int) -> Path:
    """The run directory, once a checkpoint later than ``beyond`` is in it."""
    for _ in range(6000):
        assert process.is_alive(), "the run ended before it could be killed"
        checkpoints = list(out.glob("source-inference-*/checkpoint.safetensors"))
        if checkpoints and saved_epoch(checkpoints[0].parent) > beyond:
            return checkpoints[0].parent
        time.sleep(0.01)
    raise AssertionError("no checkpoint within a minute")


def test_run_killed_three_times_ends_the_same(
    processes: multiprocessing.context.ForkServerContext, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    whole = launch(processes, tmp_path / "whole", config)
    out, source, epochs = tmp_path / "cut", config, []
    chance = random.Random(20261117)
    for moment in sorted(chance.sample(range(400), 3)):
        process = launch(processes, out, source)
        source = wait_for_progress(process, out, moment)
        time.sleep(chance.uniform(0.0, 0.02))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        epochs.append(saved_epoch(source))
    print(f"killed after the checkpoints of epochs {epochs}")
    assert epochs[-1] < 600
    resume(source, Silent())
    whole.join()
    assert whole.exitcode == 0
    (uninterrupted,) = (tmp_path / "whole").iterdir()
    same_end(uninterrupted, source)


class SignalAt(Silent):
    """A real signal to this process in the middle of a window, and the lines that are said."""

    def __init__(self, epoch: int, number: signal.Signals) -> None:
        self.epoch, self.number, self.lines = epoch, number, list[str]()

    def update(self, done: int, losses: Mapping[str, float]) -> None:
        if done >= self.epoch:
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # some steps later

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_stopped_run_saves_the_epochs_it_speaks_of(
    number: signal.Signals, raised: type[BaseException], tmp_path: Path
) -> None:
    """The interval of checkpoints never passes, so that the signal alone makes it save."""
    config = replace(BoundaryLayer.profile("quick"), epochs=400, checkpoint_seconds=1e9)
    shown = SignalAt(100, number)
    before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
    try:
        with pytest.raises(raised):
            start(config, tmp_path / "cut", shown)
    finally:
        signal.signal(signal.SIGALRM, before)
    (path,) = (tmp_path / "cut").iterdir()
    epoch = int(read_tensors(path / "checkpoint.safetensors")[1]["epoch"])
    assert 100 <= epoch < 400 and f"{epoch} epochs are saved" in shown.lines[-2]
    assert shown.lines[-1] == f"mlmc-dropout train --resume {path}"
    same_end(start(config, tmp_path / "whole", Silent()), resume(path, Silent()))
