"""Tolerances across the model zoo, against references of a million passes.

``tests/tolerance_study.py`` says how it is judged. ``benchmarks/tolerance.py`` runs the whole study; its results are
checked here against what the documentation claims. The slow test repeats a smaller version for each model, with seeds
of its own run and an error rate of 1 % for all its comparisons together.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest

from mlmc_dropout.sampling.sampler import FallbackWarning
from testing.oracles import z_limit
from testing.tolerance_study import LEASTS, Study, coverage, reference_of, saved_references
from testing.zoo import ZOO

CLAIMED = 0.93
MOST = 1.3
METHODS = ("pooled", "stratified", "auto")
SEEDS = 4
LIMIT = z_limit(3 * len(METHODS) * len(ZOO), 0.02)  # one-sided: 1 %
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "tolerance.json"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ZOO))
def test_tolerances_are_met_in_truth_and_cost_little_more_than_knowing_the_variance(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        study = Study(name, saved_references().get(name) or reference_of(name))
        compared = 4 * len(study.reference.mean)
        assert study.disagreement() < z_limit(compared * len(ZOO)), "run benchmarks/tolerance.py --fresh"
        for method in METHODS:
            cells = [study.cell(method, least, SEEDS, first=500) for least in LEASTS["mean"]]
            for label in ("covered", "met"):
                shares = [share for cell in cells for share in getattr(cell, label)]
                found, error = coverage(shares)
                print(f"{name}, {method}: {label} {found:.3f} ± {error:.3f}")
                by_chance = math.sqrt(CLAIMED * (1 - CLAIMED) / len(study.reference.mean) / len(shares))
                assert found >= CLAIMED - LIMIT * max(error, by_chance)
            ratios = [spent / cell.least for cell in cells for spent in cell.spent]
            found, error = coverage(ratios)
            print(f"{name}, {method}: spent {found:.2f} ± {error:.2f} times the least possible")
            assert found <= MOST


def test_the_study_in_the_documentation_supports_what_it_claims():
    """Coverage per method where chance plays a part; cost in every cell."""
    rows = json.loads(RESULTS.read_text())["rows"]
    assert {row["model"] for row in rows} == set(ZOO)
    for method in METHODS:
        for moment in ("mean", "variance"):
            own = [row for row in rows if row["method"] == method and row["moment"] == moment]
            chance = [row for row in own if row["by_chance"]]
            for label in ("covered", "met"):
                assert coverage([share for row in chance for share in row[label]])[0] >= CLAIMED
        mean = [row for row in rows if row["method"] == method and row["moment"] == "mean"]
        assert {(row["model"], row["asked"]) for row in mean} == {(n, least) for n in ZOO for least in LEASTS["mean"]}
    assert [(row["model"], row["method"], row["asked"]) for row in rows if row["ratio"] > MOST] == []
