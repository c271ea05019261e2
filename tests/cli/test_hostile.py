"""Two hundred bad invocations: one line of error, exit code 2, nothing written, nothing executed."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from testing.cli_bad_values import BAD_INPUTS, BAD_MODELS, BAD_OPTIONS, BAD_OTHERS, BAD_WEIGHTS

COUNT = 200


class _Bomb:
    """Unpickling this creates a file called ``executed``."""

    def __reduce__(self):
        return (open, ("executed", "w"))


@pytest.fixture
def traps(folder: Path) -> Path:
    """Files that only look like inputs and weights."""
    (folder / "bomb.pt").write_bytes(pickle.dumps(_Bomb()))
    torch.save({"weight": _Bomb()}, folder / "bomb.pth")
    (folder / "bomb.safetensors").write_bytes(pickle.dumps(_Bomb()))
    np.save(folder / "bomb.npy", np.array([_Bomb()], dtype=object), allow_pickle=True)
    (folder / "raw.npy").write_bytes(pickle.dumps(_Bomb()))
    np.savez(folder / "bomb.npz", x=np.array([_Bomb()], dtype=object))
    (folder / "huge.npy").write_bytes((folder / "x.npy").read_bytes().replace(b"(7, 1)", b"(9**9, 9**9)"))
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:-20])
    (folder / "latin.csv").write_bytes("größe\n1\n".encode("latin-1"))
    (folder / "utf16.csv").write_bytes("a\n1\n".encode("utf-16"))
    (folder / "words.csv").write_text("a,b\n1,zwei\n")
    (folder / "nan.csv").write_text("nan\n1\n")
    (folder / "empty.csv").write_text("")
    (folder / "cut.safetensors").write_bytes((folder / "w.safetensors").read_bytes()[:50])
    (folder / "not.parquet").write_text("PAR1")
    (folder / "strings.npy").write_bytes(b"")
    np.save(folder / "text.npy", np.array(["a", "b"]))
    np.save(folder / "scalar.npy", np.float64(3))
    np.save(folder / "wide.npy", np.zeros((4, 3)))
    torch.save({"other": torch.zeros(2)}, folder / "other.pt")
    (folder / "file").write_text("a file")
    (folder / "bad.toml").write_text("epochs = [")
    (folder / "odd.toml").write_text("colour = 3\n")
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").write_text("precious")
    (folder / "executed").unlink(missing_ok=True)
    return folder


def _estimate(**changes: str) -> list[str]:
    chosen = {
        "model": "net.py:make",
        "inputs": "x.npy",
        "weights": "w.safetensors",
        "out": "run",
        "budget": "64",
        **changes,
    }
    return ["estimate", *(part for name, value in chosen.items() for part in (f"--{name}", value))]


def _invocations() -> Iterator[list[str]]:
    """Every bad value on its own, then random mixtures of them up to the count."""
    yield from (_estimate(model=model) for model in BAD_MODELS)
    yield from (_estimate(inputs=inputs) for inputs in BAD_INPUTS)
    yield from (_estimate(weights=weights) for weights in BAD_WEIGHTS)
    yield from ([*_estimate(), *options] for options in BAD_OPTIONS)
    yield from (list(other) for other in BAD_OTHERS)
    draw = random.Random(0)
    while True:
        mixed = _estimate(
            model=draw.choice(BAD_MODELS), inputs=draw.choice(BAD_INPUTS), weights=draw.choice(BAD_WEIGHTS)
        )
        yield [*mixed, *draw.choice(BAD_OPTIONS)]


CASES = [case for case, _ in zip(_invocations(), range(COUNT), strict=False)]


def _listing(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def test_two_hundred_bad_invocations(call, traps):
    assert len(CASES) == COUNT
    before = _listing(traps)
    for case in CASES:
        called = call(*case)
        assert called.code == 2, (case, called)
        assert called.out == "", case
        lines = called.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), (case, called.err)
        assert len(lines[0]) < 700 and lines[0].isprintable(), case
        after = _listing(traps)
        imported = after.pop("executed", None) is not None and "executed" not in before
        assert after == before, (case, after.keys() ^ before.keys())
        if imported:  # the user's own file may run, when it is what --model or --transform names
            assert any("net.py" in part or part.startswith("net:") for part in case), case
            (traps / "executed").unlink()


def test_a_bad_request_is_refused_before_the_users_model_is_imported(call, traps):
    """Negative control for the test above: the marker appears for a good request, and only then."""
    for case in (
        _estimate(inputs="bomb.npy"),
        _estimate(weights="bomb.pt"),
        _estimate(budget="0"),
        _estimate(out="full"),
    ):
        assert call(*case).code == 2
        assert not (traps / "executed").exists()
    assert call(*_estimate()).code == 0
    assert (traps / "executed").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [_estimate(weights="bomb.pt"), _estimate(inputs="latin.csv"), ["plan", "--budget", "1e300"]]
)
def test_the_same_in_a_process_of_its_own(case, traps):
    before = _listing(traps)
    command = [sys.executable, "-c", "import sys; from mlmc_dropout.cli import main; sys.exit(main())", *case]
    done = subprocess.run(command, capture_output=True, timeout=120, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: ") and done.stderr.count(b"\n") == 1
    assert _listing(traps) == before
