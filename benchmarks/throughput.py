"""How fast passes are: this library against the plain loop, repeated rows, and no dropout at all.

    python benchmarks/throughput.py [--quick] [--threads 2] [--no-doc]

All contestants of a model take turns in one run, and medians are compared. Freed memory is kept for the next chunk
(MLMC_DROPOUT_KEEP_MEMORY=1, for all contestants alike), and compiled loops draw the masks from the start, as they do in
long runs (MLMC_DROPOUT_NUMBA=1), unless the environment says otherwise. Raw times go to
benchmarks/results/throughput.json, and the tables of docs/throughput.md are rewritten from it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import common
import torch
from torch import Tensor, nn

from mlmc_dropout import DropoutSampler
from mlmc_dropout.pinn.networks import SharedTrunk, mlp
from mlmc_dropout.sampling.masks import pass_keys
from mlmc_dropout.sampling.replay import Replay
from mlmc_dropout.sampling.tape import Tape, Value
from testing.zoo import ZOO, Block, call, leaves

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "throughput.json"
DOC = ROOT / "docs" / "throughput.md"


@dataclass(frozen=True)
class Case:
    """A model, its inputs, the number of passes, and the ratios asked of it."""

    name: str
    model: Any
    x: Any
    passes: int
    independent: float | None = None  # at least so many times the loop's speed
    shared: float | None = None
    over_nothing: float | None = None  # shared masks take at most so many times no dropout


def cases() -> list[Case]:
    torch.manual_seed(0)
    line = torch.linspace(0, 1, 200)[:, None]
    late = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    residual = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *(Block(16, 0.1) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return [
        Case("forward PINN, 3×64", mlp(64, 3, "silu", 0.1), line, 1000, 7.0, 11.0, 2.0),
        Case("inverse PINN, 128 wide", SharedTrunk(128, 4, "tanh", 0.2), line, 1000, 4.5, 6.0),
        Case("conv net, late dropout", late, torch.randn(32, 3, 32, 32), 100, 30.0),
        Case("residual conv net", residual, torch.randn(8, 3, 16, 16), 100, 3.0),
        Case("transformer encoder", encoder, torch.randn(8, 16, 64), 100, 4.0),
    ]


def zoo_cases() -> list[Case]:
    return [Case(name, *entry.make(), 200, 1.0) for name, entry in ZOO.items()]


# -------------------------------------------------------------------------------- contestants


def _joined(output: Any) -> Tensor:
    parts = [part.reshape(len(part), -1) for part in leaves(output)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def plain_loop(model: Any, x: Any, passes: int) -> Tensor:
    """What people write: train(), normalisation in eval(), one call per pass, stack."""
    return torch.stack([_joined(call(model, x)) for _ in range(passes)])


def repeated_rows(model: Any, x: Any, passes: int, chunk: int = 100) -> Tensor:
    """Every row repeated once per pass, a hundred passes at a time, as other libraries do."""
    out = []
    for _ in range(0, passes, chunk):
        n = min(chunk, passes)
        out.append(_joined(call(model, _repeat(x, n))).unflatten(0, (n, -1)))
    return torch.cat(out)


def _repeat(x: Any, times: int) -> Any:
    if isinstance(x, dict):
        return {k: _repeat(v, times) for k, v in x.items()}
    if isinstance(x, tuple):
        return tuple(_repeat(v, times) for v in x)
    return x.repeat(times, *(1,) * (x.dim() - 1))


def training(model: Any) -> Any:
    if not isinstance(model, nn.Module):
        return model
    model = copy.deepcopy(getattr(model, "_orig_mod", model)).train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.eval()
    return model


def ours(model: Any, x: Any, passes: int, masks: Any, first: bool = False) -> Callable[[], Tensor]:
    """Passes of a prepared model; ``first``: nothing has been recorded in the round before."""
    sampler = DropoutSampler(model, masks)
    batch = next(sampler.batches(x))
    program = sampler.prepare(batch)
    keys = pass_keys(0, 0, 0, range(passes))

    def run() -> Tensor:
        program.replay.rest()  # what was computed of these inputs is computed again
        return sampler.run(replace(program, replay=Replay()) if first else program, batch, keys)

    if not first:
        for _ in range(3):
            run()
    return run


def contestants(case: Case, everything: bool) -> dict[str, Callable[[], Any]]:
    busy, found = training(case.model), {}
    found["loop"] = lambda: plain_loop(busy, case.x, case.passes)
    if everything:
        found["rows"] = lambda: repeated_rows(busy, case.x, case.passes)
        calm = copy.deepcopy(case.model).eval()
        found["nothing"] = lambda: plain_loop(calm, case.x, case.passes)
        found["masks"] = _mask_drawing(case)
    found["independent"] = ours(case.model, case.x, case.passes, "independent")
    if everything:
        found["shared"] = ours(case.model, case.x, case.passes, "shared")
        found["first"] = ours(case.model, case.x, case.passes, "independent", first=True)
    return found


def _mask_drawing(case: Case) -> Callable[[], Any]:
    """Drawing the independent masks alone, to see what the rest of the time is spent on."""
    sampler = DropoutSampler(case.model)
    batch = next(sampler.batches(case.x))
    sites, keys = sampler.prepare(batch).active, pass_keys(0, 0, 0, range(case.passes))

    def draw() -> None:
        for some in keys.split(50):
            for site in sites:
                sampler.draw(site, some, batch.rows, 0)

    return draw


# -------------------------------------------------------------------------------- measurement


def measure(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contestant, taking turns; one round to warm up is thrown away."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.no_grad():
        for round_ in range(rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if round_:
                    times[name].append(time.perf_counter() - start)
    return times


def gemm_seconds(case: Case, rounds: int) -> float:
    """The matrix products of all passes alone, at the speed of one large product."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call(copy.deepcopy(case.model).eval(), case.x)
    return counter.get_total_flops() * case.passes / common.product_speed(5 * rounds)


