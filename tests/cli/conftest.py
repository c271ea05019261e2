"""A folder with a small model, its weights and inputs, and a way to call the command line in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mlmc_dropout.cli import main

MODEL = """
from pathlib import Path

import torch
from torch import nn

Path(__file__).with_name("executed").touch()


def make():
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))


def broken():
    raise RuntimeError("this factory is broken\\non two lines")


def none():
    return None


def without_dropout():
    return nn.Linear(1, 1)


number = 3
"""


@dataclass(frozen=True, slots=True)
class Called:
    """What a command line gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: net.py, w.safetensors, w.pt, x.npy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    torch.save(network.state_dict(), tmp_path / "w.pt")
    np.save(tmp_path / "x.npy", np.linspace(0, 1, 7)[:, None])
    return tmp_path


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Called]:
    """``call("plan", "--budget", 100)`` runs the command line in the folder."""

    def run(*arguments: object) -> Called:
        argv = [str(argument) for argument in arguments]
        monkeypatch.setattr("sys.argv", ["mlmc-dropout", *argv])
        code = main(argv)
        captured = capsys.readouterr()
        return Called(code, captured.out, captured.err)

    return run
