"""Checkpoints and result files that were damaged or edited: what comes of them.

Random damage hits the bytes of a file: bits flipped, bytes overwritten, parts cut out, zeroed, repeated or appended.
Structural damage is what somebody does who opens the file with NumPy, changes something and saves it: entries of the
header removed or replaced, arrays removed, reshaped, converted, filled with other numbers; half of the time the digest
of the content is renewed as well, so that only checks of the values themselves are left.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mlmc_dropout as md
from mlmc_dropout.errors import MLMCDropoutError
from mlmc_dropout.evaluation.result import _digest as _json_digest
from mlmc_dropout.evaluation.run import EvaluationRun
from mlmc_dropout.files import digest as content_digest
from testing.runs import digest, small

__all__ = ["Files"]

Call = Callable[..., Any]
CASES: dict[str, tuple[Call, dict[str, Any]]] = {  # at the end, in mid-round, and of runs that keep more than moments
    "pooled": (md.estimate, {"method": "pooled", "budget": 600}),
    "control-variate": (md.estimate, {"method": "control-variate", "budget": 600}),
    "adaptive": (md.estimate, {"method": "mlmc", "ladder": "adaptive", "tolerance": 0.02}),
    "classes": (md.estimate, {"method": "pooled", "outputs": "logits", "budget": 600}),
    "coarse": (md.estimate, {"method": "control-variate", "outputs": "logits", "budget": 600}),
    "effort": (md.estimate, {"method": "pooled", "effort": "adaptive", "tolerance": 0.02}),
    "decision": (md.estimate, {"outputs": "logits", "decision": "label", "confidence": 0.99, "budget": 600}),
    "evaluate": (md.evaluate, {"metrics": ("entropy", "mutual_information"), "tolerance": 0.1}),
    "evaluate, stopped": (md.evaluate, {"metrics": ("entropy",), "tolerance": 0.02}),
}
ENTERTAINED = 2  # events after which an evaluation is stopped

Arrays = dict[str, np.ndarray]


class Files:
    """Good files to be corrupted, and what they lead to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model, self._x = small()
        self._good: dict[tuple[str, str], bytes] = {}
        self._expected: dict[str, str] = {}
        for name, (call, _) in CASES.items():
            result = self._run(name, folder / "c")
            self._expected[name] = _digest(result)
            if name == "evaluate, stopped":
                (folder / "c").unlink()
                self._stop_early(name, folder / "c")
            self._good["checkpoint", name] = (folder / "c").read_bytes()
            saved = result.save(folder / ("r.npz" if call is md.estimate else "r.json"))
            self._good["result" if call is md.estimate else "evaluation", name] = saved.read_bytes()
            self._remove()

    def _run(self, name: str, checkpoint: Path, **more: Any) -> Any:
        call, arguments = CASES[name]
        x = self._x if call is md.estimate else self._many()
        return call(self._model, x, checkpoint=checkpoint, **arguments, **more)

    def _many(self) -> torch.Tensor:
        return small(rows=300)[1]

    def _stop_early(self, name: str, checkpoint: Path) -> None:
        """Leave a checkpoint of a round that is under way."""
        merged: list[int] = []

        def stop(*_: Any) -> None:
            merged.append(1)
            if len(merged) == ENTERTAINED:
                raise KeyboardInterrupt

        before = EvaluationRun._tell
        EvaluationRun._tell = stop  # type: ignore[method-assign]
        try:
            with contextlib.suppress(KeyboardInterrupt):
                self._run(name, checkpoint)
        finally:
            EvaluationRun._tell = before  # type: ignore[method-assign]

    def _remove(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()

    def outcomes(self, kind: str, count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
        """The kind of each corrupted file and how it ended: "refused", "same", "different" or a raw error."""
        draw = random.Random(f"{kind} {seed}")
        for number in range(seed * count, (seed + 1) * count):
            file, name = [*self._good][number % len(self._good)]
            data = self._good[file, name]
            resigned = kind == "structural" and draw.random() < 0.5
            corrupt = self._edited(file, data, draw, resigned) if kind == "structural" else _damaged(data, draw)
            yield file + (", digest renewed" if resigned else ""), self._read(file, name, corrupt)

    def _read(self, file: str, name: str, data: bytes) -> str:
        path = self._folder / {"checkpoint": "c", "result": "r.npz", "evaluation": "r.json"}[file]
        path.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                if file == "checkpoint":
                    result = self._run(name, path)
                else:
                    result = (md.load_result if file == "result" else md.load_evaluation)(path)
        except MLMCDropoutError:
            return "refused"
        except Exception as error:
            return f"raw {type(error).__name__}: {error}"
        finally:
            self._remove()
        return "same" if _digest(result) == self._expected[name] else "different"

    def _edited(self, file: str, data: bytes, draw: random.Random, resigned: bool) -> bytes:
        if file == "evaluation":
            return _edited_json(data, draw, resigned)
        path = self._folder / "edited.npz"
        path.write_bytes(data)
        with np.load(path) as archive:
            arrays: Arrays = dict(archive)
        header = json.loads(str(arrays.pop("header")))
        signature = header.pop("digest")
        before = copy.deepcopy(header)
        while header == before and not draw.choice(EDITS)(header, arrays, draw):
            pass
        if resigned:
            signature = content_digest(header, arrays)
        np.savez(path, header=np.array(json.dumps({**header, "digest": signature})), **arrays)
        edited = path.read_bytes()
        path.unlink()
        return edited


def _edited_json(data: bytes, draw: random.Random, resigned: bool) -> bytes:
    """An evaluation is a file of text."""
    plain = json.loads(data)
    signature = plain.pop("digest")
    before = copy.deepcopy(plain)
    while plain == before:
        _entry(plain, {}, draw)
    return json.dumps({**plain, "digest": _json_digest(plain) if resigned else signature}).encode()


def _digest(result: Any) -> str:
    """A hash of everything a result or an evaluation says."""
    if isinstance(result, md.Result):
        return digest(result)
    return repr((result.estimates, result.levels, result.cost, result.rows, result.status, result.method, result.seed))


def _damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes with damage at a random place."""
    at, length = draw.randrange(len(data)), draw.randint(1, 64)
    rest = data[at + length :]
    match draw.randrange(6):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at] + draw.randbytes(length) + rest
        case 2:
            return data[:at]
        case 3:
            return data[:at] + rest
        case 4:
            return data[:at] + bytes(min(length, len(data) - at)) + rest
        case _:
            return data[: at + length] + data[at : at + length] + rest


# Edits return whether they have changed an array. What they change is never within what a run could have left behind by
# itself: a mean moved by a little, with a renewed digest, is a forgery that no check of values can find.


def _entry(header: dict[str, Any], arrays: Arrays, draw: random.Random) -> bool:
    """An entry of the header, at any depth, is removed or becomes something else."""
    holder: Any = header
    while True:
        keys = [*holder] if isinstance(holder, dict) else [*range(len(holder))]
        key = draw.choice(keys)
        inside = holder[key]
        if isinstance(inside, (dict, list)) and inside and draw.random() < 0.7:
            holder = inside
            continue
        break
    if draw.random() < 0.3:
        del holder[key]
        return False
    value = draw.choice(VALUES)
    other = -1 if isinstance(inside, str) else "text"
    holder[key] = other if _plausible(inside, value) else value
    return False


def _plausible(before: Any, value: Any) -> bool:
    """Whether a run could have left the value by itself: a name for a name, a measured number for another."""
    if before is None or isinstance(before, float):
        return value is None or isinstance(value, (int, float))
    return isinstance(before, str) and isinstance(value, str)


VALUES = [None, True, -1, 0.5, 1e308, 10**30, "text", "", [], {}, [1, "a"], {"a": 1}, float("nan"), float("inf")]


def _array(change: Callable[[np.ndarray, random.Random], np.ndarray]) -> Callable[..., bool]:
    def edit(header: dict[str, Any], arrays: Arrays, draw: random.Random) -> bool:
        name = draw.choice([name for name, values in arrays.items() if values.ndim])
        before = arrays[name]
        arrays[name] = change(before, draw)
        return arrays[name].shape != before.shape or arrays[name].tobytes() != before.tobytes()

    return edit


def _remove(header: dict[str, Any], arrays: Arrays, draw: random.Random) -> bool:
    mandatory = [name for name in arrays if "reliable" not in name and "level" not in name and "S2" not in name]
    del arrays[draw.choice(mandatory or [*arrays])]
    return True


def _add(header: dict[str, Any], arrays: Arrays, draw: random.Random) -> bool:
    arrays[draw.choice(["more", "passes/more", "level9.mean"])] = np.zeros((5, 2))
    return True


def _put(value: float) -> Callable[..., bool]:
    def change(values: np.ndarray, draw: random.Random) -> np.ndarray:
        values = values.astype(np.float64)
        values.flat[draw.randrange(values.size)] = value
        return values

    def edit(header: dict[str, Any], arrays: Arrays, draw: random.Random) -> bool:
        measured = ("mean", "variance", "moments", "cross", "within", "means", "s2")
        name = draw.choice([n for n in arrays if n.rpartition("/")[2] in measured])
        arrays[name] = change(arrays[name], draw)
        return True

    return edit


EDITS: list[Callable[..., bool]] = [
    *[_entry] * 6,
    _array(lambda values, draw: values[:-1]),
    _array(lambda values, draw: values[:1]),
    # a square array keeps its shape, and measured numbers in another order are a forgery that nobody can see
    _array(lambda values, draw: values.T if values.shape != values.T.shape else values[:-1]),
    _array(lambda values, draw: values[..., None]),
    _array(lambda values, draw: values.ravel()),
    _array(lambda values, draw: values.astype(np.complex128)),
    _array(lambda values, draw: values.astype(str)),
    _array(lambda values, draw: np.zeros(0)),
    _put(float("nan")),
    _put(float("-inf")),
    _remove,
    _add,
]
