"""The folder and the page of an evaluation: averages over a data set, levels, rates.

evaluation.json   the evaluation (``mlmc_dropout.load_evaluation``), with what was asked
evaluation.csv    one line per metric
report.html       the page
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlmc_dropout.evaluation.result import Evaluation, load_evaluation
from mlmc_dropout.files import replacing
from mlmc_dropout.report.blocks import Card, CodeBlock, Facts, Figure, Note, Page, Section, TableBlock, Text
from mlmc_dropout.report.formats import duration, passes, percent, short
from mlmc_dropout.report.svg import NARROW, WIDE, Axis, Chart, Size
from mlmc_dropout.version import __version__

__all__ = ["FILE", "page", "write_evaluation_folder"]

FILE, TABLE = "evaluation.json", "evaluation.csv"
MOST_CARDS = 4
_NAMES = {
    "nll": "negative log-likelihood",
    "brier": "Brier score",
    "ece": "expected calibration error",
    "rmse": "root mean square error",
}


def write_evaluation_folder(path: Path, found: Evaluation, info: Mapping[str, Any]) -> list[str]:
    """Write what an evaluation found.

    Args:
        path: The folder; made if it is not there.
        found: The evaluation.
        info: Title, command, request, warnings and time, as plain data.

    Returns:
        Names of the files.
    """
    path.mkdir(parents=True, exist_ok=True)
    file = found.save(path / FILE)
    with replacing(file) as scratch:  # the same with what was asked
        content = {**json.loads(file.read_text(encoding="utf-8")), "info": dict(info)}
        scratch.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with replacing(path / TABLE) as scratch, open(scratch, "w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        writer.writerow(["metric", "value", "stderr", "bias", "alpha", "beta"])
        for name, one in found.estimates.items():
            rates = [one.rates["alpha"].value, one.rates["beta"].value]
            writer.writerow([name, one.value, one.stderr, one.bias, *rates])
    return [FILE, TABLE]


def page(folder: Path) -> Page:
    """The page about an evaluation.

    Args:
        folder: A folder written by ``mlmc-dropout evaluate``.

    Returns:
        All sections that apply.
    """
    found = load_evaluation(folder / FILE)
    info = json.loads((folder / FILE).read_text(encoding="utf-8")).get("info") or {}
    lead = f"{found.status.value} {passes(found.cost)} passes for each of {passes(found.rows)} inputs on average."
    return Page(
        str(info.get("title") or "Evaluation"),
        "MC dropout evaluation of a data set",
        lead,
        list(_sections(found, info)),
        f"Written by mlmc-dropout {__version__}. This page needs no network.",
    )


def _sections(found: Evaluation, info: Mapping[str, Any]) -> Iterator[Section]:
    yield _findings(found)
    said = info.get("notes", found.notes)  # a command has put them in its own words
    notes = [*(Note(text) for text in info.get("warnings", ())), *(Note(text, calm=True) for text in said)]
    if notes:
        yield Section("notes", "Notes", notes)
    yield _levels(found)
    yield _request(found, info)


def _name(metric: str) -> str:
    """What a metric is called, for people."""
    return _NAMES.get(metric, metric.replace("_", " "))


def _title(metric: str) -> str:
    name = _name(metric)
    return f"{name[0].upper()}{name[1:]}"


def _findings(found: Evaluation) -> Section:
    rows = [
        (_title(name), short(one.value, 4), short(one.stderr), short(one.shown_bias), _share(one.error, one.value))
        for name, one in found.estimates.items()
    ]
    first = sorted(found.estimates, key=lambda name: name != "accuracy")[:MOST_CARDS]
    cards = [_card(name, found.estimates[name].value, found.estimates[name].error) for name in first]
    table = TableBlock(
        "Averages over the data set",
        ("Metric", "Value", "Standard error", "Bias left", "Error, relative"),
        rows,
        "The error is standard error and remaining bias together. The bias is an estimate of its size, from how fast "
        "the differences between levels fall.",
    )
    return Section("findings", "Findings", [table], cards)


def _card(name: str, value: float, error: float) -> Card:
    if name == "accuracy":
        return Card(percent(value, 3), _title(name), f"±\u00a0{percent(error)}, by chance of the passes")
    return Card(short(value, 4), _title(name), f"±\u00a0{short(error)}, with the bias left")


def _share(error: float, value: float) -> str:
    return percent(error / abs(value)) if value and math.isfinite(error) else "–"


def _levels(found: Evaluation) -> Section:
    name = next(iter(found.estimates))
    several = len({level.stratum for level in found.levels}) > 1
    rows = [
        (
            passes(level.fidelity),
            passes(level.count),
            passes(level.cost),
            short(level.mean[name]),
            short(level.variance[name]),
            short(level.variance_plain[name]) if level.variance_plain[name] else "–",
            short(level.kurtosis[name]),
            f"{level.used}, stratum {level.stratum}" if several else level.used,
        )
        for level in found.levels
    ]
    table = TableBlock(
        f"Levels of the {_name(name)}",
        ("Passes", "Inputs", "Cost", "Mean", "Variance", "Without halves", "Kurtosis", "Used for"),
        rows,
        "Means and variances are those of the difference to the level below (of the value itself on the first). "
        "Without halves: the variance of the difference to the first half of the passes alone.",
    )
    rates = [
        (
            _title(metric),
            *(_rate(one.rates[key].value, one.rates[key].stderr) for key in ("alpha", "beta", "beta_plain")),
        )
        for metric, one in found.estimates.items()
    ]
    measured = TableBlock(
        "Measured rates: means fall like T^−α, variances like T^−β",
        ("Metric", "α", "β", "β without halves"),
        rates,
        "T is the number of passes of a level. α says how fast the bias that they leave falls with T: with α = 1, "
        "twice the passes leave half of it. β says how fast the variance of the differences between levels falls: "
        "above 1, a ladder pays, as its finest levels cost least. A dash: too few samples to tell.",
    )
    blocks: list[Any] = [Text(_way(found)), table, measured]
    chart = _variances(found, name)
    return Section("levels", "Levels", [*blocks, *([chart] if chart else [])])


_METHODS = {
    "mlmc": "Most inputs get few passes, some get many: each level corrects the bias of the one below, on inputs of "
    "its own.",
    "jackknife": "All inputs that are used get the same passes; the bias is estimated from their halves and removed.",
    "plug-in": "All inputs that are used get the same passes, whose mean is plugged in; that is biased.",
    "unbiased": "Each input that is used gets one random level, weighted by its probability.",
}


def _way(found: Evaluation) -> str:
    """How passes were spread over the inputs, as the levels show it."""
    used = {level.fidelity: level.used for level in found.levels if level.used != "pilot"}
    if found.method != "mlmc" or len(used) != 1:
        return _METHODS.get(found.method, "")
    ((fidelity, use),) = used.items()
    halves = " The bias that these leave is estimated from their halves and removed." if "difference" in use else ""
    return (
        f"Every input that is used gets {passes(fidelity)} passes: several levels would not have cost less.{halves} "
        "Levels of the pilot served to find that out."
    )


def _rate(value: float, stderr: float) -> str:
    return f"{value:.2f}\u00a0±\u00a0{stderr:.2f}".replace("-", "−") if math.isfinite(value) else "–"


def _variances(found: Evaluation, name: str) -> Figure | None:
    """Variances of the differences against T, with and without antithetic halves."""
    usable = [level for level in found.levels if level.variance_plain[name] > 0 and level.variance[name] > 0]
    levels = [level for level in usable if level.stratum == 0]
    if len(levels) < 2:
        return None
    T = [level.fidelity for level in levels]
    halves, plain = [lv.variance[name] for lv in levels], [lv.variance_plain[name] for lv in levels]

    def draw(size: Size) -> str:
        chart = Chart(
            size,
            Axis.of(T, "passes per input T", log=True, marks=T),
            Axis.of([*halves, *plain], "variance of the difference", log=True),
        )
        for values, style in ((halves, "dot"), (plain, "dot2")):
            chart.line(T, values, "line" if style == "dot" else "theory")
            chart.dots(T, values, style, 4.5)
        return chart.svg()

    return Figure(
        [draw(WIDE), draw(NARROW)],
        f"Variance of the differences of the {_name(name)} between a level and the one below: with both halves of the "
        "passes, and with the first half alone.",
        "; ".join(
            f"T = {t}: {short(a)} with halves, {short(b)} without" for t, a, b in zip(T, halves, plain, strict=True)
        ),
        (("dot", "both halves"), ("dot2", "first half alone")),
    )


def _setting(value: Any) -> str:
    """What was asked; the command writes numbers and flags as text."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return {"True": "yes", "False": "no"}.get(text, text.removesuffix(".0"))


def _request(found: Evaluation, info: Mapping[str, Any]) -> Section:
    items = [("Inputs", passes(found.rows)), ("Method", found.method), ("Seed", str(found.seed))]
    items += [
        ("True labels" if key == "labels" else key.replace("_", " ").capitalize(), _setting(value))
        for key, value in (info.get("asked") or {}).items()
        if key not in ("method", "seed", "inputs")
    ]
    if "seconds" in info:
        items.append(("Time", duration(float(info["seconds"]))))
    blocks: list[Any] = [Facts(items)]
    if info.get("command"):
        blocks.append(CodeBlock.of_command(str(info["command"]), "Run it again"))
    return Section("asked", "What was asked", blocks)
