"""Write docs/paper.md from its template and the committed results: python docs/results/page.py"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from mlmc_dropout.reproduction import rates, surface

HERE = Path(__file__).parent
TEMPLATE, PAGE = HERE / "paper.md.jinja", HERE.parent / "paper.md"


def minus(text: str) -> str:
    """A proper minus sign before numbers; exponents and names such as seed-1 as they are."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def number(value: Any, digits: int = 4) -> str:
    """A number to ``digits`` significant digits with a proper minus sign; words as they are."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return "" if value is None else minus(str(value)).replace("|", "\\|")
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value)}".replace("-", "−")
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


def fixed(value: float, decimals: int) -> str:
    """A number with a fixed count of decimals."""
    return f"{value:.{decimals}f}".replace("-", "−")


def table(data: dict[str, Any], digits: int = 4) -> str:
    """A Markdown table with its caption in italics."""
    head = "| " + " | ".join(data["columns"]) + " |"
    rule = "|" + "|".join(" --- " if i == 0 else " ---: " for i, _ in enumerate(data["columns"])) + "|"
    rows = ["| " + " | ".join(number(cell, digits).strip() for cell in row) + " |" for row in data["rows"]]
    return "\n".join([head, rule, *rows, "", f"*{data['caption']}*"])


def signed(check: dict[str, Any]) -> str:
    """A check as a list item: what was found, and whether it supports the paper."""
    mark = {"claim": "✓" if check["holds"] else "✗", "agreement": "✓" if check["holds"] else "≠", "note": "·"}
    text = minus(check["finding"]).replace("|", "\\|")
    return f"- {mark[check['kind']]} {text}"


def subscripts(page: str) -> str:
    """Indices of symbols, as in M_1, S²_Y or c_cpl, below the line; code, formulas and links as they are."""
    parts = re.split(r"(```.*?```|`[^`]*`|\$[^$]*\$|\]\([^)]*\))", page, flags=re.S)
    parts[::2] = [re.sub(r"(?<!\w)([A-Za-z𝒮]²?|Δ[YV])_(\w+)", r"\1<sub>\2</sub>", part) for part in parts[::2]]
    parts[::2] = [re.sub(r"\b([αμ])(\d)", r"\1<sub>\2</sub>", part) for part in parts[::2]]
    return "".join(parts)


def outer(quantity: str) -> str:
    """A slope's name as it is today: that of the sample variance over the replicates, which older results call S²."""
    return quantity.replace("‖S²", "‖𝒮²") if quantity.startswith("slope") else quantity


def spread(seeds: dict[str, Any], by_id: dict[str, Any], problem: str, names: list[str]) -> str:
    """Quantities of experiments for every network of a problem, and what is printed for them."""
    networks = {key: entry for key, entry in seeds["networks"].items() if key.startswith(problem)}
    rows = []
    for name in names:
        printed = {outer(entry["quantity"]): entry for entry in by_id[name]["paper"] if "low" in entry}
        for entries in zip(*(network["ours"][name] for network in networks.values()), strict=True):
            quantity = outer(entries[0]["quantity"])
            entry = printed.get(quantity)
            value, low, high = (number(entry[end], 5) if entry else "" for end in ("value", "low", "high"))
            cell = f"{value} ({low}, {high})" if entry else "–"
            rows.append([quantity, *(number(one["value"]) for one in entries), cell])
    labels = (key.removeprefix(problem).strip("-").replace("-", " ") for key in networks)
    columns = ["quantity", *(label or "seed 0 (fewer passes)" for label in labels), "printed (99 %)"]
    return table({"columns": columns, "rows": rows, "caption": f"Networks of {problem}."})


def short_slopes(seeds: dict[str, Any], by_id: dict[str, Any]) -> dict[str, Any]:
    """I3 on other networks: its T, the slope of the exact formula for V there, and how much wider intervals are."""
    T = rates.fidelities(rates.PROFILES["quick"] | seeds["settings"]["I3"])

    def width(entries: list[dict[str, Any]]) -> float:
        return float(sum(entry["high"] - entry["low"] for entry in entries) / len(entries))

    widths = [width(network["ours"]["I3"]) for network in seeds["networks"].values() if "I3" in network["ours"]]
    wider = sum(widths) / len(widths) / width(by_id["I3"]["ours"])
    return {"T": T, "slope": rates.theory_slope(T, "V"), "wider": wider}


def separate(results: Path, name: str) -> int:
    """How many allocations of an experiment have a run of their own."""
    numbers = json.loads((results / name / "numbers.json").read_text(encoding="utf-8"))
    return len(numbers["data"]["separate"]["norms"]["u"]["Y"])


def render(results: Path = HERE) -> str:
    """The page, from the files in ``results``."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"n": number, "f": fixed, "table": table, "check": signed}
    summary = json.loads((results / "summary.json").read_text(encoding="utf-8"))
    verdicts = [json.loads((results / name / "verdict.json").read_text(encoding="utf-8")) for name in summary["ids"]]
    by_id = {verdict["id"]: verdict for verdict in verdicts}
    seeds = json.loads((results / "seeds.json").read_text(encoding="utf-8"))
    page = (
        environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
        .render(
            summary=summary,
            verdicts=verdicts,
            by_id=by_id,
            seeds=seeds,
            spread=partial(spread, seeds, by_id),
            short=short_slopes(seeds, by_id),
            share=surface.SHARE,
            lattice={name: separate(results, name) for name in ("F4", "I4")},
            evidence=json.loads((results / "evidence.json").read_text(encoding="utf-8")),
            panels={
                v["id"]: sorted((p.name for p in (results / v["id"]).glob("figure*.png")), key=len) for v in verdicts
            },
        )
        .rstrip()
        + "\n"
    )
    return subscripts(page)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