def kernel_shares(run: Callable[[], Any], most: int = 5) -> dict[str, float]:
    """The kernels in which a run spends most of its time, by torch's profiler, with their shares."""
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        run()
    times = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in found.key_averages()}
    largest = sorted(times, key=lambda name: -times[name])[:most]
    return {name: times[name] / sum(times.values()) for name in largest}


def kernel_floor(case: Case, masks: Any) -> float:
    """Seconds that the recorded kernels of all passes take, each alone and at its best: nothing around them counts."""
    sampler = DropoutSampler(case.model, masks)
    batch = next(sampler.batches(case.x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(case.passes))
    for _ in range(3):
        sampler.run(program, batch, keys)
    kind, found = max(program.replay._recordings.items(), key=lambda pair: pair[1].plays)
    if found.tape is None:
        return float("nan")
    size = next(shape[0][0] for shape in kind[1] if shape is not None)  # type: ignore[index]
    drawn = [sampler.draw(site, keys[:size], batch.rows, 0) for site in program.sites]
    early = next(iter(found.early.values())).values
    return min_seconds(found.tape, drawn, early) * case.passes / size


def min_seconds(tape: Tape, masks: Sequence[Tensor | None], early: Sequence[Tensor], rounds: int = 7) -> float:
    """The sum over all steps of a tape of the shortest time that the step took."""
    best = [float("inf")] * len(tape.steps)
    with torch.no_grad():
        for _ in range(rounds):
            values: dict[int, Any] = {**dict(enumerate(masks)), **dict(zip(tape.early, early, strict=True))}
            for number, step in enumerate(tape.steps):
                args = [_filled(a, values) for a in step.args]
                named = {name: _filled(a, values) for name, a in step.kwargs.items()}
                start = time.perf_counter()
                made = step.kernel(*args, **named)
                best[number] = min(best[number], time.perf_counter() - start)
                values.update(zip(step.made, made if step.several else (made,), strict=True))
                for index in step.freed:
                    del values[index]
    return sum(best)


def _filled(place: Any, values: dict[int, Any]) -> Any:
    if isinstance(place, Value):
        return values[place.index]
    return type(place)(_filled(p, values) for p in place) if type(place) in (list, tuple) else place


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def verdicts(case: Case, median: dict[str, float]) -> dict[str, Any]:
    """Ratios, and whether each is as asked."""
    found: dict[str, Any] = {}
    for name, wanted in (("independent", case.independent), ("shared", case.shared)):
        if name in median:
            ratio = median["loop"] / median[name]
            found[name] = {"ratio": ratio, "wanted": wanted, "met": wanted is None or ratio >= wanted}
    if case.over_nothing is not None:
        ratio = median["shared"] / median["nothing"]
        found["over_nothing"] = {"ratio": ratio, "wanted": case.over_nothing, "met": ratio <= case.over_nothing}
    return found


def run(rounds: int) -> dict[str, Any]:
    out: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rounds": rounds,
        "models": {},
        "zoo": {},
    }
    for case in cases():
        runs = contestants(case, True)
        times = measure(runs, rounds)
        median = {name: statistics.median(values) for name, values in times.items()}
        out["models"][case.name] = {
            "passes": case.passes,
            "gemm_limit": gemm_seconds(case, rounds),
            "shared_kernels": kernel_shares(runs["shared"]),
            "kernel_floor": {masks: kernel_floor(case, masks) for masks in ("independent", "shared")},
            "median": median,
            "seconds": times,
            "verdicts": verdicts(case, median),
        }
        print_row(case.name, median, out["models"][case.name]["verdicts"])
    for case in zoo_cases():
        times = measure(contestants(case, False), rounds)
        median = {name: statistics.median(values) for name, values in times.items()}
        out["zoo"][case.name] = {"passes": case.passes, "median": median, "seconds": times}
        out["zoo"][case.name]["verdicts"] = verdicts(case, median)
        print_row(case.name, median, out["zoo"][case.name]["verdicts"])
    return out


