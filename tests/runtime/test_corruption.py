"""Checkpoints and result files with damage of any kind: refused by a typed error, or read as they were."""

from __future__ import annotations

import json
import zipfile
from collections import Counter

import numpy as np
import pytest

import mlmc_dropout as md
from mlmc_dropout import files
from mlmc_dropout.errors import CheckpointError, ResultFileError
from testing.corruption import Files
from testing.runs import small

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("random", 120),
        ("structural", 90),
        pytest.param("random", 2000, marks=SLOW),
        pytest.param("structural", 400, marks=SLOW),
    ],
)
def test_no_corruption_gives_another_result_or_a_raw_error(kind, count, good):
    found = Counter(outcome for _, outcome in good.outcomes(kind, count))
    assert set(found) <= {"refused", "same"}, found
    assert found["refused"] > 0.8 * count


def test_the_check_of_corruptions_sees_a_result_that_changed(good, monkeypatch):
    """The negative control: without the digest and the checks of values, edits do go through."""

    def unchecked(path, formats):
        with np.load(path) as file:
            arrays = dict(file)
        return json.loads(str(arrays.pop("header"))), arrays

    monkeypatch.setattr("mlmc_dropout.result.loading.read_archive", unchecked)
    monkeypatch.setattr("mlmc_dropout.result.loading._check_contents", lambda *_: None)
    found = Counter(outcome for file, outcome in good.outcomes("structural", 120) if file.startswith("result"))
    assert set(found) - {"refused", "same"}


def test_a_count_edited_by_hand_is_not_believed(tmp_path):
    model, x = small()
    path = tmp_path / "c"
    md.estimate(model, x, method="pooled", budget=200, checkpoint=path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    (cohort,) = header["cohorts"]
    cohort["counts"]["passes"] = cohort["done"]["passes"] = 200_000
    np.savez(path.with_suffix(".npz"), **{**arrays, "header": np.array(json.dumps(header))})
    path.with_suffix(".npz").rename(path)
    with pytest.raises(CheckpointError, match="it was edited"):
        md.estimate(model, x, method="pooled", budget=400_000, checkpoint=path)


def test_a_small_file_that_expands_to_terabytes_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_memory", lambda: 2 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", header=np.array("{}"), mean=np.zeros(1 << 20))
    assert (tmp_path / "bomb.npz").stat().st_size < 20_000
    with pytest.raises(ResultFileError, match="half of this machine's memory"):
        md.load_result(tmp_path / "bomb.npz")


def test_an_array_that_claims_to_be_larger_than_its_data_is_refused_unread(tmp_path):
    path = tmp_path / "claims.npz"
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    data = b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head + b"\n" + bytes(64)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mean.npy", data)
    with pytest.raises(ResultFileError, match="claims 8000000000000 bytes"):
        md.load_result(path)
