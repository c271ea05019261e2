"""Checkpoints: resumed runs end bit for bit as if never interrupted; nothing else is accepted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.errors import CheckpointError
from mlmc_dropout.result import Status
from mlmc_dropout.runtime import checkpoint, collector
from mlmc_dropout.runtime.checkpoint import CheckpointWarning
from mlmc_dropout.runtime.run import Run
from testing.runs import METHODS, digest, small


class Killed(BaseException):
    """Stands for a kill: nothing may be written after it."""


@pytest.fixture
def kill_after(monkeypatch):
    """Raise ``Killed`` when so many pieces have been merged, and let nothing be written after it."""
    accept = Run.accept

    def arm(pieces: int) -> None:
        left = iter(range(pieces))

        def accepting(self, start, states):
            if next(left, None) is None:
                monkeypatch.setattr(checkpoint.CheckpointStore, "flush", lambda *_: None)
                raise Killed
            accept(self, start, states)

        monkeypatch.setattr(Run, "accept", accepting)

    yield arm
    monkeypatch.undo()


def _until_finished(model, x, path, kill_after, monkeypatch, pieces, **arguments):
    """Run, get killed after ``pieces`` pieces, run again, …"""
    for _ in range(200):
        kill_after(pieces)
        try:
            return md.estimate(model, x, checkpoint=path, checkpoint_interval=0.0, **arguments)
        except Killed:
            monkeypatch.undo()
    raise AssertionError("never finished")


@pytest.mark.parametrize("name", METHODS)
def test_killed_after_every_other_task_and_resumed_the_result_is_the_same_bit_for_bit(
    name, tmp_path, kill_after, monkeypatch
):
    model, x = small()
    goal = {"tolerance": 0.012, "tolerance_variance": 0.02, **METHODS[name]}
    expected = md.estimate(model, x, **goal)
    result = _until_finished(model, x, tmp_path / "c", kill_after, monkeypatch, pieces=2, **goal)
    assert digest(result) == digest(expected)
    assert result.metadata == expected.metadata and result.notes == expected.notes


def test_several_batches_are_resumed_each_from_its_own_file(tmp_path, kill_after, monkeypatch):
    model, x = small(rows=9)
    batches = [x[:3], x[3:6], x[6:]]
    expected = md.estimate(model, batches, method="pooled", budget=700)
    result = _until_finished(model, batches, tmp_path / "c", kill_after, monkeypatch, 4, method="pooled", budget=700)
    assert digest(result) == digest(expected)
    assert sorted(p.name for p in tmp_path.iterdir() if "previous" not in p.name) == ["c", "c.1", "c.2"]


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
    model, x = small()
    first = md.estimate(model, x, method="pooled", budget=500, checkpoint=tmp_path / "c")
    monkeypatch.setattr(Run, "take", None)
    again = md.estimate(model, x, method="pooled", budget=500, checkpoint=tmp_path / "c")
    assert digest(again) == digest(first)


@pytest.mark.parametrize("name", METHODS)
def test_a_finished_run_goes_on_to_a_tighter_tolerance_from_its_passes(name, tmp_path):
    model, x = small()
    loose = md.estimate(model, x, tolerance=0.02, checkpoint=tmp_path / "c", **METHODS[name])
    ran = []
    tight = md.estimate(
        model, x, tolerance=loose.mean_stderr.max() / 2, checkpoint=tmp_path / "c", progress=ran.append, **METHODS[name]
    )
    assert tight.status is Status.TOLERANCE_MET
    assert tight.cost > loose.cost and min(event.passes for event in ran) > loose.cost
    wide = 6 * np.hypot(loose.mean_stderr, tight.mean_stderr)
    assert (np.abs(loose.mean - tight.mean) <= wide).all()


def test_a_larger_budget_extends_a_finished_run(tmp_path):
    model, x = small()
    md.estimate(model, x, method="pooled", budget=256, checkpoint=tmp_path / "c")
    extended = md.estimate(model, x, method="pooled", budget=512, checkpoint=tmp_path / "c")
    assert digest(extended) == digest(md.estimate(model, x, method="pooled", budget=512))


def test_a_smaller_budget_returns_what_there_is_but_not_in_mid_round(tmp_path, kill_after, monkeypatch):
    model, x = small()
    kill_after(3)
    with pytest.raises(Killed):
        md.estimate(model, x, method="pooled", budget=1000, checkpoint=tmp_path / "c", checkpoint_interval=0.0)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="raise the budget to 1000"):
        md.estimate(model, x, method="pooled", budget=600, checkpoint=tmp_path / "c")
    md.estimate(model, x, method="pooled", budget=1000, checkpoint=tmp_path / "c")
    assert md.estimate(model, x, method="pooled", budget=600, checkpoint=tmp_path / "c").cost == 1000


def _other_weights(model, x):
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    return {}


def _other_architecture(model, x):
    model[1] = torch.nn.ReLU()
    return {}


def _other_input(model, x):
    x[2, 1] += 1e-6
    return {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_weights, "the model's parameters differ"),
        (_other_architecture, "the model's outputs differ"),
        (_other_input, "the inputs differ"),
        (lambda model, x: {"seed": 1}, r"the seed differs \(it has 0, this run has 1\)"),
        (lambda model, x: {"method": "stratified"}, "the method differs"),
        (lambda model, x: {"method": "mlmc"}, "the method differs"),
        (lambda model, x: {"masks": "shared"}, "the masks differ"),
        (lambda model, x: {"rates": 0.3}, "the choice of dropout sites differs"),
        (lambda model, x: {"transform": torch.exp}, "the model's outputs differ"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_the_reason(change, words, tmp_path):
    model, x = small()
    arguments = {"method": "pooled", "budget": 200, "checkpoint": tmp_path / "c"}
    md.estimate(model, x, **arguments)
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(CheckpointError, match=f"belongs to another run: {words}"):
        md.estimate(model, x, **{**arguments, **change(model, x)})
    assert (tmp_path / "c").read_bytes() == before


@pytest.mark.parametrize("package", ["mlmc_dropout", "torch"])
def test_a_checkpoint_of_another_version_is_refused(package, tmp_path, monkeypatch):
    model, x = small()
    md.estimate(model, x, method="pooled", budget=200, checkpoint=tmp_path / "c")
    known = collector.versions()
    monkeypatch.setattr("mlmc_dropout.runtime.fingerprint.versions", lambda: {**known, package: "0.0.0"})
    with pytest.raises(CheckpointError, match="version differs"):
        md.estimate(model, x, method="pooled", budget=200, checkpoint=tmp_path / "c")


def test_another_ladder_or_other_counts_are_another_run(tmp_path):
    model, x = small()
    md.estimate(model, x, method="mlmc", ladder=(4, 8), budget=200, checkpoint=tmp_path / "c")
    with pytest.raises(CheckpointError, match="method's settings differ"):
        md.estimate(model, x, method="mlmc", ladder=(4, 8, 16), budget=200, checkpoint=tmp_path / "c")


# ------------------------------------------------------------------------------- what is in the file


def test_the_file_is_data_and_nothing_in_it_is_executed(tmp_path):
    model, x = small()
    md.estimate(model, x, method="pooled", budget=200, checkpoint=tmp_path / "c")
    with zipfile.ZipFile(tmp_path / "c") as archive:
        assert all(name.endswith(".npy") for name in archive.namelist())
    with np.load(tmp_path / "c", allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
    (cohort,) = header["cohorts"]
    assert cohort["done"] == {"passes": 200} and cohort["counts"]["passes"] == 200


def test_a_damaged_checkpoint_gives_way_to_the_state_before_it(tmp_path):
    model, x = small()
    path = tmp_path / "c"
    expected = digest(md.estimate(model, x, method="pooled", budget=700))
    md.estimate(model, x, method="pooled", budget=700, checkpoint=path, checkpoint_interval=0.0)
    good = path.read_bytes()
    for damage in (good[: len(good) // 2], good[:300] + b"\xff" * 8 + good[308:], b"", b"not a checkpoint"):
        path.write_bytes(damage)
        with pytest.warns(CheckpointWarning, match="state before"):
            result = md.estimate(model, x, method="pooled", budget=700, checkpoint=path)
        assert digest(result) == expected
        (tmp_path / "c.previous").write_bytes(good)


def test_with_nothing_good_left_the_error_says_what_to_do(tmp_path):
    model, x = small()
    path = tmp_path / "c"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="delete it to start again"):
        md.estimate(model, x, method="pooled", budget=200, checkpoint=path)
    assert path.read_bytes() == b"not a checkpoint"


def test_a_result_file_is_not_a_checkpoint(tmp_path):
    model, x = small()
    path = md.estimate(model, x, method="pooled", budget=200).save(tmp_path / "r.npz")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        md.estimate(model, x, method="pooled", budget=200, checkpoint=path)


@pytest.mark.parametrize("path", ["nowhere/c", "file/c", "folder", "/proc/c"])
def test_an_unwritable_path_is_refused_before_any_work(path, tmp_path, monkeypatch):
    model, x = small()
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(Run, "__init__", None)
    with pytest.raises(CheckpointError, match="cannot write a checkpoint"):
        md.estimate(model, x, method="pooled", budget=200, checkpoint=tmp_path / path)


# ---------------------------------------------------------------------------- when writing goes wrong


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_real_ctrl_c_during_the_write_leaves_a_good_file(moment, tmp_path, monkeypatch):
    """SIGINT is delivered while the new file is being made durable, or just before it takes the old one's place."""
    model, x = small()
    path = tmp_path / "c"
    original, calls = getattr(os, moment), []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*args)

    monkeypatch.setattr(os, moment, interrupted)
    stopped = md.estimate(model, x, method="pooled", budget=2000, checkpoint=path, checkpoint_interval=0.0)
    monkeypatch.undo()
    assert stopped.status is Status.STOPPED and 0 < stopped.cost < 2000
    assert not list(tmp_path.glob("*.part"))
    saved = checkpoint.read(path)
    assert saved is not None and saved.progress.blocks["passes"].count == stopped.cost
    resumed = md.estimate(model, x, method="pooled", budget=2000, checkpoint=path)
    assert digest(resumed) == digest(md.estimate(model, x, method="pooled", budget=2000))


