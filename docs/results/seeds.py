"""Verdicts for other trained networks, to seeds.json: python docs/results/seeds.py <scratch folder>

Every experiment on a single network is run, with the settings below, for the network of the paper profile and for all
further ones that come with the library. What has been computed is kept in the scratch folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mlmc_dropout import pinn
from mlmc_dropout.reproduction import reproduce, surrogates
from mlmc_dropout.reproduction.storage import versions, write_json

FORWARD = ("boundary-layer", *(f"boundary-layer-seed-{seed}" for seed in (1, 2, 3, 4)))
INVERSE = ("source-inference", "source-inference-seed-1", "source-inference-scalar-omega")

SETTINGS: dict[str, dict[str, Any]] = {
    "F3": {"lowest": 0.02, "highest": 0.98, "count": 17},
    "F4": {"repetitions": 3, "plan_repetitions": 2, "moment_passes": 1000, "step": 16},
    "I1": {"fidelities": [10, 10_000]},
    "I2": {"fidelities": [10, 10_000]},
    "I3": {"highest": 300, "count": 6},
}


def row(name: str, ids: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """How a network was trained, and what the experiments say about it."""
    run = pinn.pretrained(name)
    load = lambda _: surrogates.load(name)  # noqa: E731
    reproduce(ids, "quick", scratch / name, progress=False, load=load, overrides=SETTINGS)
    verdicts = {id: json.loads((scratch / name / id / "verdict.json").read_text(encoding="utf-8")) for id in ids}
    return {
        "seed": run.config.seed,
        "epochs": run.config.epochs,
        "omega": getattr(run.problem, "omega", None),
        "relative_l2_of_mean": run.summary["relative_l2_of_mean"],
        "rms_std": run.summary["rms_std"],
        "verdicts": {id: verdict["verdict"] for id, verdict in verdicts.items()},
        "ours": {id: verdict["ours"] for id, verdict in verdicts.items()},
        "failed": {
            id: [check["statement"] for check in verdict["checks"] if check["kind"] != "note" and not check["holds"]]
            for id, verdict in verdicts.items()
        },
    }


def main(scratch: Path) -> None:
    """Run everything and write the file."""
    groups = ((FORWARD, ("F1", "F2", "F3", "F4")), (INVERSE, ("I1", "I2", "I3")))  # a surface of I4 takes minutes
    shipped = {path.name for path in (Path(pinn.__file__).parent / "weights").iterdir()}
    networks = {name: row(name, ids, scratch) for names, ids in groups for name in names if name in shipped}
    write_json(Path(__file__).parent / "seeds.json", {"settings": SETTINGS, **versions(), "networks": networks})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
