"""Without an optional package, what needs it names the extra to install, and everything else works."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.cli.inputs import read_inputs
from mlmc_dropout.errors import MissingExtraError
from mlmc_dropout.report import write_result_page

GOOD = (
    "estimate",
    "--model",
    "net.py:make",
    "--weights",
    "w.pt",
    "--inputs",
    "x.npy",
    "--budget",
    "64",
    "--out",
    "run",
)


@pytest.fixture
def result() -> md.Result:
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    return md.estimate(model, torch.zeros(3, 1), budget=32, method="pooled")


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("xarray", "report", lambda result, path: result.to_xarray()),
        ("pandas", "report", lambda result, path: result.to_dataframe()),
        ("jinja2", "report", lambda result, path: write_result_page(result, path / "page.html")),
        ("pyarrow", "report", lambda result, path: read_inputs(path / "x.parquet")),
    ],
)
def test_a_missing_package_names_its_extra(package, extra, use, result, tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingExtraError, match=rf"{package} is not installed: run  pip install 'mlmc-dropout\[{extra}\]'"
    ):
        use(result, tmp_path)


def test_a_cluster_without_dask_names_its_extra(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    called = call(*GOOD, "--scheduler", "tcp://127.0.0.1:1")
    assert called.code == 2
    assert "mlmc-dropout[distributed]" in called.err


def test_estimate_needs_no_extra(call, folder, monkeypatch):
    for package in ("xarray", "pandas", "jinja2", "pyarrow", "matplotlib", "distributed", "netCDF4"):
        monkeypatch.setitem(sys.modules, package, None)
    called = call(*GOOD)
    assert called.code == 0, called.err
    assert "mlmc-dropout[report]" in called.err
    assert {path.name for path in (folder / "run").iterdir()} == {"result.npz", "result.csv", "run.json", "page.npz"}
    assert np.isfinite(md.load_result(folder / "run" / "result.npz").mean).all()
