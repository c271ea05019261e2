"""The commands on good input: what they print, write and return."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout import theory
from mlmc_dropout.cli.loading import read_model, read_weights, with_weights

GOOD = ("estimate", "--model", "net.py:make", "--weights", "w.safetensors", "--inputs", "x.npy")


def test_version_and_help(call):
    assert call("--version").out == f"mlmc-dropout {md.__version__}\n"
    helped = call("--help")
    assert helped.code == 0
    for command in ("demo", "estimate", "plan", "train", "reproduce", "report"):
        assert command in helped.out
        shown = call(command, "--help")
        assert shown.code == 0
        assert "Args:" not in shown.out and "Raises:" not in shown.out  # every option has its help once


@pytest.mark.parametrize("command", ["estimate", "evaluate"])
def test_help_in_a_terminal_begins_with_the_files_and_has_flags_without_values(command):
    from typer.main import get_command
    from typer.rich_utils import rich_format_help

    from mlmc_dropout.cli import app

    parent = get_command(app)
    found = parent.commands[command]
    context = found.context_class(found, info_name=command)
    with contextlib.redirect_stdout(io.StringIO()) as written:
        rich_format_help(obj=found, ctx=context, markup_mode="rich")
    text = re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())
    panels = re.findall(r"─ ([A-Z][a-z ]+) ─", text)
    assert panels[0] == "Files" and panels[-1] == "What is shown" and "Options" not in panels and len(panels) >= 6
    assert "bool" not in text and "--overwrite" in text and "--help" in text.partition("What is shown")[2]


def test_estimate_writes_everything_and_equals_the_library(call, folder):
    called = call(*GOOD, "--budget", 64, "--method", "pooled", "--seed", 3, "--out", "run")
    assert called.code == 0, called.err
    names = {path.name for path in (folder / "run").iterdir()}
    assert {"result.npz", "result.csv", "run.json", "page.npz", "report.html"} <= names
    result = md.load_result(folder / "run" / "result.npz")
    model = with_weights(read_model("net.py:make")[0], read_weights(Path("w.safetensors")), Path("w.safetensors"))
    expected = md.estimate(model, np.load("x.npy"), budget=64, method="pooled", seed=3)
    np.testing.assert_array_equal(result.mean, expected.mean)
    np.testing.assert_array_equal(result.variance_stderr, expected.variance_stderr)
    rows = list(csv.DictReader((folder / "run" / "result.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 7 * 2
    np.testing.assert_array_equal([float(row["mean"]) for row in rows], expected.mean.ravel())


def test_netcdf_holds_the_same_numbers(call, folder):
    import xarray

    called = call(*GOOD, "--budget", 64, "--out", "run")
    assert called.code == 0 and "result.nc" in called.out
    result = md.load_result(folder / "run" / "result.npz")
    with xarray.open_dataset(folder / "run" / "result.nc") as data:
        for name in ("mean", "variance", "mean_stderr", "variance_stderr", "mean_reliable"):
            np.testing.assert_array_equal(data[name].values, getattr(result, name))
        assert data.attrs["method"] == result.method and "netCDF4" not in sys.modules


def test_quiet_prints_nothing_and_json_prints_one_object(call, folder):
    quiet = call(*GOOD, "--budget", 64, "--out", "a", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    printed = json.loads(call(*GOOD, "--budget", 64, "--out", "b", "--json").out)
    assert printed["status"] == "COMPLETED"
    assert printed["inputs"] == 7
    assert printed["averages"]["mean_stderr"] > 0


def test_a_tolerance_out_of_reach_is_exit_code_1_with_results(call, folder):
    called = call(*GOOD, "--tolerance", 1e-9, "--budget", 200, "--method", "pooled", "--out", "run", "--json")
    assert called.code == 1
    assert json.loads(called.out)["status"] == "BUDGET_EXHAUSTED"
    assert (folder / "run" / "result.npz").is_file()


def test_a_tolerance_within_reach_is_met(call, folder):
    called = call(*GOOD, "--tolerance", 0.05, "--out", "run", "--json")
    assert called.code == 0, called.err
    assert md.load_result(folder / "run" / "result.npz").mean_stderr.max() <= 0.05


def test_effort_is_an_option(call, folder):
    for effort, equal in (("equal", True), ("adaptive", False)):
        options = ("--budget", 2000, "--method", "pooled", "--effort", effort, "--out", effort)
        assert call(*GOOD, *options).code == 0
        passes = md.load_result(folder / effort / "result.npz").passes
        assert (np.ptp(passes) == 0) == equal
    assert call(*GOOD, "--budget", 100, "--effort", "most", "--out", "other").code == 2


def test_options_reach_the_library(call, folder):
    options = ("--method", "mlmc", "--ladder", "2,4", "--counts", "5,3", "--levels", "independent", "--masks", "shared")
    assert call(*GOOD, *options, "--transform", "softmax", "--rate", 0.5, "--out", "run").code == 0
    result = md.load_result(folder / "run" / "result.npz")
    assert [level.count for level in result.levels] == [5, 3]
    assert result.metadata["levels"] == "independent"
    np.testing.assert_allclose(result.mean.sum(axis=1), 1.0)  # probabilities


@pytest.mark.slow
def test_workers_do_not_change_a_bit(call, folder):
    for name, extra in (("one", ()), ("two", ("--workers", 2))):
        assert call(*GOOD, "--budget", 300, "--method", "pooled", "--out", name, *extra).code == 0
    one, two = (md.load_result(folder / name / "result.npz") for name in ("one", "two"))
    np.testing.assert_array_equal(one.mean, two.mean)


def test_an_existing_run_is_kept_unless_overwrite_is_given(call, folder):
    first = (*GOOD, "--budget", 64, "--out", "run")
    assert call(*first).code == 0
    before = (folder / "run" / "result.npz").read_bytes()
    refused = call(*first, "--seed", 1)
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert (folder / "run" / "result.npz").read_bytes() == before
    assert call(*first, "--seed", 1, "--overwrite").code == 0
    assert (folder / "run" / "result.npz").read_bytes() != before


def test_plan_prints_the_known_optima(call):
    called = call("plan", "--ladder", "4,8,16", "--budget", 1000, "--json")
    plans = {(p["target"], p["cost_model"]): p for p in json.loads(called.out)["plans"]}
    np.testing.assert_allclose(plans["mean", "coupled"]["optimum"], (103.55, 73.22, 36.61), atol=0.01)
    np.testing.assert_allclose(plans["variance", "uncoupled"]["optimum"], (82.64, 44.17, 19.76), atol=0.01)
    chosen = plans["mean", "coupled"]
    v = theory.level_variances_mean((4, 8, 16))
    assert chosen["nested_variance"] == pytest.approx(theory.variance_nested(v, chosen["counts"]))
    assert chosen["nested_plain_variance"] == pytest.approx(1 / chosen["nested_passes"])
    assert all(p["nested_variance"] > p["nested_plain_variance"] for p in plans.values())


def test_plan_is_plain_text_in_a_pipe(call):
    text = call("plan").out
    assert "103, 73, 37" in text
    assert "\x1b" not in text and "│" not in text


def test_demo_compares_and_writes_a_page(call, folder):
    called = call("demo", "--budget", 300, "--out", "shown")
    assert called.code == 0, called.err
    assert "plain Monte Carlo" in called.out and "S²" in called.out
    assert (folder / "shown" / "report.html").is_file()
    assert call("demo", "--budget", 300, "--out", "shown", "--quiet").code == 0  # its own folder may be used again


def test_demo_without_the_report_extra_says_how_to_get_the_page(call, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    called = call("demo", "--budget", 300, "--out", "shown")
    assert called.code == 0
    assert "mlmc-dropout[report]" in called.err
    assert not (folder / "shown" / "report.html").exists()


def test_report_is_made_from_the_folder_alone(call, folder):
    assert call(*GOOD, "--budget", 64, "--out", "run", "--no-page").code == 0
    assert not (folder / "run" / "report.html").exists()
    assert call("report", "run").code == 0
    assert call("report", "run", "--out", "elsewhere/page.html").code == 0
    refused = call("report", "run/result.npz")
    assert refused.code == 2 and "is a file, and a page is about a folder: give 'run'" in refused.err
    assert call("report", "run").out == f"Open the page: {Path('run/report.html')}\n"
    assert "evaluate" in call("report", "--help").out
    assert (folder / "elsewhere" / "page.html").read_text() == (folder / "run" / "report.html").read_text()


def test_train_quick_then_estimate_on_its_weights(call, folder):
    (folder / "c.toml").write_text('profile = "quick"\nepochs = 20\n')
    called = call("train", "boundary-layer", "--config", "c.toml", "--out", "runs", "--json")
    assert called.code == 0, called.err
    run = Path(json.loads(called.out)["run"])
    assert (run / "weights.safetensors").is_file()
    resumed = call("train", "--resume", run, "--json")
    assert json.loads(resumed.out)["run"] == str(run)


@pytest.mark.slow
def test_the_installed_command_runs_in_a_process_of_its_own(folder):
    command = [sys.executable, "-c", "import sys; from mlmc_dropout.cli import main; sys.exit(main())"]
    done = subprocess.run([*command, "plan", "--budget", "x"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    debug = subprocess.run([*command, "plan", "--budget", "1", "--debug"], capture_output=True, text=True, timeout=120)
    assert debug.returncode == 2 and "Traceback" in debug.stderr


def test_a_wrapped_state_dict_and_a_model_object_are_understood(call, folder):
    torch.save({"state_dict": torch.load("w.pt", weights_only=True), "epoch": 3}, "wrapped.pt")
    assert read_weights(Path("wrapped.pt")).keys() == read_weights(Path("w.pt")).keys()
    (folder / "made.py").write_text("from torch import nn\nnet = nn.Sequential(nn.Linear(1, 2), nn.Dropout(0.5))\n")
    made, warning = read_model("made:net", trained=False)
    assert isinstance(made, nn.Module) and "no --weights" in warning
