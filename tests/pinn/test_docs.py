"""The numbers in the documentation are those of the files they are said to come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlmc_dropout.pinn import pretrained
from mlmc_dropout.pinn.evaluation import grid

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pinn.md").read_text(encoding="utf-8")
WANTED = {"boundary-layer": {"u": 5}, "source-inference": {"u": 2, "f": 5}}


def rows() -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("name", WANTED)
def test_what_was_reached(name: str) -> None:
    reached = pretrained(name).summary["relative_l2_of_mean"]
    for output, percent in WANTED[name].items():
        assert [f"`{name}`", output, f"{100 * reached[output]:.2f} %", f"{percent} %"] in rows()


def test_the_spread_that_was_reached() -> None:
    run = pretrained("source-inference")
    exact = run.problem.exact_variance(grid(run.config))
    for output, reached in run.summary["rms_std"].items():
        assert [output, f"{reached:.4f}", f"{float(exact[output].mean().sqrt()):.4f}"] in rows()


@pytest.mark.parametrize("name", WANTED)
def test_how_fast(name: str) -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "training.json").read_text())["problems"][name]["median"]
    reference, eager, compiled = (measured[who] for who in ("reference", "eager", "compiled"))
    line = [f"`{name}`", f"{reference:.1f}", f"{eager:.1f}", f"{compiled:.1f}", f"{reference / compiled:.1f}×"]
    assert line in rows()
