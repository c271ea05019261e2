"""What the user sees while a run goes on."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mlmc_dropout.pinn import Poisson, load_run, start
from mlmc_dropout.pinn.progress import Bar, Lines, Silent, automatic


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_show_losses_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(every_seconds=0.0)
    with lines:
        lines.begin(0, 100)
        lines.update(50, {"total": 0.25, "equation": 0.125})
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("epoch 50/100  total 2.50e-01 equation 1.25e-01  0:00:0")
    assert shown.err.endswith("left\n")


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(every_seconds=1000.0)
    lines.begin(0, 100)
    for done in range(1, 101):
        lines.update(done, {"total": 1.0})
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["1/100", "100/100"]


def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(automatic(), Bar)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(automatic(), Lines)


def test_the_bar_shows_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    command = f"mlmc-dropout train --resume {'folder/' * 12}"
    with Bar() as bar:
        bar.say(command)
        bar.begin(10, 100)
        bar.update(50, {"total": 0.25, "equation": 0.125, "boundary": 0.125, "multiplier": -0.5})
    assert command in screen.getvalue()
    assert "50/100" in screen.getvalue()
    assert "total 2.50e-01" in screen.getvalue()


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_where_compiling_fails_training_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: object, **_: object) -> object:
        def fail(*_: object) -> None:
            raise RuntimeError("no compiler")

        return fail

    config = replace(Poisson.profile("quick"), epochs=20)
    eager = start(config, tmp_path, Silent())
    monkeypatch.setattr(torch, "compile", broken)
    heard = Heard()
    path = start(replace(config, compile=True), tmp_path, heard)
    assert any("torch.compile does not work here (RuntimeError)" in line for line in heard.lines)
    assert (path / "weights.safetensors").read_bytes() == (eager / "weights.safetensors").read_bytes()


def test_without_matplotlib_there_are_no_pictures_but_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    heard = Heard()
    path = start(replace(Poisson.profile("quick"), epochs=20), tmp_path, heard)
    assert any("mlmc-dropout[report]" in line for line in heard.lines)
    assert load_run(path).summary["passes"] == 100
    assert not (path / "loss.png").exists()
