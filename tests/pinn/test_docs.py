"""The numbers in the documentation are those of the files they are said to come from.

These tests read committed files again; nothing is trained or timed. ``test_pretrained.py`` runs the networks.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from mlmc_dropout.pinn import pretrained
from mlmc_dropout.pinn.config import dump
from mlmc_dropout.pinn.evaluation import grid
from mlmc_dropout.reproduction import EXPERIMENTS

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


def settings(name: str) -> dict[str, str]:
    """Key -> our value, from the table of settings of a problem."""
    section = PAGE.split(f"`{name}`\n\n| setting", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()]
    return {row[1].strip("`"): row[-1] for row in cells if row[1].startswith("`")}


def config(name: str) -> dict[str, str]:
    """Key -> value, from the config file of the run that comes with the package and from what it leaves out."""
    table = tomllib.loads(dump(pretrained(name).config))
    sections = {key: part for key, part in table.items() if isinstance(part, dict)}
    flat = {key: part for key, part in table.items() if key not in sections}
    flat |= {f"{section}.{key}": part for section, entries in sections.items() for key, part in entries.items()}
    return {key: str(part) for key, part in flat.items()}


# How a run is carried out, not what it learns; the inverse run never changes its learning rate.
OWN = {"problem", "compile", "checkpoint_seconds", "evaluation_passes"}


@pytest.mark.parametrize(
    ("name", "unused"), [("boundary-layer", set()), ("source-inference", {"optimizer.decay_every"})]
)
def test_the_table_of_settings_is_complete_and_that_of_the_run(name: str, unused: set[str]) -> None:
    table, run = settings(name), config(name)
    assert set(table) == set(run) - OWN - unused
    assert table == {key: run[key] for key in table}
    assert config(name) == config(name) | {"seed": "0"}


def evaluation_settings() -> dict[str, str]:
    """Experiment and key -> our value, from the table of the evaluation."""
    section = PAGE.split("### Evaluation\n\n", 1)[1].split("\n\n", 1)[0]
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in section.splitlines()]
    return {key: row[-1].strip() for row in cells for key in re.findall(r"`([^`]+)`", row[1])}


def profile_settings() -> dict[str, str]:
    """The same from the paper profiles of the experiments that the paper has; how lists are written is the page's."""
    return {
        f"{name}.{key}": ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, experiment in EXPERIMENTS.items()
        if name != "H"
        for key, value in experiment.profiles["paper"].items()
    }


# Seeds, and what is measured beside the paper's own numbers.
BESIDE = {"seed", "moment_passes", "plan_repetitions", "fidelity_untrained"}


def test_the_table_of_the_evaluation_is_complete_and_that_of_the_profiles() -> None:
    wanted = {key: value for key, value in profile_settings().items() if key.split(".")[1] not in BESIDE}
    assert evaluation_settings() == wanted


def test_a_wrong_setting_of_the_evaluation_is_noticed() -> None:
    """Negative control: quick profiles are not those of the table."""
    quick = {name: experiment.profiles["quick"] for name, experiment in EXPERIMENTS.items()}
    assert evaluation_settings()["F3.count"] != str(quick["F3"]["count"])


def test_a_wrong_setting_is_noticed() -> None:
    """Negative control: the tables of the two problems do not fit each other's runs."""
    table = settings("boundary-layer")
    assert table != {key: config("source-inference").get(key) for key in table}


def test_other_seeds() -> None:
    names = sorted(path.name for path in (ROOT / "src" / "mlmc_dropout" / "pinn" / "weights").iterdir())
    assert len([name for name in names if name.startswith("boundary-layer")]) == 5
    for name in names:
        run = pretrained(name)
        errors, spread = run.summary["relative_l2_of_mean"], run.summary["rms_std"]
        percent = [f"{100 * errors[out]:.2f} %" if out in errors else "–" for out in "uf"]
        deviations = [f"{spread[out]:.4f}" if out in spread else "–" for out in "uf"]
        omega = getattr(run.problem, "omega", "–")
        assert [f"`{name}`", str(run.config.epochs), omega, *percent, *deviations] in rows()


def test_what_is_said_of_the_target_and_of_the_length_of_training() -> None:
    """A scalar ω hardly changes the spread at equal length; a tenth of the epochs more than triples that of f."""
    scalar = pretrained("source-inference-scalar-omega")
    inverse = [pretrained(path.name) for path in scalar.path.parent.iterdir() if path.name.startswith("source")]
    equal = [run for run in inverse if run.config.epochs == scalar.config.epochs and run.problem.omega == "point"]
    assert equal and scalar.config.epochs == 20_000
    longest = pretrained("source-inference").summary["rms_std"]["f"]
    for run in equal:
        for output, spread in run.summary["rms_std"].items():
            assert scalar.summary["rms_std"][output] == pytest.approx(spread, rel=0.15)
        assert run.summary["rms_std"]["f"] > 3 * longest


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