_FULL_DISK = """
    import resource, sys, warnings
    from testing.runs import digest, small
    import mlmc_dropout as md
    from mlmc_dropout.runtime import checkpoint

    model, x = small()
    path = {path!r}
    goal = dict(method="pooled", budget=1000, checkpoint=path, checkpoint_interval=0.0)
    pieces = 0

    def full(event):  # from the fourth piece on, no file can grow beyond a few bytes
        if event.passes > 400:
            {fill}

    from mlmc_dropout.runtime import progress
    progress.Reporter.__init__.__defaults__ = (None, 0.0, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = md.estimate(model, x, progress=full, **goal)
    words = [str(w.message) for w in caught if w.category is checkpoint.CheckpointWarning]
    assert words and "could not be written" in words[0], words
    assert result.status.name == "COMPLETED" and any("could not be written" in note for note in result.notes)
    saved = checkpoint.read(checkpoint.Path(path))
    print(saved.progress.merged, digest(result))
"""


def _run_script(script: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def _check_full_disk(script: str, path: Path, free) -> None:
    merged, printed = _run_script(script)
    model, x = small()
    assert 0 < int(merged) < 8
    free()
    resumed = md.estimate(model, x, method="pooled", budget=1000, checkpoint=path)
    assert digest(resumed) == digest(md.estimate(model, x, method="pooled", budget=1000))
    assert "could not be written" not in " ".join(resumed.notes)
    del printed


def test_a_file_size_limit_stops_the_checkpoints_but_not_the_run(tmp_path):
    fill = "resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))"
    script = _FULL_DISK.format(path=str(tmp_path / "c"), fill=fill)
    _check_full_disk(script, tmp_path / "c", lambda: None)


@pytest.mark.slow
def test_a_real_full_disk_stops_the_checkpoints_but_not_the_run(tmp_path):
    """A file system of its own that runs full in mid-run; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a file system here")
    try:
        fill = f"__import__('os').system('head -c 1000000 /dev/zero > {disk / 'big'} 2> /dev/null')"
        script = _FULL_DISK.format(path=str(disk / "c"), fill=fill)
        _check_full_disk(script, disk / "c", (disk / "big").unlink)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
