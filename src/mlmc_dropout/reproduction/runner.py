"""Run experiments, keep their numbers, and write verdicts, figures and a summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlmc_dropout.errors import InputError
from mlmc_dropout.pinn.provenance import revision
from mlmc_dropout.reproduction import (
    evidence,
    f1_bands,
    f2_rates,
    f3_dropout_rate,
    f4_allocation,
    figures,
    h_headline,
    i1_means,
    i2_deviations,
    i3_rates,
    i4_allocation,
    storage,
    surrogates,
)
from mlmc_dropout.reproduction.experiment import Experiment
from mlmc_dropout.reproduction.verdict import Verdict, conclude
from mlmc_dropout.reproduction.work import Bar, Lines, ProgressCallback, Work

__all__ = ["EXPERIMENTS", "PROFILES", "reproduce", "summary_table"]

_FORWARD, _INVERSE = (f1_bands, f2_rates, f3_dropout_rate, f4_allocation), (i1_means, i2_deviations, i3_rates)
_MODULES = (h_headline, *_FORWARD, *_INVERSE, i4_allocation)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}
PROFILES = ("quick", "paper")

FORMAT = 2  # raise it when computed numbers change their meaning: kept numbers are then computed again


def reproduce(
    ids: Sequence[str],
    profile: str,
    out: Path,
    progress: bool = True,
    *,
    load: Callable[[str], surrogates.Network] = surrogates.load,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Verdict]:
    """Run experiments and write ``out/<id>/`` for each, then ``out/summary.json``.

    An experiment whose numbers are there, for the same settings and weights, is not run again; its verdict and figures
    are made anew from them. One that was interrupted goes on where it stopped.

    Args:
        ids: Names of experiments, or ``["all"]``.
        profile: ``"quick"`` (minutes) or ``"paper"`` (the settings of the paper and its code, an hour).
        out: Folder for figures, numbers and verdicts.
        progress: Whether to show how far it is, on stderr.
        load: Gives a network by its name.
        overrides: Settings to replace, by experiment.

    Returns:
        One verdict per experiment, in the order of ``ids``.

    Raises:
        InputError: If an experiment or the profile is unknown.
        MissingExtraError: If matplotlib is not installed.
    """
    experiments = _select(ids, profile)
    started, code = time.perf_counter(), revision()  # at the start: a checkout may move on meanwhile
    figures.canvas(1, 1)  # a missing plotting library is noticed before any work is done
    names = [name for experiment in experiments for name in experiment.surrogates]
    loaded = {name: load(name) for name in dict.fromkeys(names)}
    show = (Bar() if sys.stderr.isatty() else Lines()) if progress else None
    verdicts, computed = [], []
    for experiment in experiments:
        settings = {**experiment.profiles[profile], **(overrides or {}).get(experiment.id, {})}
        networks = tuple(loaded[name] for name in experiment.surrogates)
        verdict, fresh = _run(experiment, settings, networks, out / experiment.id, show)
        verdicts.append(verdict)
        computed += [verdict.id] * fresh
    complete = len(experiments) == len(EXPERIMENTS)
    if complete and _evidence(out / "evidence.json", profile, show):
        computed.append("evidence")
    run = {"computed": computed, "wall_clock_seconds": round(time.perf_counter() - started, 1), "revision": code}
    runs = _runs(storage.read_json(out / "summary.json") or {}, profile, run)
    summary = _summary(verdicts, "all" if complete else " ".join(ids), profile, out)
    storage.write_json(out / "summary.json", {**summary, "runs": runs})
    return verdicts


def _select(ids: Sequence[str], profile: str) -> list[Experiment]:
    if profile not in PROFILES:
        raise InputError(f"unknown profile {profile!r}; use one of {', '.join(PROFILES)}")
    names = list(EXPERIMENTS) if "all" in ids else [name.upper() for name in ids]
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown or not names:
        raise InputError(f"unknown experiments {unknown or ids}; use {', '.join(EXPERIMENTS)} or all")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def _run(
    experiment: Experiment,
    settings: Mapping[str, Any],
    networks: Sequence[surrogates.Network],
    folder: Path,
    show: ProgressCallback | None,
) -> tuple[Verdict, bool]:
    """The verdict, and whether its numbers were computed now."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers, fresh = _numbers(experiment, settings, networks, folder, show)
    data = numbers["data"]
    verdict = conclude(
        experiment.id, experiment.title, experiment.claim, experiment.judge(data), settings, numbers["seconds"]
    )
    storage.write_csv(folder / "numbers.csv", experiment.rows(data))
    storage.write_json(folder / "verdict.json", verdict.to_json())
    for name, figure in experiment.draw(data).items():
        figures.save(figure, folder, name)
    return verdict, fresh


