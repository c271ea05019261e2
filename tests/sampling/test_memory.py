"""Chunks follow from the memory limit: measured in fresh processes, by the system's own account."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
import types

import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout import DropoutSampler
from mlmc_dropout.sampling import memory, sampler
from mlmc_dropout.sampling.memory import Footprint, keep_freed_memory
from testing.zoo import ZOO

MIB = 1 << 20

HEAD = """
import sys, torch
from torch import nn
from testing.memory_probe import peak as megabytes
from mlmc_dropout import DropoutSampler, estimate
from mlmc_dropout.sampling.masks import pass_keys
torch.set_num_threads(1)
def peak():
    return megabytes() * 2**20
"""


def growth(script: str) -> float:
    """MiB by which the peak of a fresh process grows in ``script``, which prints the bytes.

    The C library is told to return freed blocks to the system at once, so that the peak is what was
    held; usually it keeps some tens of MiB for the next allocation.
    """
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout) / MIB


IMAGES = """
torch.manual_seed(0)
conv = lambda a: [nn.Conv2d(a, 16, 3, padding=1), nn.ReLU(), nn.Dropout(0.1)]
model = nn.Sequential(*conv(1), *conv(16), nn.AdaptiveAvgPool2d(1), nn.Flatten())
x = torch.randn(8, 1, 64, 64)
sampler = DropoutSampler(model, memory_limit={limit} * 2**20)
sampler.sample(x[:1], 2)  # what torch itself needs
before = peak()
sampler.sample(x, 100)
print(peak() - before)
"""


def test_images_whose_repeated_batch_would_not_fit() -> None:
    """One activation of all 800 passes and images takes 210 MB, and several are alive at once."""
    assert growth(IMAGES.format(limit=48)) < 48


def test_control_without_the_limit_the_memory_is_used() -> None:
    """The same work in one chunk: the limit is what keeps the memory small."""
    assert growth(IMAGES.format(limit=2000).replace("sampler.sample(x, 100)", IN_ONE_CHUNK)) > 300


IN_ONE_CHUNK = (
    "sampler.run(sampler.prepare(b := next(sampler.batches(x))), b, pass_keys(0, 0, 0, range(100)), chunk=100)"
)


def test_a_million_passes_of_a_small_net() -> None:
    script = """
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    x = torch.zeros(2, 1)
    sampler = DropoutSampler(model, memory_limit=16 * 2**20)
    sampler.sample(x, 10)
    before = peak()
    out = sampler.sample(x, 1_000_000)
    print(peak() - before - 3 * out.nbytes)  # the passes, their names, and the parts they are put together from
    """
    assert growth(script) < 16


@pytest.mark.slow
def test_a_million_passes_are_estimated_in_a_stream() -> None:
    script = """
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    x = torch.zeros(2, 1)
    estimate(model, x, method="pooled", budget=1000)
    before = peak()
    estimate(model, x, method="pooled", budget=1_000_000, memory_limit=16 * 2**20)
    print(peak() - before)
    """
    assert growth(script) < 16


MANY_ROWS = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 4))
x = torch.randn(20_000, 4)
estimate(model, x[:100], method={method!r}, budget=300)
before = peak()
estimate(model, x, method={method!r}, budget=300, memory_limit=16 * 2**20)
print(peak() - before)
"""


@pytest.mark.parametrize(("method", "most"), [("pooled", 80), ("stratified", 120), ("auto", 160), ("mlmc", 160)])
def test_estimates_of_many_rows_are_taken_part_by_part(method, most) -> None:
    """All values of a task at once took 440, 611, 611 and 269 MB; what is carried between tasks remains."""
    assert growth(MANY_ROWS.format(method=method)) < most


# ------------------------------------------------------------------------------------ estimates


def prepared(model: nn.Module, x: torch.Tensor):
    sampler = DropoutSampler(model)
    return sampler.prepare(next(sampler.batches(x)))


def test_work_before_the_first_dropout_counts_once() -> None:
    model, x = ZOO["late_conv"].make()
    footprint = prepared(model, x).footprint
    assert footprint.per_row > 4 * 8 * 10 * 10  # the first activation
    assert footprint.per_pass_row < 1000  # what follows the dropout is small
    assert footprint.passes_at_once(4, 1 << 29) > 1000


def test_memory_of_weight_masks_does_not_grow_with_the_rows() -> None:
    model, x = ZOO["weight_dropout"].make()
    footprint = prepared(model, x).footprint
    assert footprint.per_pass >= 4 * 12 * 3


def test_chunks_stay_within_the_limit() -> None:
    for limit in (10**5, 10**6, 10**7, 10**9):
        for footprint in (Footprint(1000, 0, 100), Footprint(0, 5000, 10), Footprint(10, 0, 3000)):
            rows = footprint.rows_at_once(500, limit)
            passes = footprint.passes_at_once(rows, limit)
            assert 1 <= rows <= 500 and passes >= 1
            assert footprint.bytes(passes, rows) <= limit or passes == 1
            assert footprint.bytes(1, rows) <= limit or rows == 1


glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")


@glibc_only
@pytest.mark.parametrize(("value", "expected"), [(None, ["malloc", "free"]), ("0", []), ("1", ["mallopt", "mallopt"])])
def test_the_c_library_is_left_alone_on_request(
    value: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    library = {name: lambda *_, name=name: calls.append(name) for name in ("mallopt", "malloc", "free")}
    monkeypatch.setattr(memory, "_c_library", lambda: types.SimpleNamespace(**library))
    monkeypatch.delenv("MLMC_DROPOUT_KEEP_MEMORY", raising=False)
    if value is not None:
        monkeypatch.setenv("MLMC_DROPOUT_KEEP_MEMORY", value)
    keep_freed_memory.__wrapped__(1 << 20)
    assert calls == expected


FROM_THE_SYSTEM = """
import ctypes, torch
from mlmc_dropout.sampling.memory import keep_freed_memory
class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in "arena ordblks smblks hblks a b c d e f".split()]
count = ctypes.CDLL(None).mallinfo
count.restype = Counts
def from_the_system(megabytes):
    before = count().hblks
    block = torch.ones(megabytes << 18)
    return count().hblks - before
keep_freed_memory(1 << 28)
print(*(from_the_system(megabytes) for megabytes in (10, 24, 24, 10)))
"""


@glibc_only
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "0 1 0 0"),
        ({"MLMC_DROPOUT_KEEP_MEMORY": "0"}, "1 1 0 0"),
        ({"MALLOC_MMAP_THRESHOLD_": "1000000"}, "1 1 1 1"),
    ],
)
def test_the_c_library_goes_on_learning_which_blocks_to_keep(settings: dict[str, str], expected: str) -> None:
    """Whether blocks of 10, 24, 24 and 10 MiB come from the system, in a fresh process."""
    names = ("MLMC_DROPOUT_KEEP_MEMORY", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", FROM_THE_SYSTEM]
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, **settings}, timeout=600)
    assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize("method", ["pooled", "stratified", "control-variate", "auto", "sample"])
def test_freed_memory_is_kept_whatever_draws_the_masks(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(sampler, "keep_freed_memory", asked.append)
    model, x = ZOO["mlp"].make()
    if method == "sample":
        DropoutSampler(model).sample(x, passes=4)
    else:
        md.estimate(model, x, method=method, budget=300)
    assert asked
