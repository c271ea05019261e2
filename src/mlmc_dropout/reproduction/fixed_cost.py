"""The fixed-cost allocation test: shared by F4 and I4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import mlmc_dropout as md
from mlmc_dropout.reproduction import plans, rates, separate_runs, surface
from mlmc_dropout.reproduction.statistics import l1_norm
from mlmc_dropout.reproduction.surrogates import Surrogate
from mlmc_dropout.reproduction.verdict import Check, Judgement, Quantity, Table
from mlmc_dropout.reproduction.work import Work

if TYPE_CHECKING:
    from mlmc_dropout.reproduction.surface import Best

__all__ = ["PRINTED", "PROFILES", "compute", "csv_rows", "judge", "optimum", "theory_best"]

Data = Mapping[str, Any]
CostModel = Literal["coupled", "uncoupled"]

LADDER, BUDGET = (4, 8, 16), 1000
PRINTED = {"Y": (1000 / 12, 1000 / 24, 1000 / 48), "V": (82.64, 44.17, 19.76)}

_COMMON = {"ladder": list(LADDER), "budget": BUDGET}
PROFILES = {
    "paper": {**_COMMON, "repetitions": 20, "plan_repetitions": 20, "moment_passes": 20_000},
    "quick": {**_COMMON, "repetitions": 6, "plan_repetitions": 4, "moment_passes": 2000},
}


def compute(surrogate: Surrogate, settings: Data, work: Work) -> dict[str, Any]:
    """Surfaces of S² with their optima, moments for the theory, and the real variances of a few plans.

    Args:
        surrogate: The network.
        settings: ``ladder``, ``budget``, numbers of repetitions, ``moment_passes``, ``step`` of the lattice of
            :mod:`separate_runs`, and ``seed``.
        work: Remembers what is done.

    Returns:
        Plain data: optima by output and estimator, moments, plans with measured variances, norms of separate runs.
    """
    T, seed = tuple(settings["ladder"]), settings["seed"]
    counts = surface.feasible(T, settings["budget"])
    most = counts.max(axis=0).tolist()
    repetitions = work.each(
        "repetitions",
        range(settings["repetitions"]),
        lambda k: surface.level_norms(surrogate, T, most, seed + 1, stream=k),
    )
    (moments,) = work.each(
        "moments", [settings["moment_passes"]], lambda n: rates.measured_moments(surrogate, n, settings)
    )
    candidates = plans.candidates(T, settings["budget"])
    measured = work.each(
        "plans",
        range(len(candidates)),
        lambda i: plans.measure(surrogate, candidates[i], T, settings["plan_repetitions"], seed + 2 + i),
    )
    comparisons = 4 * len(repetitions[0])  # two coordinates, two estimators, every output
    located = {
        out: {key: surface.locate([rep[out][key] for rep in repetitions], counts, comparisons) for key in "YV"}
        for out in repetitions[0]
    }
    return {
        "ladder": list(T),
        "budget": settings["budget"],
        "allocations": len(counts),
        "moments": moments,
        "found": located,
        "plans": measured,
        "separate": separate_runs.compute(surrogate, settings, work),
    }


# ------------------------------------------------------------------------------------ theory


def level_variances(data: Data, out: str, key: str) -> list[float]:
    """Norms of v_ℓ or w_ℓ from the measured moments.

    Args:
        data: What :func:`compute` returns.
        out: Name of the output.
        key: ``"Y"`` for the mean, ``"V"`` for the variance.

    Returns:
        One norm per level.
    """
    mu2, mu4 = (np.asarray(data["moments"][out][name]) for name in ("mu2", "mu4"))
    T = data["ladder"]
    levels = md.theory.level_variances_mean(T, mu2) if key == "Y" else md.theory.level_variances_variance(T, mu2, mu4)
    return [l1_norm(level) for level in levels]


def optimum(data: Data, key: str, cost: CostModel, out: str | None = None) -> tuple[float, ...]:
    """The continuous optimum under a cost model.

    Args:
        data: What :func:`compute` returns.
        key: ``"Y"`` for the mean, ``"V"`` for the variance.
        cost: What a replicate is charged: ``"coupled"`` or ``"uncoupled"``.
        out: Output whose measured moments are used; None for μ4 = 3 μ2².

    Returns:
        Counts M_ℓ.
    """
    if out is not None:
        costs = md.theory.cost_per_replicate(data["ladder"], cost)
        return tuple(md.theory.optimal_counts(level_variances(data, out, key), costs, data["budget"]).tolist())
    target: Literal["mean", "variance"] = "mean" if key == "Y" else "variance"
    return md.allocate(md.Ladder(tuple(data["ladder"])), data["budget"], target, cost).continuous


def theory_best(data: Data, out: str, key: str) -> Best:
    """The optimum of E S² over the integer allocations, taken in the same way as the empirical one.

    Args:
        data: What :func:`compute` returns.
        out: Name of the output.
        key: ``"Y"`` or ``"V"``.

    Returns:
        The optimum.
    """
    counts = surface.feasible(data["ladder"], data["budget"])
    expected = md.theory.expected_S2(level_variances(data, out, key), counts.astype(float))
    return surface.best(np.asarray(expected), counts)


def true_surface(data: Data, out: str, key: str) -> NDArray[np.float64]:
    """The variance that Algorithm 1 really has, from the measured level variances.

    Args:
        data: What :func:`compute` returns.
        out: Name of the output.
        key: ``"Y"`` or ``"V"``.

    Returns:
        One norm per feasible allocation.
    """
    return surface.nested_surface(data["found"][out][key]["levels"], data["ladder"], data["budget"])


def true_best(data: Data, out: str, key: str) -> Best:
    """The optimum of the variance that Algorithm 1 really has.

    Args:
        data: What :func:`compute` returns.
        out: Name of the output.
        key: ``"Y"`` or ``"V"``.

    Returns:
        The optimum.
    """
    counts = surface.feasible(data["ladder"], data["budget"])
    return surface.best(true_surface(data, out, key), counts)


# --------------------------------------------------------------------------------- judgement


def judge(data: Data) -> Judgement:
    """Claim: the empirical optimum is where theory puts it for the coupled cost. Agreement: the printed optima.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The judgement.
    """
    checks: list[Check] = []
    ours: list[Quantity] = []
    for out in data["found"]:
        for key in "YV":
            checks += _checks(data, out, key)
            ours += _quantities(data, out, key)
    checks += [_cost_model_check(data, key) for key in "YV"]
    checks += [_separate_check(data, out, key) for out in data["found"] for key in "YV"]
    checks += [_worth_check(data, out, key) for out in data["found"] for key in "YV"]
    paper = [Quantity(f"M_{level} for {key}", PRINTED[key][level]) for key in "YV" for level in range(3)]
    tables = [_table(data), *(plans.table(data, out) for out in data["found"])]
    return Judgement(paper, ours, checks, tables)


def _quantities(data: Data, out: str, key: str) -> list[Quantity]:
    located = data["found"][out][key]
    return [
        Quantity(f"M_{level} for {key}({out})", located["centre"][level], located["low"][level], located["high"][level])
        for level in range(3)
    ]


def _inside(located: Data, counts: tuple[float, ...]) -> bool:
    """Whether M_1 and M_2, the coordinates of the surface, lie in the simultaneous 99 % interval."""
    return all(located["low"][level] <= counts[level] <= located["high"][level] for level in (1, 2))


def _pair(values: Any) -> str:
    return f"({values[1]:.1f}, {values[2]:.1f})"


def _checks(data: Data, out: str, key: str) -> list[Check]:
    located = data["found"][out][key]
    theory, printed = theory_best(data, out, key), PRINTED[key]
    holds, same = _inside(located, theory.centre), _inside(located, printed)
    interval = " × ".join(f"[{located['low'][level]:.1f}, {located['high'][level]:.1f}]" for level in (1, 2))
    return [
        Check(
            "claim",
            f"the empirical optimum of S²_{key}({out}) agrees with theory for the coupled cost",
            holds,
            f"S²_{key}({out}) is smallest at (M_1, M_2) = {_pair(located['centre'])}, {interval}; "
            f"theory for c_cpl = {data['budget']}: {_pair(theory.centre)}.",
        ),
        Check(
            "agreement",
            f"the printed optimum for {key} lies within the interval of the empirical one, output {out}",
            same,
            f"The printed optimum for {key}, {_pair(printed)}, is {'inside' if same else 'outside'} that interval.",
        ),
    ]


def _cost_model_check(data: Data, key: str) -> Check:
    """Whether the printed counts are those of the other cost model."""
    uncoupled = optimum(data, key, "uncoupled")
    holds = bool(np.allclose(uncoupled, PRINTED[key], atol=0.006))
    steps = md.theory.cost_per_replicate(data["ladder"], "coupled")
    spent = float(steps @ np.asarray(PRINTED[key]))
    return Check(
        "note",
        f"the printed counts for {key} are the optimum for the uncoupled cost",
        holds,
        f"The printed counts for {key} {'are' if holds else 'are not'} the optimum for c_unc = {data['budget']}; "
        f"they cost {spent:.0f} coupled passes.",
    )


def _separate_check(data: Data, out: str, key: str) -> Check:
    """The same with a run of its own for every allocation, as printed."""
    found, theory = separate_runs.least(data, out, key).centre, theory_best(data, out, key).centre
    distances = [float(np.hypot(found[1] - to[1], found[2] - to[2])) for to in (theory, PRINTED[key])]
    return Check(
        "note",
        f"with a run per allocation and counts that do not increase the optimum of S²_{key}({out}) is nearer to theory "
        "than to the printed counts",
        distances[0] < distances[1],
        f"If each allocation with M_0 ≥ M_1 ≥ M_2 gets its own run, S²_{key}({out}) is smallest at {_pair(found)}, "
        f"a distance of {distances[0]:.1f} from theory and {distances[1]:.1f} from the printed counts.",
    )


def _worth_check(data: Data, out: str, key: str) -> Check:
    """What the best plan by S² is worth beside plain Monte Carlo."""
    plan = data["plans"][0 if key == "Y" else 1]
    entry = plan["outputs"][out][key]
    unit = plans.plain_variance(data["moments"][out], key, plan["cost"])
    equal = true_best(data, out, key).single
    return Check(
        "note",
        f"at equal passes plain Monte Carlo has the smaller variance for {key}({out})",
        entry["low"] > unit,
        f"{key}({out}): the allocation with the smallest S² has {entry['variance'] / unit:.2f} times the variance of "
        f"plain Monte Carlo with the same passes (S² suggests {entry['S2'] / unit:.2f}); the true variance is smallest "
        f"at {equal}.",
    )


def _table(data: Data) -> Table:
    """Empirical and theoretical optima side by side."""
    rows: list[tuple[Any, ...]] = []
    for out in data["found"]:
        for key in "YV":
            located, name = data["found"][out][key], f"{key}({out})"
            noise = located["one_repetition"]["centre_sd"]
            rows += [
                (name, "empirical, mean of the best 0.5 %", *_round(located["centre"])),
                (name, "  99 % interval, low", *_round(located["low"])),
                (name, "  99 % interval, high", *_round(located["high"])),
                (name, "  scatter of a single repetition (sd)", *_round(noise)),
                (name, "empirical, single best", *located["single"]),
                (name, "empirical, a run per allocation", *_round(separate_runs.least(data, out, key).centre)),
                (name, "theory, coupled cost, best 0.5 % of E S²", *_round(theory_best(data, out, key).centre)),
                (name, "theory, coupled cost, measured moments", *_round(optimum(data, key, "coupled", out))),
                (name, "theory, coupled cost, closure", *_round(optimum(data, key, "coupled"))),
                (name, "theory, uncoupled cost, closure", *_round(optimum(data, key, "uncoupled"))),
                (name, "printed", *_round(PRINTED[key])),
                (name, "smallest true variance", *true_best(data, out, key).single),
            ]
    caption = f"Optimal counts at c_cpl = {data['budget']} over {data['allocations']} integer allocations."
    return Table(caption, ("estimator", "optimum", "M_0", "M_1", "M_2"), tuple(rows))


def _round(values: Any) -> list[float]:
    return [round(float(v), 2) for v in values]


def csv_rows(data: Data) -> Table:
    """One row per allocation: S² and the real variance of Algorithm 1.

    Args:
        data: What :func:`compute` returns.

    Returns:
        The rows of ``numbers.csv``.
    """
    counts = surface.feasible(data["ladder"], data["budget"])
    columns, parts = ["M0", "M1", "M2"], []
    for out in data["found"]:
        for key in "YV":
            columns += [f"S2_{key}_{out}", f"nested_{key}_{out}"]
            located = data["found"][out][key]
            parts += [surface.surface(located["norms"], counts), true_surface(data, out, key)]
    rows = [(*map(int, M), *(f"{v:.5g}" for v in values)) for M, *values in zip(counts, *parts, strict=True)]
    return Table("Norms of S² and of the real variance.", tuple(columns), tuple(rows))
