"""Streams, executors, checkpoints: the same bits however the inputs come and whoever runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mlmc_dropout as md
from mlmc_dropout.evaluation.data import DataSet, Slice, blocks_of, random_numbers
from mlmc_dropout.evaluation.progress import EvaluationEvent
from tests.evaluation.conftest import Enumerated, make_enumerated

SETTINGS = {"metrics": ("entropy", "nll"), "tolerance": 0.05, "seed": 3}


def _numbers(found: md.Evaluation) -> list[float]:
    values = [x for one in found.estimates.values() for x in (one.value, one.stderr, one.bias)]
    return [*values, found.cost, *(level.variance["entropy"] for level in found.levels)]


@pytest.fixture(scope="module")
def many() -> Enumerated:
    return make_enumerated(5000)


@pytest.fixture(scope="module")
def usual(many: Enumerated) -> md.Evaluation:
    return md.evaluate(many.model, many.x, many.y, **SETTINGS)


@pytest.mark.parametrize("size", [64, 1111])
def test_a_loader_gives_the_bits_of_the_array(many: Enumerated, usual: md.Evaluation, size: int) -> None:
    loader = DataLoader(TensorDataset(many.x, torch.from_numpy(many.y)), batch_size=size)
    assert _numbers(md.evaluate(many.model, loader, **SETTINGS)) == _numbers(usual)


def test_threads_give_the_same_bits(many: Enumerated, usual: md.Evaluation) -> None:
    with ThreadPoolExecutor(3) as pool:
        assert _numbers(md.evaluate(many.model, many.x, many.y, executor=pool, **SETTINGS)) == _numbers(usual)


def test_processes_give_the_same_bits_also_for_lambdas(many: Enumerated) -> None:
    confidence = md.Metric("confidence", lambda expected, y: expected["probabilities"].max(axis=-1))
    settings = {"metrics": ("entropy", confidence), "budget": 2, "seed": 3}
    alone = md.evaluate(many.model, many.x, **settings)
    assert _numbers(md.evaluate(many.model, many.x, executor=2, **settings)) == _numbers(alone)


def test_an_iterator_is_read_once(many: Enumerated) -> None:
    batches = (part for part in many.x.split(500))
    found = md.evaluate(many.model, batches, metrics=("entropy",), budget=12)
    assert found.rows == 5000
    assert 6 < found.cost <= 12
    exact = many.exact()["entropy"]
    assert abs(found["entropy"].value - exact) < 4 * found["entropy"].error
    with pytest.raises(md.MLMCDropoutError, match="needs budget="):
        md.evaluate(many.model, iter([many.x]), metrics=("entropy",), tolerance=0.1)
    with pytest.raises(md.MLMCDropoutError, match="empty"):
        md.evaluate(many.model, [], metrics=("entropy",), tolerance=0.1)


def test_a_loader_that_changes_is_refused(many: Enumerated) -> None:
    class Shrinking:
        def __init__(self) -> None:
            self.left = 4

        def __iter__(self):
            self.left -= 1
            return iter(many.x.split(500)[: self.left])

    with pytest.raises(md.MLMCDropoutError, match="same order every time"):
        md.evaluate(many.model, Shrinking(), metrics=("entropy",), tolerance=0.02)


def test_rows_are_taken_without_replacement_and_do_not_depend_on_batches(many: Enumerated) -> None:
    sampler = md.DropoutSampler(many.model)
    parts = [Slice(2, 0.0, 0.3, 0), Slice(2, 0.3, 0.35, 1)]
    seen = {}
    for name, x in (("array", many.x), ("batches", list(many.x.split(77)))):
        blocks = list(blocks_of(DataSet(sampler, x), parts, seed=1, width=3))
        assert min(block.batch.rows for block in blocks) > 1
        rows = [torch.cat([b.batch.args[0] for b in blocks if b.slice == part]) for part in parts]
        seen[name] = rows
    for one, other in zip(seen["array"], seen["batches"], strict=True):
        assert torch.equal(one, other)
    taken = torch.cat(seen["array"])
    assert len(taken.unique(dim=0)) == len(taken)
    assert abs(len(taken) - 0.35 * 5000) < 4 * np.sqrt(5000 * 0.35 * 0.65)
    u = random_numbers(1, 2, 0, 0, 5000)
    assert len(taken) == int((u < 0.35).sum())


def test_progress_is_shown(many: Enumerated, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[object] = []
    md.evaluate(many.model, many.x, metrics=("entropy",), tolerance=0.1, progress=events.append)
    assert events
    assert "passes per input" in str(events[-1])
    md.evaluate(many.model, many.x, metrics=("entropy",), tolerance=0.1, progress=True)
    assert "5000 inputs" in capsys.readouterr().err


def test_progress_says_what_is_planned_and_leaves_no_line_on_a_terminal(
    many: Enumerated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(EvaluationEvent(11.04, 10.9, 1, 120, 0.2)) == (
        "11 of about 11 passes per input in this round, 120 inputs, 1 level, 0 s"
    )
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    md.evaluate(many.model, many.x, metrics=("entropy",), tolerance=0.1, progress=True)
    *lines, last = capsys.readouterr().err.split("\r\x1b[2K")
    assert lines[1:] and last == "" and all("\n" not in line and len(line) < 40 for line in lines)


def test_a_checkpoint_extends_and_belongs_to_its_evaluation(many: Enumerated, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    coarse = md.evaluate(many.model, many.x, many.y, checkpoint=path, **{**SETTINGS, "tolerance": 0.2})
    fine = md.evaluate(many.model, many.x, many.y, checkpoint=path, **SETTINGS)
    assert fine.cost > coarse.cost
    with pytest.raises(md.MLMCDropoutError, match="another evaluation"):
        md.evaluate(many.model, many.x, many.y, checkpoint=path, **{**SETTINGS, "seed": 4})
    other = np.asarray(many.y).copy()
    other[-1] = 1 - other[-1]
    with pytest.raises(md.CheckpointError, match="the labels differ"):
        md.evaluate(many.model, many.x, other, checkpoint=path, **SETTINGS)
    moved = many.x.clone()
    moved[-1] += 1.0
    with pytest.raises(md.CheckpointError, match="the inputs differ"):
        md.evaluate(many.model, moved, many.y, checkpoint=path, **SETTINGS)
    path.write_bytes(b"nothing")
    with pytest.raises(md.MLMCDropoutError, match="damaged"):
        md.evaluate(many.model, many.x, many.y, checkpoint=path, **SETTINGS)
    with pytest.raises(md.MLMCDropoutError, match="no folder"):
        md.evaluate(many.model, many.x, many.y, checkpoint=tmp_path / "none" / "run", **SETTINGS)


SCRIPT = """
import json, sys, time, torch
import mlmc_dropout as md
from tests.evaluation.conftest import make_enumerated
net = make_enumerated(4)
class Generated:  # inputs made on the way, never all at once
    def __iter__(self):
        for part in range(ROWS // 1000):
            generator = torch.Generator().manual_seed(part)
            yield torch.randn(1000, 2, generator=generator)
def slow(event):
    if PAUSE:
        print("event", flush=True)
        time.sleep(PAUSE)
found = md.evaluate(net.model, Generated(), metrics=("entropy",), budget=6, seed=5, checkpoint=sys.argv[1],
                    checkpoint_interval=0, progress=slow)
import resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
one = found["entropy"]
print(json.dumps([one.value, one.stderr, one.bias, found.cost, [level.count for level in found.levels], peak]))
"""


def _run(rows: int, pause: float, path: Path, kill: bool = False) -> list:
    script = SCRIPT.replace("ROWS", str(rows)).replace("PAUSE", str(pause))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    if kill:
        for _ in range(2):
            assert child.stdout.readline() == "event\n"
        time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        return []
    out, _ = child.communicate()
    assert child.returncode == 0
    return json.loads(out.strip().splitlines()[-1])


def _kill_and_resume(rows: int, tmp_path: Path) -> tuple[list, list]:
    whole = _run(rows, 0, tmp_path / "whole")
    _run(rows, 0.6, tmp_path / "killed", kill=True)
    assert (tmp_path / "killed").exists()
    resumed = _run(rows, 0, tmp_path / "killed")
    assert resumed[:-1] == whole[:-1]
    return whole, resumed


@pytest.mark.slow
def test_killed_and_resumed_to_the_same_bits_in_flat_memory(tmp_path: Path) -> None:
    small, _ = _kill_and_resume(20_000, tmp_path)
    (tmp_path / "large").mkdir()
    large, _ = _kill_and_resume(200_000, tmp_path / "large")
    assert large[-1] - small[-1] < 60, (small[-1], large[-1])  # MiB: ten times the inputs


def test_stopped_anywhere_and_resumed_to_the_same_bits(many: Enumerated, usual: md.Evaluation, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    for last in (1, 2, 4):
        seen = []

        def stop(event: object, last: int = last, seen: list[object] = seen) -> None:
            seen.append(event)
            if len(seen) > last:
                raise Stop

        path = tmp_path / f"{last}.ckpt"
        with pytest.raises(Stop):
            md.evaluate(many.model, many.x, many.y, checkpoint=path, progress=stop, **SETTINGS)
        assert path.exists()
        again = md.evaluate(many.model, many.x, many.y, checkpoint=path, **SETTINGS)
        assert _numbers(again) == _numbers(usual)
