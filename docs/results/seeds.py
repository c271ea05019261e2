"""Verdicts for other trained networks, to seeds.json, and the table of networks in docs/pinn.md.

    python docs/results/seeds.py <scratch folder>

Every experiment on a single network is run, with the settings below, for the network of the paper profile and for all
further ones that come with the library. What has been computed is kept in the scratch folder. A finished training run
joins the library by ``mlmc_dropout.pinn.runs.publish(run, "src/mlmc_dropout/pinn/weights/<name>", every=...)``.
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
INVERSE = ("source-inference", *(f"source-inference-seed-{seed}" for seed in (1, 2)), "source-inference-scalar-omega")

SETTINGS: dict[str, dict[str, Any]] = {
    "F3": {"lowest": 0.02, "highest": 0.98, "count": 17},
    "F4": {"repetitions": 3, "plan_repetitions": 2, "moment_passes": 1000, "step": 16},
    "I4": {"repetitions": 4, "plan_repetitions": 2, "moment_passes": 1000, "step": 16},
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


def table(networks: dict[str, Any]) -> str:
    """How every network was trained, how far its mean is from the exact one, and its spread."""
    columns = ("run", "epochs", "ω", "error of u", "error of f", "spread of u", "spread of f")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, entry in networks.items():
        errors, spread = entry["relative_l2_of_mean"], entry["rms_std"]
        cells = [f"{100 * errors[out]:.2f} %" if out in errors else "–" for out in "uf"]
        cells += [f"{spread[out]:.4f}" if out in spread else "–" for out in "uf"]
        lines.append(f"| `{name}` | {entry['epochs']} | {entry['omega'] or '–'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table(networks: dict[str, Any], page: Path = Path(__file__).parents[1] / "pinn.md") -> None:
    """Put the table between its marks."""
    before, rest = page.read_text(encoding="utf-8").split("<!-- seeds -->\n")
    after = rest.split("<!-- /seeds -->")[1]
    page.write_text(f"{before}<!-- seeds -->\n{table(networks)}\n<!-- /seeds -->{after}", encoding="utf-8")


def main(scratch: Path) -> None:
    """Run everything and write the file."""
    groups = ((FORWARD, ("F1", "F2", "F3", "F4")), (INVERSE, ("I1", "I2", "I3", "I4")))
    shipped = {path.name for path in (Path(pinn.__file__).parent / "weights").iterdir()}
    networks = {name: row(name, ids, scratch) for names, ids in groups for name in names if name in shipped}
    write_json(Path(__file__).parent / "seeds.json", {"settings": SETTINGS, **versions(), "networks": networks})
    write_table(networks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
