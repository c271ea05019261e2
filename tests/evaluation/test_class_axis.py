"""Classes along another axis than the last: images (N, C, H, W) with labels (N, H, W)."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout.cli import main
from mlmc_dropout.errors import ModelWarning

C, H, W = 3, 4, 6
SOURCE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(8, 3, 1))
"""


def make() -> nn.Module:
    namespace: dict[str, object] = {}
    with torch.random.fork_rng(devices=[]):
        exec(SOURCE, namespace)
        return namespace["make"]().eval()  # type: ignore[operator]


def data(rows: int = 20) -> tuple[Tensor, np.ndarray]:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(rows, 1, H, W))).float()
    return x, draw.integers(C, size=(rows, H, W))


def classes_last(output: Tensor) -> Tensor:
    return output.movedim(1, -1)


def values(found: md.Evaluation) -> dict[str, tuple[float, float, float]]:
    return {name: (one.value, one.stderr, one.bias) for name, one in found.estimates.items()}


@pytest.mark.parametrize("axis", [1, -3])
def test_it_is_the_same_as_moving_the_axis_by_a_transform(axis: int) -> None:
    model, (x, y) = make(), data()
    expected = md.evaluate(model, x, y, budget=20, transform=classes_last)
    found = md.evaluate(model, x, y, budget=20, class_axis=axis)
    assert values(found) == values(expected) and set(found) >= {"nll", "accuracy", "ece"}
    assert found.metadata["class_axis"] == axis


def test_metrics_of_ones_own_get_the_classes_last() -> None:
    model, (x, _) = make(), data()
    own = md.Metric("own", lambda e, y: e["sum"], uses=(), features=lambda out: {"sum": out.sum(axis=-1)})
    for arguments in ({"class_axis": 1}, {"transform": classes_last}):
        found = md.evaluate(model, x, metrics=(own,), budget=20, **arguments)
        assert found["own"].value == md.evaluate(model, x, metrics=(own,), budget=20, class_axis=1)["own"].value


def test_the_last_axis_is_taken_with_a_warning_only() -> None:
    model, (x, _) = make(), data()
    with pytest.warns(ModelWarning, match="give class_axis=1, otherwise class_axis=-1"):
        found = md.evaluate(model, x, metrics=("entropy",), budget=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last = md.evaluate(model, x, metrics=("entropy",), budget=20, class_axis=-1)
    assert values(last) == values(found)


def test_labels_that_tell_another_axis_are_an_error() -> None:
    model, (x, y) = make(), data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        with pytest.raises(md.InputError, match="give class_axis=1"):
            md.evaluate(model, x, y, budget=20)
    with pytest.raises(md.InputError, match="labels have the shape"):
        md.evaluate(model, x, y[:, 0], budget=20, class_axis=1)
    with pytest.raises(md.InputError, match="axes behind the inputs are 1 to 3"):
        md.evaluate(model, x, y, budget=20, class_axis=4)
    with pytest.raises(md.InputError, match="belongs to outputs='logits' or 'probabilities'"):
        md.evaluate(model, x, budget=20, outputs="values", class_axis=1)


def test_a_checkpoint_belongs_to_its_axis(tmp_path: Path) -> None:
    model, (x, _) = make(), data()
    settings = {"metrics": ("entropy",), "budget": 20, "checkpoint": tmp_path / "c"}
    md.evaluate(model, x, class_axis=1, **settings)
    with pytest.raises(md.CheckpointError):
        md.evaluate(model, x, class_axis=-1, **settings)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    x, y = data()
    np.save("x.npy", x.numpy())
    np.save("y.npy", y)
    (tmp_path / "names.txt").write_text("sky\nsea\nland\n")
    return tmp_path


FILES = ("--model", "net.py:make", "--inputs", "x.npy", "--budget", "20", "--out", "run")


def test_the_command_gives_what_the_library_gives(folder: Path) -> None:
    x, y = data()
    options = ("--labels", "y.npy", "--class-axis", "1", "--quiet")
    assert main(["evaluate", *FILES, *options]) == 0
    found = md.load_evaluation("run/evaluation.json")
    assert values(found) == values(md.evaluate(make(), x, y, budget=20, class_axis=1))


@pytest.mark.parametrize("command", ["evaluate", "estimate"])
@pytest.mark.parametrize("told", [("--labels", "y.npy"), ("--class-names", "names.txt")])
def test_names_or_labels_that_tell_the_axis_stop_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, told: tuple[str, str]
) -> None:
    assert main([command, *FILES, *told, "--outputs", "logits"]) == 2
    assert "add --class-axis 1" in capsys.readouterr().err
    assert not (folder / "run").exists()
    assert main([command, *FILES, *told, "--outputs", "logits", "--class-axis", "1", "--quiet"]) == 0


def test_without_names_or_labels_the_command_warns_in_the_words_of_the_shell(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *FILES, "--metrics", "entropy"]) == 0
    assert "warning: --outputs logits takes classes along the last axis" in (said := capsys.readouterr().err)
    assert "give --class-axis 1, otherwise --class-axis -1" in said


def test_inputs_are_converted_and_labels_may_be_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "words.py").write_text(
        "import torch\nfrom torch import nn\ndef make():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16, 3))\n"
    )
    np.save("t.npy", np.random.default_rng(0).integers(9, size=(40, 2)).astype(np.float64))
    (folder / "y.csv").write_text("\n".join(["sky", "sea", "land", "sea"] * 10))
    command = ["evaluate", "--model", "words.py:make", "--inputs", "t.npy", "--budget", "20", "--out", "run"]
    named = ["--labels", "y.csv", "--class-names", "names.txt", "--quiet"]
    assert main([*command, "--dtype", "int64", *named]) == 0
    np.save("y.npy", np.array([0, 1, 2, 1] * 10))
    assert main([*command, "--dtype", "int64", "--labels", "y.npy", "--overwrite", "--json"]) == 0
    assert '"accuracy"' in capsys.readouterr().out