def _numbers(
    experiment: Experiment,
    settings: Mapping[str, Any],
    networks: Sequence[surrogates.Network],
    folder: Path,
    show: ProgressCallback | None,
) -> tuple[dict[str, Any], bool]:
    """The kept numbers if they are of the same settings and weights, else fresh ones; and whether they are fresh."""
    weights = {network.name: network.fingerprint() for network in networks}
    fingerprint = storage.fingerprint(FORMAT, experiment.id, dict(settings), weights)
    kept = storage.read_json(folder / "numbers.json")
    if kept is not None and kept.get("fingerprint") == fingerprint:
        if show is not None:
            show(f"{experiment.id} numbers are there already", 1, 1)
        return kept, False
    work = Work(folder / "partial.jsonl", fingerprint, experiment.id, show)
    started = time.perf_counter()
    data = experiment.compute(*networks, settings, work)
    numbers = {
        "fingerprint": fingerprint,
        "settings": dict(settings),
        "surrogates": weights,
        "seconds": round(time.perf_counter() - started, 1),
        **storage.versions(),
        "data": data,
    }
    storage.write_json(folder / "numbers.json", numbers)
    work.forget()
    return numbers, True


def _evidence(path: Path, profile: str, show: ProgressCallback | None) -> bool:
    """The simulations behind the documentation, unless they are there for the same profile; whether it computed."""
    fingerprint = storage.fingerprint(FORMAT, profile, evidence.REPETITIONS[profile], evidence.SIMULATIONS[profile])
    if (storage.read_json(path) or {}).get("fingerprint") == fingerprint:
        return False
    storage.write_json(path, {"fingerprint": fingerprint, **evidence.collect(profile, show)})
    return True


def _runs(before: Mapping[str, Any], profile: str, run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Which call computed what, in what time on the clock and with which code.

    A call that computes everything begins the list anew; one that computes nothing leaves it as it was.
    """
    everything = {*EXPERIMENTS, "evidence"} <= set(run["computed"])
    kept = before.get("runs", []) if before.get("profile") == profile and not everything else []
    return [*kept, {**storage.versions(), **run}] if run["computed"] else kept


def _summary(verdicts: Sequence[Verdict], ids: str, profile: str, out: Path) -> dict[str, Any]:
    where = out if not out.is_absolute() else Path(out.name)  # no machine's paths in a file that is shared
    return {
        "ids": [verdict.id for verdict in verdicts],
        "profile": profile,
        "command": f"mlmc-dropout reproduce {ids} --profile {profile} --out {where.as_posix()}",
        **storage.versions(),
        "verdicts": {verdict.id: verdict.verdict for verdict in verdicts},
        "seconds": round(sum(verdict.seconds for verdict in verdicts), 1),
    }


def summary_table(verdicts: Sequence[Verdict]) -> str:
    """One line per experiment, for a terminal.

    Args:
        verdicts: The verdicts.

    Returns:
        The lines.
    """
    width = max((len(verdict.title) for verdict in verdicts), default=0)
    lines = [f"{v.id:<4}{v.title:<{width}}  {v.verdict}" for v in verdicts]
    return "\n".join(lines)
