"""Inputs in every format give the same numbers; what is not numbers is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mlmc_dropout.cli.inputs import read_inputs
from mlmc_dropout.errors import InputError

X = np.array([[0.25, -1.5], [3.0, 1e-3], [7.0, 2.0]])


def _write(name: str, path: Path) -> Path:
    target = path / name
    if name.endswith(".npy"):
        np.save(target, X)
    elif name.endswith(".npz"):
        np.savez(target, x=X)
    elif name.endswith(".csv"):
        lines = [",".join(map(repr, row)) for row in X.tolist()]
        target.write_text("\n".join((["a,b"] if "head" in name else []) + lines) + "\n", encoding="utf-8")
    elif name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame(X, columns=["a", "b"]).to_parquet(target)
    elif name.endswith(".pt"):
        torch.save(torch.from_numpy(X), target)
    else:
        save_file({"x": torch.from_numpy(X)}, target)
    return target


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.csv", "head.csv", "x.parquet", "x.pt", "x.safetensors", "X.NPY"])
def test_formats_agree(name, tmp_path):
    inputs = read_inputs(_write(name, tmp_path)) if name != "X.NPY" else read_inputs(_upper(tmp_path))
    np.testing.assert_array_equal(np.asarray(inputs), X)


def _upper(path: Path) -> Path:
    np.save(path / "x.npy", X)
    return (path / "x.npy").rename(path / "X.NPY")


def test_several_arrays_become_keyword_or_positional_inputs(tmp_path):
    np.savez(tmp_path / "named.npz", image=X, mask=X > 0)
    np.savez(tmp_path / "bare.npz", X, X[:, :1])
    assert set(read_inputs(tmp_path / "named.npz")) == {"image", "mask"}
    assert [part.shape for part in read_inputs(tmp_path / "bare.npz")] == [(3, 2), (3, 1)]


def test_a_csv_error_names_its_line(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(InputError, match="line 3: expected 2 numbers, got '3'"):
        read_inputs(tmp_path / "x.csv")


def test_text_columns_of_a_parquet_file_are_named(tmp_path):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"x": [1.0, 2.0], "town": ["Ulm", "Bern"]}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="'town' is not numeric"):
        read_inputs(tmp_path / "x.parquet")
