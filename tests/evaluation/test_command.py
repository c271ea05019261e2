"""``mlmc-dropout evaluate`` and its page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mlmc_dropout as md
from mlmc_dropout.cli import main

MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(300, 2)).astype(np.float32))
    np.save("y.npy", rng.integers(3, size=300))
    return tmp_path


COMMAND = ["evaluate", "--model", "net.py:make", "--inputs", "x.npy", "--out", "run"]


def test_files_and_page_say_what_the_library_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*COMMAND, "--labels", "y.npy", "--metrics", "nll,entropy", "--tolerance", "0.1", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert code == 0
    found = md.load_evaluation(folder / "run" / "evaluation.json")
    assert printed["estimates"]["nll"]["value"] == found["nll"].value
    assert found.metadata["tolerance"] == 0.1
    lines = (folder / "run" / "evaluation.csv").read_text().splitlines()
    assert len(lines) == 3
    assert float(lines[1].split(",")[1]) == found["nll"].value
    page = (folder / "run" / "report.html").read_text()
    for text in ("Averages over the data set", "Levels of the negative log-likelihood", "Measured rates"):
        assert text in page
    assert "mutual" not in page
    assert main(["report", "run", "--out", "again.html"]) == 0
    assert (folder / "again.html").read_text() == page


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--metrics", "nll", "--budget", "9"], "give --labels"),
        (["--metrics", "entropi", "--budget", "9"], "no metric 'entropi'"),
        (["--outputs", "logit", "--budget", "9"], "unknown outputs"),
        ([], "say when to stop: --tolerance, or --budget in passes"),
        (["--budget", "-3"], "positive number"),
        (["--budget", "nan"], "number"),
        (["--tolerance", "0"], "tolerance is a positive number"),
        (["--method", "best", "--budget", "9"], "unknown method"),
        (["--passes", "3", "--method", "plug-in"], "power of 2"),
        (["--labels", "no.npy", "--budget", "9"], "--labels: there is no file 'no.npy'"),
        (["--inputs", "no.npy", "--budget", "9"], "--inputs: there is no file 'no.npy'"),
        (["--class-names", "no.txt", "--budget", "9"], "--class-names: there is no file 'no.txt'"),
        (["--class-axis", "0", "--budget", "9"], "axis 0 are the inputs"),
        (["--class-axis", "1", "--outputs", "values", "--budget", "9"], "--class-axis belongs to --outputs logits or"),
        (["--dtype", "int3", "--budget", "9"], "unknown --dtype 'int3'"),
    ],
)
def test_bad_requests_are_refused_before_the_model_is_imported(
    folder: Path, capsys: pytest.CaptureFixture[str], extra: list[str], message: str
) -> None:
    (folder / "net.py").write_text("raise SystemExit('imported')")
    assert main([*COMMAND, *extra]) == 2
    captured = capsys.readouterr()
    assert message in captured.err.replace("\n", " ")
    assert not (folder / "run").exists()


def test_the_metric_that_costs_most_is_named_with_what_the_others_take(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*COMMAND, "--labels", "y.npy", "--tolerance", "0.1"]
    assert main([*asked, "--metrics", "entropy,ece,brier"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    start, _, rest = said.partition("ece needed the most passes: ")
    assert "note: " in start and "to leave it out, give --metrics entropy,brier." in rest
    spent, few = (float(word) for word in (rest.split()[0], rest.partition("takes roughly ")[2].split(";")[0]))
    assert spent == pytest.approx(md.load_evaluation("run/evaluation.json").cost, rel=0.05)
    assert main([*asked, "--metrics", "entropy,brier", "--overwrite"]) == 0
    assert "needed the most" not in capsys.readouterr().err
    assert few / 4 < md.load_evaluation("run/evaluation.json").cost < 4 * few < spent


def test_a_run_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--metrics", "entropy", "--budget", "8", "--quiet"]) == 0
    assert main([*COMMAND, "--metrics", "entropy", "--budget", "8"]) == 2
    assert "--overwrite" in capsys.readouterr().err
