"""Results: files that come back as they were, exports, and what is printed."""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.errors import InputError, MissingExtraError, ResultFileError
from mlmc_dropout.result.text import variance_rates
from testing.core_oracle import INPUT, tiny_network, truth

X = torch.linspace(0, 1, 3, dtype=torch.float64)[:, None]
RELIABLE = ("mean_reliable", "variance_reliable")
ARRAYS = ("mean", "variance", "mean_stderr", "variance_stderr", "S2_mean", "S2_variance", *RELIABLE)


class TwoHeads(nn.Module):
    """Outputs {"u": (N, 2), "f": ((N,), (N, 1, 2))}."""

    def __init__(self):
        super().__init__()
        self.net = tiny_network()

    def forward(self, x):
        y = self.net(x)
        return {"u": y, "f": (y[:, 0], y[:, None])}


@pytest.fixture(scope="module")
def results():
    return {
        "pooled": md.estimate(tiny_network(), X, method="pooled", budget=100),
        "mlmc": md.estimate(tiny_network(), X, method="mlmc", budget=1000, seed=3),
        "structured": md.estimate(TwoHeads(), X, method="mlmc", budget=200, levels="independent"),
        "tolerance": md.estimate(tiny_network(), X, method="pooled", tolerance=1e-9, budget=200, seed=np.int64(7)),
    }


def same(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray) else a == b


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", ["pooled", "mlmc", "structured", "tolerance"])
def test_round_trip(results, name, tmp_path):
    result = results[name]
    path = result.save(tmp_path / "run.npz")
    again = md.load_result(path)
    assert all(same(getattr(result, array), getattr(again, array)) for array in ARRAYS)
    assert (again.cost, again.status, again.method, again.seed, again.notes) == (
        result.cost,
        result.status,
        result.method,
        result.seed,
        result.notes,
    )
    assert json.dumps(again.metadata, sort_keys=True) == json.dumps(dict(result.metadata), sort_keys=True)
    for a, b in zip(result.levels, again.levels, strict=True):
        assert all(same(getattr(a, field), getattr(b, field)) for field in a.__dataclass_fields__)
    assert str(again) == str(result)


def test_a_file_of_an_older_version_is_reliable_everywhere(results, tmp_path):
    path = results["structured"].save(tmp_path / "run.npz")
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if not name.endswith("reliable")}
    header = {**json.loads(str(arrays["header"])), "format": 1}
    del header["digest"]
    np.savez(path, **{**arrays, "header": np.array(json.dumps(header))})
    again = md.load_result(path)
    assert again.mean_reliable["f"][1].shape == again.mean["f"][1].shape
    assert again.mean_reliable["f"][1].all() and again.variance_reliable["u"].all()


def test_the_suffix_may_be_left_out(results, tmp_path):
    results["pooled"].save(tmp_path / "run")
    assert (tmp_path / "run.npz").exists() and not list(tmp_path.glob("*.part"))
    assert md.load_result(tmp_path / "run").cost == md.load_result(str(tmp_path / "run.npz")).cost == 100


def foreign_files(folder):
    (folder / "empty.npz").write_bytes(b"")
    (folder / "text.npz").write_text("mean,variance\n1,2\n")
    np.savez(folder / "other.npz", a=np.arange(3))
    np.save(folder / "array.npy", np.arange(3))
    (folder / "pickle.npz").write_bytes(pickle.dumps({"mean": 1}))
    np.savez(folder / "header.npz", header=np.array("[1, 2]"))
    np.savez(folder / "json.npz", header=np.array("{not json"))
    np.savez(folder / "bare.npz", header=np.array(json.dumps({"format": 1})))
    (folder / "folder.npz").mkdir()
    return sorted(folder.iterdir())


def test_foreign_files_are_refused_by_name(tmp_path):
    for path in foreign_files(tmp_path):
        with pytest.raises(ResultFileError, match=path.name):
            md.load_result(path)
    with pytest.raises(ResultFileError, match="no such file"):
        md.load_result(tmp_path / "missing.npz")


