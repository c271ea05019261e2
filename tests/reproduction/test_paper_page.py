"""The page about the paper says what the committed results say, and nothing else.

These tests read the JSON files again that ``mlmc-dropout reproduce all --profile paper`` has written; they do not run
the experiments, and say so. Those with ``anew`` in their names compute a small part with today's code and compare.
"""

from __future__ import annotations

import importlib.util
import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mlmc_dropout.reproduction import (
    EXPERIMENTS,
    cost_curves,
    evidence,
    f3_dropout_rate,
    i3_rates,
    separate_runs,
    surrogates,
)
from mlmc_dropout.reproduction.statistics import CONFIDENCE
from mlmc_dropout.reproduction.surrogates import POINTS
from mlmc_dropout.reproduction.work import Work

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results"
TEMPLATE = RESULTS / "paper.md.jinja"

# A number that is not part of a name (M_0, μ2, V², F4): no letter, underscore or digit just before it.
NUMBER = re.compile(r"(?<![\w.^/#])-?\d+(?:\.\d+)*(?:e-?\d+)?(?![\w²])")
FILLED_IN = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.S)  # what the template takes from the results


def load_page_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paper_page", RESULTS / "page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers_by_hand(template: str) -> set[str]:
    """The numbers of a template that do not come from the results."""
    return set(NUMBER.findall(FILLED_IN.sub("", template).replace("−", "-")))


def settings() -> set[str]:
    """The numbers that may be written by hand: common settings, printed slopes, and those of formulas."""
    slopes_of_V = {f"{i3_rates.PRINTED[out, 'V'][0]:.4f}" for out in "uf"}
    common = {str(POINTS), f"{100 * CONFIDENCE:.0f}", *map(str, evidence.LADDER)}
    cost_of_the_authors_regression = "1024"  # at commit 8f27108
    return slopes_of_V | common | {"-1", "0", "1", "2", cost_of_the_authors_regression}


def test_page_is_made_from_the_committed_results() -> None:
    assert (DOCS / "paper.md").read_text(encoding="utf-8") == load_page_script().render()


def test_numbers_written_by_hand_are_settings() -> None:
    """Together with the test above: every other number of the page comes from the results."""
    assert numbers_by_hand(TEMPLATE.read_text(encoding="utf-8")) == settings()


@pytest.mark.parametrize("invented", ["slope −1.0777", "costs 12345 passes", "3.21e-7", "7 times"])
def test_a_number_from_elsewhere_is_noticed(invented: str) -> None:
    """Negative control."""
    assert numbers_by_hand(f"{TEMPLATE.read_text(encoding='utf-8')} {invented}") != settings()
    assert numbers_by_hand("{{ 12345 | n }}") == set()


def test_pictures_are_there() -> None:
    pictures = re.findall(r"\]\((results/[^)]+)\)", (DOCS / "paper.md").read_text(encoding="utf-8"))
    assert len(pictures) >= 8
    assert all((DOCS / name).is_file() for name in pictures)


def test_results_are_of_the_paper_profile_and_name_no_machine() -> None:
    summary = json.loads((RESULTS / "summary.json").read_text(encoding="utf-8"))
    assert summary["profile"] == "paper"
    assert summary["command"] == "mlmc-dropout reproduce all --profile paper --out docs/results"
    for path in RESULTS.glob("**/*.json"):
        text = path.read_text(encoding="utf-8")
        assert "/tmp" not in text and "/home" not in text and "/work" not in text


def test_the_headline_comes_first_and_is_not_reproduced() -> None:
    """From the committed JSON."""
    summary = json.loads((RESULTS / "summary.json").read_text(encoding="utf-8"))
    assert summary["ids"][0] == "H" and len(summary["ids"]) == 9
    assert summary["verdicts"]["H"] == "not reproduced"


def test_the_whole_profile_was_run_from_scratch_in_time() -> None:
    """From the committed JSON: one call computed everything; what was computed again later says so."""
    summary = json.loads((RESULTS / "summary.json").read_text(encoding="utf-8"))
    whole, *later = summary["runs"]
    assert whole["computed"] == [*EXPERIMENTS, "evidence"]
    assert summary["seconds"] <= whole["wall_clock_seconds"] + sum(run["wall_clock_seconds"] for run in later) < 90 * 60
    for run in summary["runs"]:
        assert re.fullmatch(r"[0-9a-f]{40}", run["revision"]), "of a commit, without uncommitted changes"
    for name in EXPERIMENTS:
        run = [run for run in summary["runs"] if name in run["computed"]][-1]
        end, made = datetime.fromisoformat(run["date"]), datetime.fromisoformat(committed(name)["date"])
        assert timedelta() <= end - made <= timedelta(seconds=run["wall_clock_seconds"] + 1), f"{name} is of no run"


