"""Tolerances on every model of the test zoo: whether they are met in truth, and what that costs.

The study itself is ``testing/tolerance_study.py``, which says how "covered", "met" and "spent" are meant; the slow test
``tests/statistical/test_tolerance_zoo.py`` runs a smaller version of it. References of a million plain passes are
computed once and kept in ``results/zoo_references.json``. ``--models`` repeats a part and keeps the rest.

The largest of several hundred averages over ten runs is large by chance. ``--largest`` runs the cells that spent most
again, with four times as many new seeds, and keeps what these say.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import common
import numpy as np

from mlmc_dropout.sampling.sampler import FallbackWarning
from testing.tolerance_study import (
    FEW,
    LEASTS,
    METHODS,
    REFERENCE,
    Reference,
    Study,
    coverage,
    parts,
    reference_of,
    saved_references,
)
from testing.zoo import ZOO

RESULTS = common.RESULTS / "tolerance.json"
LARGE = 1.25  # times the least possible
OTHER_SEEDS = 500


def saved_rows() -> list[dict[str, Any]]:
    """What an earlier run saved."""
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    return rows


def save(rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """All rows in the order of the zoo."""
    common.save("tolerance", sorted(rows, key=lambda row: list(ZOO).index(row["model"])), **settings)


def references(fresh: bool) -> dict[str, Reference]:
    """A reference for every model: the saved one, or a new one."""
    known = {} if fresh else saved_references()
    found = {name: known.get(name) or reference_of(name) for name in ZOO}
    if found != known:
        common.save("zoo_references", [{"model": n, **asdict(r)} for n, r in found.items()], passes=REFERENCE)
    return found


def summary(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """One line per method, moment and tolerance, and one for all tolerances."""
    lines = []
    for method, moment in dict.fromkeys((row["method"], row["moment"]) for row in rows):
        own = [row for row in rows if (row["method"], row["moment"]) == (method, moment)]
        levels = [(str(n), [r for r in own if r["asked"] == n]) for n in LEASTS[moment]]
        for label, cells in [*levels, ("all", own)]:
            chance = [row for row in cells if row["by_chance"]]
            (covered, error), (met, _) = (coverage([s for r in chance for s in r[k]]) for k in ("covered", "met"))
            worst = max(cells, key=lambda row: row["ratio"])
            lines.append(
                [
                    method,
                    moment,
                    label,
                    len({row["model"] for row in cells}),
                    len({row["model"] for row in cells if not row["by_chance"]}),
                    sum(len(row["spent"]) for row in chance),
                    f"{covered:.3f} ± {error:.3f}",
                    f"{met:.3f}",
                    f"{np.mean([row['ratio'] for row in chance]):.2f}",
                    f"{worst['ratio']:.2f} ({worst['model']})",
                ]
            )
    return lines


def again(rows: list[dict[str, Any]], known: dict[str, Reference], seeds: int) -> Iterator[dict[str, Any]]:
    """The rows, with those that spent most replaced by new runs."""
    studies: dict[str, Study] = {}
    for row in rows:
        if row["ratio"] <= LARGE or "before" in row:
            yield row
            continue
        name = row["model"]
        study = studies.setdefault(name, Study(name, known[name]))
        cell = study.cell(row["method"], row["asked"], seeds, row["moment"], first=OTHER_SEEDS)
        print(
            f"{name} {cell.method} {cell.moment} {row['asked']}: {row['ratio']:.2f}, again {cell.ratio:.2f}", flush=True
        )
        yield {**row, **cell.plain(), "before": row["ratio"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="runs per model, method and tolerance")
    parser.add_argument("--models", nargs="*", default=list(ZOO), help="the models to run; the others are kept")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), help="likewise")
    parser.add_argument("--moments", nargs="*", default=list(LEASTS), help="likewise")
    parser.add_argument("--fresh", action="store_true", help="compute the references again")
    parser.add_argument("--largest", action="store_true", help="run only the cells that spent most again")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FallbackWarning)
    known = references(options.fresh)
    asked = set(itertools.product(options.models, options.methods, options.moments))
    rows = [row for row in saved_rows() if (row["model"], row["method"], row["moment"]) not in asked]
    if options.largest:
        options.models, rows = [], list(again(saved_rows(), known, 4 * options.seeds))
    settings = {"seeds": options.seeds, "leasts": LEASTS, "reference": REFERENCE, "few": FEW}
    for name in options.models:
        study = Study(name, known[name])
        print(f"{name}: plain reference and better methods differ by at most {study.disagreement():.2f} σ", flush=True)
        for method, moment in parts(name):
            if method not in options.methods or moment not in options.moments:
                continue
            for asked in LEASTS[moment]:
                cell = study.cell(method, asked, options.seeds, moment)
                rows.append({"asked": asked, "disagreement": study.disagreement(), **cell.plain()})
                covered, error = coverage(cell.covered)
                print(f"  {method} {moment} {asked}: {cell.ratio:.2f} of the least, covers {covered:.3f} ± {error:.3f}")
        save(rows, settings)
    save(rows, settings)
    columns = (
        "method",
        "moment",
        "least passes",
        "models",
        "exact",
        "runs",
        "covered",
        "met",
        "spent",
        "spent at most",
    )
    text = common.table(columns, summary(rows))
    common.write_into("tolerances.md", "tolerances", text)
    print(text)


if __name__ == "__main__":
    main()