def print_row(name: str, median: dict[str, float], found: dict[str, Any]) -> None:
    times = "  ".join(f"{k} {v * 1e3:8.1f} ms" for k, v in median.items())
    ratios = "  ".join(f"{k} {v['ratio']:.2f}{'' if v['met'] else ' (MISSED)'}" for k, v in found.items())
    print(f"{name:26s} {times}   {ratios}", flush=True)


# --------------------------------------------------------------------------------- the tables


def table(results: dict[str, Any]) -> str:
    """Markdown, from the raw numbers alone."""
    lines = [
        f"{results['threads']} threads, torch {results['torch']}, medians of {results['rounds']} rounds in turns; "
        "times in milliseconds, and how many times as fast as the loop.",
        "",
        "| model | passes | loop | repeated rows | independent masks | first run | shared masks | no dropout "
        "| masks alone | GEMM limit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in results["models"].items():
        m = one["median"]

        def cell(key: str, m: dict[str, float] = m) -> str:
            return f"{m[key] * 1e3:.0f} (**{m['loop'] / m[key]:.1f}×**)"

        lines.append(
            f"| {name} | {one['passes']} | {m['loop'] * 1e3:.0f} | {cell('rows')} | {cell('independent')} | "
            f"{cell('first')} | {cell('shared')} | {m['nothing'] * 1e3:.0f} | {m['masks'] * 1e3:.0f} | "
            f"{one['gemm_limit'] * 1e3:.0f} |"
        )
    lines += ["", "Where the time of shared masks goes, by kernel:", "", "| model | kernels |", "|---|---|"]
    for name, one in results["models"].items():
        shares = ", ".join(f"{kernel} {share:.0%}" for kernel, share in one["shared_kernels"].items())
        lines.append(f"| {name} | {shares} |")
    lines += ["", "What the machine allows: the kernels of the network alone, each timed by itself, and the masks:", ""]
    lines += ["| model | kernels, independent masks | drawing them | at most | kernels, shared masks | at most |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, one in results["models"].items():
        loop, drawing = one["median"]["loop"], one["median"]["masks"]
        own, shared = one["kernel_floor"]["independent"], one["kernel_floor"]["shared"]
        lines.append(
            f"| {name} | {own * 1e3:.0f} ms | {drawing * 1e3:.0f} ms | {loop / (own + drawing):.1f}× | "
            f"{shared * 1e3:.0f} ms | {loop / shared:.1f}× |"
        )
    speeds = {name: one["median"]["loop"] / one["median"]["independent"] for name, one in results["zoo"].items()}
    lines += ["", "The zoo of the test suite, 200 passes, independent masks, times as fast as the loop:", ""]
    lines += ["| model | faster |", "|---|---|"]
    lines += [f"| {name} | {speed:.1f}× |" for name, speed in sorted(speeds.items(), key=lambda pair: -pair[1])]
    return "\n".join(lines)


def rewrite(doc: Path, text: str) -> None:
    """Replace what stands between the markers of ``doc``."""
    begin, end = "<!-- generated by benchmarks/throughput.py: begin -->", "<!-- generated: end -->"
    old = doc.read_text(encoding="utf-8")
    head, rest = old.split(begin, 1)
    doc.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds instead of seven")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--no-doc", action="store_true", help="leave docs/throughput.md alone")
    options = parser.parse_args()
    os.environ.setdefault("MLMC_DROPOUT_KEEP_MEMORY", "1")
    os.environ.setdefault("MLMC_DROPOUT_NUMBA", "1")
    if options.threads:
        torch.set_num_threads(options.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = run(2 if options.quick else 7)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if not options.no_doc:
        rewrite(DOC, table(results))
    groups = (*results["models"].items(), *results["zoo"].items())
    missed = [f"{name}: {k}" for name, one in groups for k, v in one["verdicts"].items() if not v["met"]]
    print("missed: " + ", ".join(missed) if missed else "all ratios met")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