def test_a_newer_format_is_refused(results, tmp_path):
    path = results["pooled"].save(tmp_path / "run.npz")
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    arrays["header"] = np.array(json.dumps({**header, "format": 99}))
    np.savez(path, **arrays)
    with pytest.raises(ResultFileError, match=r"99.*update"):
        md.load_result(path)


def test_damaged_files_never_give_another_exception(results, tmp_path):
    """Cut at many places, and with bytes changed: refused, or read as it was (zip has bytes that do not matter)."""
    whole = results["mlmc"].save(tmp_path / "run.npz").read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[:cut] for cut in rng.integers(0, len(whole), 40)]
    for spot in rng.integers(0, len(whole), 250):
        changed = bytearray(whole)
        changed[spot] ^= int(rng.integers(1, 256))
        damaged.append(bytes(changed))
    refused = 0
    for data in damaged:
        (tmp_path / "damaged.npz").write_bytes(data)
        try:
            loaded = md.load_result(tmp_path / "damaged.npz")
        except ResultFileError:
            refused += 1
        else:
            assert np.array_equal(loaded.mean, results["mlmc"].mean)
    assert refused > 200


class Bomb:
    """Runs code when unpickled."""

    armed = False

    def __reduce__(self):
        return setattr, (Bomb, "armed", True)


def test_a_pickle_inside_is_not_executed(results, tmp_path):
    path = results["pooled"].save(tmp_path / "run.npz")
    with np.load(path) as file:
        arrays = dict(file)
    for name in ("mean", "header", "extra"):
        np.savez(path, **{**arrays, name: np.array([Bomb()], dtype=object)})
        with pytest.raises(ResultFileError):
            md.load_result(path)
        assert not Bomb.armed
    with zipfile.ZipFile(path) as archive:
        assert b"setattr" in archive.read("extra.npy")  # the control: the charge was really there


def test_saving_over_an_old_file_replaces_it(results, tmp_path):
    path = tmp_path / "run.npz"
    path.write_text("old")
    results["pooled"].save(path)
    assert md.load_result(path).method == "pooled"


# ----------------------------------------------------------------------------------------- exports


def test_to_xarray(results):
    pytest.importorskip("xarray")
    data = results["structured"].to_xarray()
    assert dict(data.sizes)["input"] == 3
    np.testing.assert_array_equal(data["u_mean"].values, results["structured"].mean["u"])
    np.testing.assert_array_equal(data["f.1_variance_stderr"].values, results["structured"].variance_stderr["f"][1])
    assert data.attrs["method"] == "mlmc" and json.loads(data.attrs["metadata"])["levels"] == "independent"
    plain = results["pooled"].to_xarray()
    estimates = {"mean", "variance", "mean_stderr", "variance_stderr", "mean_reliable", "variance_reliable", "passes"}
    assert set(plain.data_vars) == estimates and plain["mean_reliable"].dtype == bool
    assert plain["mean"].dims == ("input", "out0")


def test_to_dataframe(results):
    pytest.importorskip("pandas")
    table = results["structured"].to_dataframe()
    assert len(table) == 3 * 5 and set(ARRAYS) <= set(table.columns)
    assert table["output"].unique().tolist() == ["u[0]", "u[1]", "f.0", "f.1[0, 0]", "f.1[0, 1]"]
    row = table[(table["input"] == 2) & (table["output"] == "f.1[0, 1]")]
    assert row["mean"].item() == results["structured"].mean["f"][1][2, 0, 1]
    assert "S2_mean" not in results["pooled"].to_dataframe().columns


@pytest.mark.parametrize(("package", "method"), [("xarray", "to_xarray"), ("pandas", "to_dataframe")])
def test_a_missing_extra_is_named(results, package, method, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtraError, match=r"mlmc-dropout\[report\]"):
        getattr(results["pooled"], method)()


# ---------------------------------------------------------------------------------------- printing


