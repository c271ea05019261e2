"""Run directories: complete, reloadable, and nothing of a bad one is executed or overwritten."""

from __future__ import annotations

import csv
import json
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from mlmc_dropout.errors import ConfigError, MLMCDropoutError, RunDirectoryError
from mlmc_dropout.pinn import (
    BoundaryLayer,
    Config,
    Poisson,
    SourceInference,
    load_run,
    pretrained,
    resume,
    start,
    train,
)
from mlmc_dropout.pinn.problem import Problem
from mlmc_dropout.pinn.progress import Silent
from mlmc_dropout.pinn.runs import publish

FILES = {"config.toml", "run.json", "losses.csv", "weights.safetensors", "checkpoint.safetensors", "summary.json"}
PICTURES = {"loss.png", "solution.png"}


def tiny(problem: type[Problem] = BoundaryLayer) -> Config:
    return replace(problem.profile("quick"), epochs=25, checkpoint_seconds=0.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(tiny(), tmp_path_factory.mktemp("runs"), Silent())


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may spoil."""
    path = tmp_path / "run"
    path.mkdir()
    for file in finished.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("problem", [BoundaryLayer, SourceInference, Poisson])
def test_a_run_is_complete_and_comes_back(problem: type[Problem], tmp_path: Path) -> None:
    config = tiny(problem)
    path = start(config, tmp_path, Silent())
    assert {file.name for file in path.iterdir()} == FILES | PICTURES
    loaded = load_run(path)
    assert (loaded.config, loaded.problem) == (config, problem())
    assert [epoch for epoch, _ in loaded.history] == [10, 20, 25]
    assert loaded.model.training is False
    outputs = loaded.model(torch.linspace(0.0, 1.0, 5)[:, None])
    shapes = {
        name: tuple(out.shape) for name, out in (outputs if isinstance(outputs, dict) else {"u": outputs}).items()
    }
    assert shapes == dict.fromkeys(problem().exact_mean(torch.zeros(1)), (5, 1))
    assert set(loaded.summary["relative_l2_of_mean"]) == set(shapes)


def test_run_json_says_what_made_the_run(finished: Path) -> None:
    info = json.loads((finished / "run.json").read_text())
    assert info["seed"] == 0
    assert info["versions"]["torch"] == torch.__version__
    (session,) = info["sessions"]
    assert (session["epoch"], session["compiled"]) == (0, False)
    assert "revision" in info


def test_losses_add_up(finished: Path) -> None:
    with (finished / "losses.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["epoch", "total", "equation", "boundary", "multiplier"]
    for line in lines:
        terms = [float(line[name]) for name in BoundaryLayer.terms]
        assert sum(terms) == pytest.approx(float(line["total"]), rel=1e-6)


def test_the_best_window_is_kept(tmp_path: Path) -> None:
    """A learning rate that spoils the weights later on must not spoil those that are kept."""
    base = replace(tiny(), epochs=60)
    path = start(replace(base, optimizer=replace(base.optimizer, decay=3000.0, decay_every=30)), tmp_path, Silent())
    kept = load_run(path).model.state_dict()
    totals = [losses[0] for _, losses in load_run(path).history]
    best = totals.index(min(totals)) + 1
    assert best < len(totals)
    short = replace(base, epochs=10 * best, keep="last")
    expected = load_run(start(short, tmp_path, Silent())).model.state_dict()
    assert all(torch.equal(kept[name], expected[name]) for name in kept)


def test_global_random_state_is_untouched(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    start(tiny(), tmp_path, Silent())
    assert torch.equal(torch.get_rng_state(), before)


def test_runs_of_the_same_second_do_not_share_a_directory(tmp_path: Path) -> None:
    paths = {start(replace(tiny(), epochs=1), tmp_path, Silent()) for _ in range(3)}
    assert len(paths) == 3


def test_a_finished_run_is_left_as_it_is(run: Path) -> None:
    before = contents(run)
    assert resume(run, Silent()) == run
    assert contents(run) == before


def test_a_loss_that_explodes_is_reported(tmp_path: Path) -> None:
    base = tiny()
    with pytest.raises(MLMCDropoutError, match=r"after \d+ epochs; lower learning_rate"):
        start(replace(base, optimizer=replace(base.optimizer, learning_rate=1e30)), tmp_path, Silent())


def test_a_published_run_is_small_and_loads(run: Path, tmp_path: Path) -> None:
    publish(run, tmp_path / "shipped", every=2)
    assert {file.name for file in (tmp_path / "shipped").iterdir()} == (FILES | PICTURES) - {"checkpoint.safetensors"}
    shipped = load_run(tmp_path / "shipped")
    assert shipped.history == load_run(run).history[1::2]
    with pytest.raises(RunDirectoryError, match="give a new directory"):
        publish(run, tmp_path / "shipped")


# ------------------------------------------------------------------------------------ bad directories


def refused(path: Path, words: str) -> None:
    """Loading and resuming fail with a message of these words, and the directory stays as it was."""
    before = contents(path)
    with pytest.raises((RunDirectoryError, ConfigError), match=words):
        load_run(path)
    assert contents(path) == before


def test_a_foreign_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(tmp_path, "is not a training run")
    with pytest.raises(RunDirectoryError, match="is not a training run"):
        resume(tmp_path, Silent())
    (tmp_path / "run.json").write_text('{"format": "something else"}')
    refused(tmp_path, "is not a training run")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(RunDirectoryError, match="is not a directory"):
        load_run(tmp_path / "absent")


def test_an_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunDirectoryError, match=r"cannot write to .*choose another directory"):
        start(tiny(), tmp_path / "file" / "runs", Silent())
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_leaves_the_last_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "summary.json").unlink()
    before = contents(run)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunDirectoryError, match=r"No space left on device; what was there is unchanged"):
        resume(run, Silent())
    assert {name: data for name, data in contents(run).items() if not name.endswith(".partial")} == before


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_truncated_weights(run: Path, keep: int) -> None:
    whole = (run / "weights.safetensors").read_bytes()
    (run / "weights.safetensors").write_bytes(whole[:keep])
    refused(run, "not a complete safetensors file")


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("file", ["weights.safetensors", "checkpoint.safetensors"])
@pytest.mark.parametrize("torch_archive", [False, True])
def test_a_pickle_is_not_executed(run: Path, tmp_path: Path, file: str, torch_archive: bool) -> None:
    executed = tmp_path / "executed"
    if torch_archive:
        torch.save(Bomb(executed), run / file)
    else:
        (run / file).write_bytes(pickle.dumps(Bomb(executed)))
    (run / "summary.json").unlink()
    if file == "weights.safetensors":
        refused(run, "looks like a pickle")
    else:
        with pytest.raises(RunDirectoryError, match="looks like a pickle"):
            resume(run, Silent())
    assert not executed.exists()
    pickle.loads(pickle.dumps(Bomb(executed)))  # the bomb is live
    assert executed.exists()


def test_weights_of_another_network(run: Path) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("width = 8", "width = 9"))
    refused(run, r"does not fit the network of its config.*\(8.*expected \(\(9")


def test_a_config_that_was_spoilt(run: Path) -> None:
    (run / "config.toml").write_text('problem = "boundary-layer"\nepocs = 3\n')
    refused(run, r"config\.toml'.*unknown key 'epocs'")


@pytest.mark.parametrize("name", ["losses.csv", "run.json"])
def test_other_files_that_were_spoilt(run: Path, name: str) -> None:
    (run / name).write_text("nonsense")
    refused(run, name.replace(".", r"\."))


def test_a_run_without_weights_has_to_be_resumed_first(run: Path) -> None:
    (run / "weights.safetensors").unlink()
    refused(run, "resume it first")


def test_a_resumed_run_has_its_own_config_and_problem(run: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("epochs = 3\n")
    with pytest.raises(ConfigError, match="has its own config"):
        train("boundary-layer", config=tmp_path / "c.toml", resume_from=run)
    with pytest.raises(RunDirectoryError, match="is a run of 'boundary-layer', not of 'poisson'"):
        train("poisson", resume_from=run)
    with pytest.raises(ConfigError, match="cannot read the config"):
        train("poisson", config=tmp_path / "absent.toml")


def test_unknown_pretrained_weights() -> None:
    with pytest.raises(RunDirectoryError, match=r"for 'heat'; there are: "):
        pretrained("heat")
    with pytest.raises(RunDirectoryError, match="there are: "):
        pretrained("../problems")


# ------------------------------------------------------------------------------------ a problem of one's own


@dataclass(frozen=True, slots=True)
class Weighted(Poisson):
    """A user's problem, known to nobody else."""

    name: ClassVar[str] = "weighted"


def test_a_problem_of_ones_own(tmp_path: Path) -> None:
    path = start(tiny(Weighted), tmp_path, Silent())
    assert load_run(path, problems=[Weighted]).problem == Weighted()
    with pytest.raises(ConfigError, match="unknown problem 'weighted'"):
        load_run(path)
