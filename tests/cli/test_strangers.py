"""What somebody new runs into: no weights, tables of tokens, labels, a narrow terminal, a first look at the help."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import mlmc_dropout as md
from mlmc_dropout.cli.console import TextTable
from mlmc_dropout.cli.inputs import read_feature_names, read_inputs
from mlmc_dropout.errors import InputError

NETS = """
import torch
from torch import nn

def random():
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))

def loaded():
    net = random()
    net.load_state_dict(torch.load("w.pt", weights_only=True))
    return net

def tokens():
    return nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(12, 3))

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = tokens()

    def forward(self, input_ids, attention_mask):
        return self.net(input_ids * attention_mask)

made = random()
"""


@pytest.fixture
def nets(folder: Path) -> Path:
    (folder / "nets.py").write_text(NETS, encoding="utf-8")
    return folder


def info(folder: Path, name: str) -> dict[str, object]:
    return json.loads((folder / name / "run.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------ weights


def test_random_weights_are_warned_of_named_and_the_same_every_time(call, nets):
    request = ("estimate", "--model", "nets.py:random", "--inputs", "x.npy", "--budget", 64)
    called = [call(*request, "--out", name) for name in ("a", "b")]
    assert all("warning: the model has random weights" in one.err for one in called)
    a, b = (md.load_result(nets / name / "result.npz") for name in ("a", "b"))
    np.testing.assert_array_equal(a.mean, b.mean)
    assert info(nets, "a")["weights"] == info(nets, "b")["weights"]
    assert str(info(nets, "a")["weights"]) in (nets / "a" / "report.html").read_text(encoding="utf-8")
    call(*request, "--out", "c", "--seed", 1)
    assert info(nets, "c")["weights"] != info(nets, "a")["weights"]


def test_trained_weights_are_not_warned_of(call, nets):
    common = ("--inputs", "x.npy", "--budget", 64, "--out")
    given = call("estimate", "--model", "nets.py:random", "--weights", "w.pt", *common, "given")
    loaded = call("estimate", "--model", "nets.py:loaded", *common, "loaded")
    assert "weights" not in given.err and "weights" not in loaded.err
    assert info(nets, "given")["weights"] == info(nets, "loaded")["weights"]
    made = call("estimate", "--model", "nets.py:made", *common, "made")
    assert "no --weights were given" in made.err  # nobody can tell


def test_the_global_generator_is_left_alone(call, nets):
    before = torch.random.get_rng_state()
    assert call("estimate", "--model", "nets.py:random", "--inputs", "x.npy", "--budget", 64, "--out", "a").code == 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_next_command_after_training_works(call, folder):
    (folder / "c.toml").write_text('profile = "quick"\nepochs = 20\n')
    text = call("train", "boundary-layer", "--config", "c.toml", "--out", "runs").out
    command = shlex.split(re.search(r"next:\nmlmc-dropout (.+?)\nwhere", text, re.DOTALL)[1].replace("\\\n", " "))
    np.save("x.npy", np.linspace(0, 1, 20)[:, None])
    called = call(*command)
    assert called.code == 0, called.err
    assert "weights" not in called.err


# ------------------------------------------------------------------------------------------ inputs

IDS = np.arange(12).reshape(4, 3) % 20


def test_token_ids_from_tables(call, nets):
    np.savetxt("ids.csv", IDS, fmt="%d", delimiter=",")
    np.savetxt("floats.csv", IDS, fmt="%.1f", delimiter=",")
    pd.DataFrame(IDS).rename(columns=str).to_parquet("ids.parquet")
    pd.DataFrame({"ids": IDS.tolist()}).to_parquet("lists.parquet")
    pd.DataFrame({"input_ids": IDS.tolist(), "attention_mask": np.ones_like(IDS).tolist()}).to_parquet("named.parquet")
    common = ("--budget", 64, "--method", "pooled", "--quiet", "--out")
    cases = {
        "csv": ("nets.py:tokens", "ids.csv", ()),
        "parquet": ("nets.py:tokens", "ids.parquet", ()),
        "lists": ("nets.py:tokens", "lists.parquet", ()),
        "named": ("nets.py:Named", "named.parquet", ()),
        "dtype": ("nets.py:tokens", "floats.csv", ("--dtype", "int64")),
    }
    for name, (model, inputs, options) in cases.items():
        called = call("estimate", "--model", model, "--inputs", inputs, *common, name, *options)
        assert called.code == 0, (name, called.err)
    means = [md.load_result(nets / name / "result.npz").mean for name in cases]
    assert all(np.array_equal(mean, means[0]) for mean in means)
    refused = call("estimate", "--model", "nets.py:tokens", "--inputs", "floats.csv", *common, "no")
    assert refused.code == 2 and "--dtype int64" in refused.err


def test_whole_numbers_of_a_table_reach_a_network_of_floats(call, nets):
    (nets / "x.csv").write_text("age\n1\n2\n3\n")
    called = call("estimate", "--model", "nets.py:random", "--inputs", "x.csv", "--budget", 64, "--out", "a")
    assert called.code == 0, called.err
    assert read_feature_names(Path("x.csv")) == ("age",)
    assert "(age 1)" in (nets / "a" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("dtype", "shown"), [("int64", "not whole"), ("int", "unknown --dtype 'int'")])
def test_conversions_that_would_lose_something_are_refused(dtype, shown, folder):
    np.save("half.npy", np.array([[0.5]]))
    with pytest.raises(InputError, match=shown):
        read_inputs(Path("half.npy"), dtype)


def test_labels_and_class_names_reach_the_page(call, folder):
    np.save("y.npy", np.arange(7) % 2)
    Path("names.txt").write_text("cat\ndog\n")
    good = ("estimate", "--model", "net.py:make", "--weights", "w.pt", "--inputs", "x.npy", "--budget", 64)
    called = call(*good, "--labels", "y.npy", "--class-names", "names.txt", "--out", "a")
    assert called.code == 0 and "\ndog " in called.out
    assert "Accuracy of the mean prediction: " in called.out and "% of 7 true labels." in called.out
    text = (folder / "a" / "report.html").read_text(encoding="utf-8")
    assert "Accuracy" in text and "dog" in text
    np.save("few.npy", np.arange(6))
    refused = call(*good, "--labels", "few.npy", "--out", "b")
    assert refused.code == 2 and "6 labels for 7 inputs" in refused.err and not (folder / "b").exists()
    Path("one.txt").write_text("cat\n")  # how many classes there are is known at the end only: the results stay
    called = call(*good, "--labels", "y.npy", "--class-names", "one.txt", "--out", "b")
    assert called.code == 0 and "1 class names for 2" in called.err
    assert "Accuracy" in (folder / "b" / "report.html").read_text(encoding="utf-8")


def test_an_archive_that_expands_without_end_is_refused(folder):
    import zipfile

    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with pytest.raises(InputError, match=r"was not read|expands"):
        read_inputs(Path("bomb.npz"))


def test_an_error_of_the_model_says_on_what(call, folder):
    np.save("wide.npy", np.zeros((4, 3)))
    called = call("estimate", "--model", "net.py:make", "--weights", "w.pt", "--inputs", "wide.npy", "--budget", 64)
    assert called.code == 2  # --out is missing
    called = call(
        *(
            "estimate",
            "--model",
            "net.py:make",
            "--weights",
            "w.pt",
            "--inputs",
            "wide.npy",
            "--budget",
            64,
            "--out",
            "r",
        )
    )
    assert called.code == 2 and "x[0] float32 (4, 3)" in called.err


# ----------------------------------------------------------------------------------------- terminal


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["estimate", "--help"], ["plan"]])
def test_help_does_not_wait_for_torch(arguments):
    code = "import sys; from mlmc_dropout.cli import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout and not done.stderr


def test_the_command_alone_prints_its_help(call):
    assert call().out == call("--help").out


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_tables_are_cut_into_tables_and_no_number_is(width):
    head = ("method", *(f"column {i}" for i in range(9)))
    rows = [("a rather long name of a method", *(f"{10.0**-i:.6e}" for i in range(9)))] * 2
    parts = TextTable("caption", head, rows).fitted(width)
    shown = [cell for part in parts for cell in part.rows[0][1:]]
    assert shown == list(rows[0][1:]) and all(part.columns[0] == "method" for part in parts)
    assert (len(parts) == 1) == (width == 200)
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    for part in parts:
        console.print(part.rich())
    text = console.export_text()
    assert all(cell in text for cell in rows[0][1:]) and "…" not in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="not tried in a terminal: tmux is not installed")
def test_a_terminal_of_80_columns(nets, monkeypatch):
    """Every line fits, nothing is truncated, and the numbers of a pipe are all there."""
    run = "import sys; from mlmc_dropout.cli import main; sys.exit(main())"
    (nets / "command").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{run}' \"$@\"\n")
    (nets / "command").chmod(0o755)
    for command in (
        "",
        "plan",
        "demo --budget 300 --out d",
        "estimate --model nets.py:random --inputs x.npy --budget 64 --out e",
    ):
        text = _in_tmux(nets, f"./command {command}")
        assert "CODE=0" in text, text
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
        if command.startswith(("plan", "demo")):
            again = command.replace("--out d", "--out d2")
            piped = subprocess.run(f"./command {again}", shell=True, capture_output=True, text=True, cwd=nets).stdout
            numbers = re.findall(r"\d[\d.e+-]{3,}", piped)
            assert len(numbers) > 10 and not [one for one in numbers if one not in text]


def _in_tmux(folder: Path, command: str) -> str:
    session = f"mlmc-{time.time_ns()}"

    def tmux(*arguments: str) -> str:
        done = subprocess.run(["tmux", *arguments], capture_output=True, text=True, check=True, cwd=folder)
        return done.stdout

    tmux("new-session", "-d", "-s", session, "-x", "80", "-y", "120", f"{command}; echo CODE=$?; sleep 60")
    try:
        for _ in range(240):
            text = tmux("capture-pane", "-p", "-t", session)
            if "CODE=" in text:
                return text
            time.sleep(0.5)
    finally:
        tmux("kill-session", "-t", session)
    return text


def test_open_shows_the_page(call, folder, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address))
    assert call("demo", "--budget", 300, "--out", "d", "--open", "--quiet").code == 0
    assert call("report", "d", "--open", "--quiet").code == 0
    assert opened == [(folder / "d" / "report.html").as_uri()] * 2


def test_the_demo_page_shows_what_the_terminal_prints(call, folder):
    printed = call("demo", "--budget", 300, "--out", "d").out
    text = (folder / "d" / "report.html").read_text(encoding="utf-8")
    rows = [line.split() for line in printed.splitlines() if line.startswith(("plain", "multilevel", "auto"))]
    assert len(rows) == 6
    assert all(cell.replace("e-", "e−") in text for row in rows for cell in row[-4:])  # minus signs, as elsewhere
    assert not re.search(r">[\d.]+e-\d", text)


def test_a_model_of_nothing_but_functions_needs_no_weights(call, folder):
    (folder / "f.py").write_text("import torch\nfrom torch import nn\nnet = nn.Dropout(0.5)\ndef make(): return net\n")
    called = call("estimate", "--model", "f.py:make", "--inputs", "x.npy", "--budget", 64, "--out", "a")
    assert called.code == 0 and "weights" not in called.err
