"""All nine experiments from end to end, tiny: files, resuming, refusals."""

from __future__ import annotations

import builtins
import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mlmc_dropout.errors import InputError, MissingExtraError
from mlmc_dropout.reproduction import EXPERIMENTS, evidence, reproduce, runner, summary_table
from testing.small_surrogates import forward, load

_RATES = {"highest": 60, "count": 4, "replicates": 4, "moment_passes": 50}
_COST = {"repetitions": 3, "plan_repetitions": 2, "moment_passes": 50, "budget": 120, "step": 4}
TINY: dict[str, dict[str, Any]] = {
    "H": {
        "points": 2,
        "costs": [60, 120],
        "long": {"ladder": [4, 8], "budget": 60},
        "repetitions": 2,
        "reference": 200,
        "check": 50,
    },
    "F1": {"fidelities": [4, 8, 16, 32]},
    "F2": _RATES,
    "F3": {"count": 6, "fidelity": 8, "fidelity_untrained": 4, "replicates": 3},
    "F4": _COST,
    "I1": {"fidelities": [4, 20]},
    "I2": {"fidelities": [4, 20]},
    "I3": _RATES,
    "I4": _COST,
}


def run(ids: list[str], out: Path, **more: Any) -> list[Any]:
    return reproduce(ids, "quick", out, progress=False, load=load, overrides=TINY, **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(evidence.REPETITIONS, "quick", 50)
        patch.setitem(evidence.SIMULATIONS, "quick", 3)
        verdicts = run(["all"], out)
    assert [v.id for v in verdicts] == list(EXPERIMENTS)
    assert len(summary_table(verdicts).splitlines()) == 9
    return out


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_leaves_its_files(finished: Path, name: str) -> None:
    folder = finished / name
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["id"] == name
    assert verdict["verdict"] in ("reproduced", "reproduced with a stated difference", "not reproduced")
    assert verdict["reason"] and verdict["ours"] and verdict["paper"] and verdict["tables"]
    for table in verdict["tables"]:
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "figure.pdf").read_bytes().startswith(b"%PDF")
    rows = list(csv.reader((folder / "numbers.csv").read_text().splitlines()))
    assert len(rows) > 2 and len({len(row) for row in rows}) == 1
    assert not (folder / "partial.jsonl").exists()


def test_summary_says_how_to_run_it_again(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["ids"] == list(EXPERIMENTS)
    assert summary["command"] == f"mlmc-dropout reproduce all --profile quick --out {finished.name}"
    assert {"date", "versions", "profile", "verdicts"} <= set(summary)
    assert json.loads((finished / "evidence.json").read_text())["equal_passes"]["repetitions"] == 50


def test_summary_says_what_was_computed_and_in_what_time(finished: Path) -> None:
    runs = json.loads((finished / "summary.json").read_text())["runs"]
    assert [run["computed"] for run in runs] == [[*EXPERIMENTS, "evidence"]]
    seconds = sum(json.loads((finished / name / "verdict.json").read_text())["seconds"] for name in EXPERIMENTS)
    assert runs[0]["wall_clock_seconds"] >= seconds - 0.05 * len(EXPERIMENTS)
    assert {"date", "versions", "revision"} <= set(runs[0])


def test_runs_are_listed_until_one_computes_everything() -> None:
    before = {"profile": "quick", "runs": [{"computed": ["F1"]}]}

    def computed(*names: str, profile: str = "quick") -> list[list[str]]:
        return [run["computed"] for run in runner._runs(before, profile, {"computed": list(names)})]

    everything = [*EXPERIMENTS, "evidence"]
    assert computed() == [["F1"]]
    assert computed("F2") == [["F1"], ["F2"]]
    assert computed(*everything) == [everything]
    assert computed("F2", profile="paper") == [["F2"]]


def test_numbers_that_are_there_are_not_computed_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (finished / "F2" / "verdict.json").read_bytes()

    def refuse(*_: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setitem(runner.EXPERIMENTS, "F2", dataclasses.replace(EXPERIMENTS["F2"], compute=refuse))
    run(["f2"], finished)
    assert (finished / "F2" / "verdict.json").read_bytes() == before
    with pytest.raises(AssertionError, match="computed again"):
        reproduce(["F2"], "quick", finished, False, load=lambda _: forward(seed=1), overrides=TINY)


def test_same_seed_same_numbers(finished: Path, tmp_path: Path) -> None:
    run(["F2"], tmp_path)
    one, two = (json.loads((out / "F2" / "numbers.json").read_text())["data"] for out in (finished, tmp_path))
    assert one == two


@pytest.mark.parametrize(
    ("ids", "profile", "message"),
    [(["F9"], "quick", "F9"), ([], "quick", "F1, F2"), (["F1"], "fast", "'fast'; use one of quick, paper")],
)
def test_bad_requests_are_refused(ids: list[str], profile: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        reproduce(ids, profile, tmp_path, False, load=load)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match="report"):
        run(["F1"], tmp_path)