def slopes() -> dict[str, tuple[float, float, float]]:
    """Name -> low, high, theory from the tables of F2 and I3, from the committed JSON."""
    intervals = {}
    for name in ("F2", "I3"):
        verdict = json.loads((RESULTS / name / "verdict.json").read_text(encoding="utf-8"))
        for label, low, _, high, theory, *_ in verdict["tables"][0]["rows"]:
            if "ddof" not in label:
                intervals[f"{name} {label}"] = (low, high, theory)
    return intervals


def test_all_six_slopes_agree_with_theory() -> None:
    """From the committed JSON."""
    intervals = slopes()
    assert len(intervals) == 6
    outside = {name: values for name, values in intervals.items() if not values[0] <= values[2] <= values[1]}
    assert outside == {}


def test_optima_agree_with_the_coupled_cost_and_not_with_the_printed_ones() -> None:
    """From the committed JSON."""
    for name in ("F4", "I4"):
        checks = json.loads((RESULTS / name / "verdict.json").read_text(encoding="utf-8"))["checks"]
        assert all(c["holds"] for c in checks if c["kind"] == "claim")
        assert not any(c["holds"] for c in checks if c["kind"] == "agreement")
        assert all(c["holds"] for c in checks if c["kind"] == "note")


def committed(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name / "numbers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["F2", "I3"])
def test_part_of_the_rates_computed_anew(name: str, tmp_path: Path) -> None:
    """The lowest fidelities with today's code: the same seed gives the same norms."""
    kept = committed(name)
    some = {**kept["settings"], "highest": kept["data"]["T"][2], "count": 3, "moment_passes": 10}
    network = surrogates.load(EXPERIMENTS[name].surrogates[0])
    fresh = EXPERIMENTS[name].compute(network, some, Work(tmp_path / "partial", "", name, None))
    assert fresh["T"] == kept["data"]["T"][:3]
    for out, norms in fresh["norms"].items():
        for key, values in norms.items():
            np.testing.assert_allclose(values, kept["data"]["norms"][out][key][:3], rtol=1e-4)


@pytest.mark.parametrize("name", ["F1", "I1", "I2"])
def test_part_of_the_curves_computed_anew(name: str, tmp_path: Path) -> None:
    """Means and variances at the lowest fidelity."""
    kept = committed(name)
    some = {**kept["settings"], "fidelities": kept["settings"]["fidelities"][:1]}
    network = surrogates.load(EXPERIMENTS[name].surrogates[0])
    fresh = EXPERIMENTS[name].compute(network, some, Work(tmp_path / "partial", "", name, None))
    for out, run in fresh["runs"][0].items():
        for key in "YV":
            np.testing.assert_allclose(run[key], kept["data"]["runs"][0][out][key], rtol=1e-3, atol=1e-6)


def test_part_of_the_dropout_rates_computed_anew(tmp_path: Path) -> None:
    """The smallest rate, for the untrained network: the trained one has too many passes for a test."""
    kept = committed("F3")
    some = {**kept["settings"], "count": 1, "fidelity": 2}
    network = surrogates.load(EXPERIMENTS["F3"].surrogates[0])
    fresh = EXPERIMENTS["F3"].compute(network, some, Work(tmp_path / "partial", "", "F3", None))
    for key, values in fresh["untrained"].items():
        np.testing.assert_allclose(values, kept["data"]["untrained"][key][:1], rtol=1e-3)


def test_part_of_the_headline_computed_anew(tmp_path: Path) -> None:
    """The first point of the first curve, plain Monte Carlo on the forward network, with its long reference."""
    kept = committed("H")
    less = {"costs": kept["settings"]["costs"][:1], "repetitions": 2, "check": 100}
    some = {**kept["settings"], **less, "long": {"ladder": [4, 8, 16], "budget": 112}}
    name = EXPERIMENTS["H"].surrogates[0]
    fresh = EXPERIMENTS["H"].compute(surrogates.load(name), some, Work(tmp_path / "partial", "", "H", None))
    one, two = (data["networks"][name]["curves"]["plain"][0] for data in (fresh, kept["data"]))
    assert one["cost"] == two["cost"]
    for key, squares in one["squares"].items():
        np.testing.assert_allclose(squares, two["squares"][key][:2], rtol=1e-2)


@pytest.mark.parametrize("name", ["F4", "I4"])
def test_part_of_the_allocations_computed_anew(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first allocation that has a run of its own, with today's code."""
    kept = committed(name)
    some = separate_runs.allocations(kept["data"]["ladder"], kept["data"]["budget"], kept["settings"]["step"])[:1]
    monkeypatch.setattr(separate_runs, "allocations", lambda *_: some)
    network = surrogates.load(EXPERIMENTS[name].surrogates[0])
    fresh = separate_runs.compute(network, kept["settings"], Work(tmp_path / "partial", "", name, None))
    for out, norms in fresh["norms"].items():
        for key, values in norms.items():
            np.testing.assert_allclose(values, kept["data"]["separate"]["norms"][out][key][:1], rtol=1e-4)


def test_the_printed_optima_computed_anew() -> None:
    kept = json.loads((RESULTS / "evidence.json").read_text(encoding="utf-8"))["printed_optima"]
    fresh = json.loads(json.dumps(evidence.printed_optima()))
    for name, entry in fresh.items():
        if isinstance(entry, dict) and "continuous" in entry:
            np.testing.assert_allclose(entry["continuous"], kept[name]["continuous"])


def test_what_noisy_coefficients_cost_on_another_page() -> None:
    """From the committed JSON: squared errors of control variates over those of plain averaging, for few passes."""
    curves = committed("H")["data"]["networks"]["digits"]["curves"]
    loss = {}
    for ours, plain in zip(curves["control-variate"], curves["plain"], strict=True):
        errors = [cost_curves.measured(point, "variance")[0] * point["cost"] for point in (ours, plain)]
        loss[ours["budget"]] = errors[0] / errors[1]
    few = [f"{loss[passes]:.3g}" for passes in (50, 100, 200)]
    page = " ".join((DOCS / "concepts" / "variance-reduction.md").read_text(encoding="utf-8").split())
    assert f"{few[0]}, {few[1]} and {few[2]} times the squared error of plain averaging at 50, 100 and 200" in page
    assert all(factor < 1 for passes, factor in loss.items() if passes >= 500)


# ------------------------------------------------------------- what the page says of other networks, from seeds.json


def networks(problem: str) -> dict[str, Any]:
    """The entries of the committed JSON for the networks of a problem."""
    found = json.loads((RESULTS / "seeds.json").read_text(encoding="utf-8"))["networks"]
    return {name: entry for name, entry in found.items() if name.startswith(problem)}


def failed(entry: dict[str, Any], experiment: str, *words: str) -> list[str]:
    """Checks of an experiment that failed for a network, those with all the words."""
    return [statement for statement in entry["failed"][experiment] if all(word in statement for word in words)]


def test_there_are_five_forward_and_three_inverse_seeds() -> None:
    """From the committed JSON; the scalar ω is another setting, not another seed."""
    assert [entry["seed"] for entry in networks("boundary-layer").values()] == [0, 1, 2, 3, 4]
    local = [entry for entry in networks("source-inference").values() if entry["omega"] == "point"]
    assert [entry["seed"] for entry in local] == [0, 1, 2]
    for problem, ids in (("boundary-layer", "F"), ("source-inference", "I")):
        for entry in networks(problem).values():
            assert list(entry["verdicts"]) == [f"{ids}{number}" for number in (1, 2, 3, 4)]


def test_what_is_said_of_other_forward_networks() -> None:
    """From the committed JSON: only the printed parameters of F3 and the printed counts of F4 ever fail."""
    first, *others = networks("boundary-layer").values()
    assert failed(first, "F3") == []
    for entry in (first, *others):
        assert failed(entry, "F1") == failed(entry, "F2") == []
        assert failed(entry, "F3") == failed(entry, "F3", "printed intervals")
        assert failed(entry, "F4") == failed(entry, "F4", "printed optimum")
    assert all(failed(entry, "F3") for entry in others)
    for entry in (first, *others):
        fitted = {q["quantity"]: q["value"] for q in entry["ours"]["F3"]}
        for key, printed in f3_dropout_rate.PRINTED.items():
            assert fitted[f"α1 for {key}"] < printed[0][0] and fitted[f"α4 for {key}"] < printed[3][0]


def test_what_is_said_of_other_inverse_networks() -> None:
    """From the committed JSON: bias, too large a spread, slopes as in theory, the optimum of the coupled cost."""
    longest, *shorter = networks("source-inference").values()
    spread = [[q["value"] for q in e["ours"]["I2"] if q["quantity"].startswith("mean √V")] for e in (longest, *shorter)]
    assert all(entry["epochs"] < longest["epochs"] for entry in shorter)
    assert all(after > before for values in spread[1:] for before, after in zip(spread[0], values, strict=True))
    for entry in (longest, *shorter):
        assert failed(entry, "I1", "epistemic error is negligible")
        ratios = [q["low"] for q in entry["ours"]["I2"] if q["quantity"].startswith("mean √V")]
        assert len(ratios) == 2 and min(ratios) > 1
        assert failed(entry, "I3") == []
        assert failed(entry, "I4") == failed(entry, "I4", "printed optimum")
