"""Folders that cannot be written, or run full: found before the work, or the results are written elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlmc_dropout as md
from mlmc_dropout.cli import main
from mlmc_dropout.files import TRIAL, check_writable

FACTORY = """
from torch import nn

def wide():
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.Linear(8, 2000))
"""


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """A real file system of a few kilobytes; only root may make one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a file system")
    except FileNotFoundError:
        pytest.skip("needs mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(FACTORY)
    np.save(tmp_path / "x.npy", np.ones((5, 2), dtype=np.float32))
    monkeypatch.chdir(tmp_path)

    def arguments(out: Path) -> list[str]:
        return ["estimate", "--model", "nets.py:wide", "--inputs", "x.npy", "--budget", "64", "--out", str(out)]

    return arguments


def test_a_trial_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["/proc/run", "/sys/run"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(out, request_of, capsys, monkeypatch):
    monkeypatch.setattr(md, "estimate", None)
    assert main(request_of(Path(out))) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_full_disk_is_refused_before_any_work(tmp_path, request_of, capsys, monkeypatch):
    monkeypatch.setattr(md, "estimate", None)
    with small_disk(tmp_path / "disk", f"{TRIAL // 2}") as disk:
        assert main(request_of(disk / "run")) == 2
        assert "No space left on device" in capsys.readouterr().err
        assert list(disk.iterdir()) == []


def test_results_that_do_not_fit_are_written_elsewhere(tmp_path, request_of, capsys, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    with small_disk(tmp_path / "disk", f"{2 * TRIAL}") as disk:
        assert main([*request_of(disk / "run"), "--quiet"]) == 1
        assert not list(disk.rglob("*.part"))
    (place,) = (tmp_path / "elsewhere").glob("run-*")
    printed = capsys.readouterr()
    assert "No space left on device" in printed.err and str(place) in printed.err
    assert md.load_result(place / "result.npz").mean.shape == (5, 2000)
    assert {"result.csv", "run.json", "report.html"} <= {path.name for path in place.iterdir()}


def test_when_nothing_can_be_written_anywhere_the_error_says_so(tmp_path, request_of):
    """A limit on the size of files, which holds everywhere: in a process of its own."""
    code = (
        "import resource, sys; from mlmc_dropout.cli import main; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({2 * TRIAL}, {2 * TRIAL})); sys.exit(main(sys.argv[1:]))"
    )
    call = [sys.executable, "-c", code, *request_of(tmp_path / "run")]
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2 and "could not be written anywhere" in done.stderr, done.stderr
    assert not list(tmp_path.rglob("*.part"))


def test_ctrl_c_is_exit_code_1_as_documented(tmp_path):
    """A real SIGINT to the command as a process."""
    command = "import sys; from mlmc_dropout.cli import main; sys.exit(main())"
    call = [sys.executable, "-c", command, "train", "boundary-layer", "--out", str(tmp_path)]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        while "epoch 1" not in (line := process.stderr.readline()) and line:
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        "epochs are saved, and this goes on with them:\nmlmc-dropout train --resume " in err
        and err.rstrip().endswith("error: stopped")
    )