def test_print_has_the_table_of_giles(results):
    text = str(results["mlmc"])
    lines = text.splitlines()
    assert "mlmc: 3 inputs × 2 outputs, 1000 passes per input, seed 3" in lines[0]
    assert lines[1] == "All planned passes were spent."
    for label, T, M in (("level 0", 4, 103), ("level 1", 8, 73), ("level 2", 16, 37)):
        row = next(line for line in lines if line.startswith(label)).split()
        assert row[2:4] == [str(T), str(M)]
    for word in ("kurt", "check", "paper's S²", "fall like T^-", "note: S2_mean"):
        assert word in text
    assert repr(results["mlmc"]) == text


def test_print_of_other_methods_and_structures(results):
    assert "paper's S²" not in str(results["pooled"])
    assert "3 inputs × 5 outputs" in str(results["structured"])
    assert "tolerance" in str(results["tolerance"]) and results["tolerance"].status is md.Status.BUDGET_EXHAUSTED


def test_print_sums_up_quantities():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)).eval()
    result = md.estimate(model, torch.randn(9, 2), outputs="logits", budget=50, method="pooled")
    text = str(result)
    for name in ("entropy", "expected_entropy", "mutual_information"):
        assert re.search(
            rf"^  {name} +{result[name].value.mean():.6g} +± {result[name].stderr.mean():.2g}$", text, re.M
        )
    settled = int((result["label"].confidence >= 0.99).sum())
    assert 0 < settled < 9 and f"  {settled} of 9 predicted classes are settled at 99 % confidence" in text
    confident = replace(result["label"], confidence=np.full(9, 0.995))
    sure = replace(result, quantities={**result.quantities, "label": confident})
    assert "  all 9 predicted classes are settled at 99 % confidence" in str(sure)


def test_fitted_rates():
    """Correction variances fall like 1/T on a geometric ladder, for both moments once T is large."""
    ladder, exact = (4, 8, 16, 32), truth(tiny_network())
    x = torch.full((400, 1), INPUT, dtype=torch.float64)
    result = md.estimate(tiny_network(), x, method="mlmc", ladder=ladder, counts=(40, 40, 40, 40))
    rate_Y, rate_V = variance_rates(result.levels)
    w = md.theory.level_variances_variance(ladder, exact.mu2, exact.mu4).mean(axis=1)[1:]
    assert rate_Y == pytest.approx(1.0, abs=0.05)
    assert rate_V == pytest.approx(-np.polyfit(np.log(ladder[1:]), np.log(w), 1)[0], abs=0.1)


def test_std_is_the_root_of_the_positive_part(results):
    result = replace(results["pooled"], variance=np.array([[4.0, -1.0], [0.0, 9.0], [1.0, 1.0]]))
    np.testing.assert_array_equal(result.std, [[2, 0], [0, 3], [1, 1]])


def test_metadata_names_versions_and_settings(results):
    meta = results["mlmc"].metadata
    assert meta["versions"]["mlmc_dropout"] == md.__version__ and "torch" in meta["versions"]
    assert meta["ladder"] == [4, 8, 16] and meta["levels"] == "nested"
    assert results["tolerance"].seed == 7 and type(results["tolerance"].seed) is int


def test_results_are_saved_where_they_can_be_found(results, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        results["pooled"].save(tmp_path / "nowhere" / "result")
    with pytest.raises(InputError, match="to_netcdf"):
        results["pooled"].save(tmp_path / "result.nc")
    results["pooled"].save(tmp_path / "result.npz")
    np.testing.assert_array_equal(md.load_result(tmp_path).mean, results["pooled"].mean)


def test_a_quantity_taken_for_an_attribute_is_pointed_to():
    result = md.estimate(tiny_network(), torch.zeros(1, 1).double(), outputs="binary-logits", budget=64)
    with pytest.raises(AttributeError, match=r"write result\['entropy'\]"):
        _ = result.entropy
    with pytest.raises(AttributeError, match="no attribute 'entropi'"):
        _ = result.entropi
