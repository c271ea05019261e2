"""Units of work are remembered, and files are written whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlmc_dropout.reproduction import storage
from mlmc_dropout.reproduction.verdict import Table
from mlmc_dropout.reproduction.work import Bar, Lines, Work


def test_interrupted_work_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, calls = tmp_path / "x" / "partial.jsonl", []

    def unit(item: int) -> int:
        calls.append(item)
        if item == 2 and calls.count(2) == 1:
            raise KeyboardInterrupt
        return item * item

    with pytest.raises(KeyboardInterrupt):
        Work(path, "a", "X", None).each("squares", range(4), unit)
    with path.open("a") as file:
        file.write('["squares 2", 4')  # a kill in the middle of a line
    assert Work(path, "a", "X", None).each("squares", range(4), unit) == [0, 1, 4, 9]
    assert calls == [0, 1, 2, 2, 3]
    assert Work(path, "b", "X", None).each("squares", range(2), unit) == [0, 1]
    assert calls == [0, 1, 2, 2, 3, 0, 1], "another fingerprint starts anew"


def test_progress_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for show in (Lines(), Bar()):
        work = Work(tmp_path / "p", "a", "F2", show)
        work.each("fidelities", [1, 2], lambda item: item)
        work.forget()
    shown = capsys.readouterr().err
    assert "F2 fidelities  0/2" in shown and "2/2  F2 fidelities" in shown


def test_json_is_read_back_as_written(tmp_path: Path) -> None:
    data = {"a": [1, 2.5, None], "b": {"c": [[1], {"d": "‖S²‖"}], "e": {}}, "f": np.bool_(True), "g": []}
    storage.write_json(tmp_path / "x.json", data)
    assert json.loads((tmp_path / "x.json").read_text()) == {**data, "f": True}
    assert storage.read_json(tmp_path / "x.json") == {**data, "f": True}
    assert storage.read_json(tmp_path / "none.json") is None
    (tmp_path / "bad.json").write_text("{")
    assert storage.read_json(tmp_path / "bad.json") is None


def test_csv(tmp_path: Path) -> None:
    storage.write_csv(tmp_path / "x.csv", Table("", ("a", "b"), ((1, 0.1), ("u", 1e-20))))
    assert (tmp_path / "x.csv").read_text() == "a,b\n1,0.1\nu,1e-20\n"
