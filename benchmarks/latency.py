"""What a small run costs beside a plain loop of as many passes: milliseconds of second and later calls.

Loop, ``estimate`` and ``DropoutSampler.sample`` take turns in one process, so that a slow moment of the machine meets
all of them; medians are compared. *Above its passes* is what a ``Predictor`` takes beyond the passes that it runs. The
first call on a model finds out everything; what that costs more than a later one is measured on models just made.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import torch
from common import seconds
from torch import Tensor, nn

import mlmc_dropout as md
from mlmc_dropout.sampling.masks import pass_keys
from testing.zoo import ZOO

PASSES, ROWS = (10, 30, 100), (1, 64, 200)
FAST = 5.0  # ms below which the loop itself is over at once


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(320, 2))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "MLP 64-128-128-10": (lambda: common.mlp(64, (128, 128), 10, 0.1, "relu"), lambda n: torch.randn(n, 64)),
    "forward PINN": (lambda: md.pinn.pretrained("boundary-layer").model, lambda n: torch.rand(n, 1)),
    "residual conv net": (lambda: ZOO["residual_conv"].make()[0], lambda n: torch.randn(n, *ZOO_SHAPE)),
    "transformer encoder": (_encoder, lambda n: torch.randn(n, 10, 32)),
}
ZOO_SHAPE = tuple(ZOO["residual_conv"].make()[1].shape[1:])


def loop(model: nn.Module, x: Tensor, passes: int) -> tuple[Tensor, Tensor]:
    """MC dropout as it is usually written; normalisation stays in evaluation mode."""
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    with torch.no_grad():
        samples = torch.stack([model(x) for _ in range(passes)])
    model.eval()
    return samples.mean(dim=0), samples.var(dim=0)


def engine(model: nn.Module, x: Tensor, passes: int) -> Callable[[], Any]:
    """The passes of a pooled run alone, with what comes before the first mask."""
    sampler = md.DropoutSampler(model)
    batch = next(sampler.batches(x))
    program, keys = sampler.prepare(batch), pass_keys(0, 0, 0, range(passes))

    def run() -> Tensor:
        program.replay.rest()  # a predictor gets inputs that it has not seen, too
        return sampler.run(program, batch, keys)

    return run


def study(name: str, rows: int, passes: int, repeats: int) -> dict[str, Any]:
    """Medians in milliseconds."""
    make, inputs = CASES[name]
    torch.manual_seed(0)
    model, x = make().eval(), inputs(rows)
    predictor = md.Predictor(model, budget=passes, method="pooled")
    turns: dict[str, Callable[[], Any]] = {
        "loop": lambda: loop(model, x, passes),
        "pooled": lambda: md.estimate(model, x, method="pooled", budget=passes),
        "auto": lambda: md.estimate(model, x, budget=passes),
        "sample": lambda: md.DropoutSampler(model).sample(x, passes),
        "predictor": lambda: predictor(x),
        "engine": engine(model, x, passes),
    }
    for turn in turns.values():
        turn()
    times: dict[str, list[float]] = {turn: [] for turn in turns}
    for _ in range(repeats):
        for turn, function in turns.items():
            times[turn].append(1e3 * seconds(function))
    return {"case": name, "rows": rows, "passes": passes, **{t: float(np.median(ms)) for t, ms in times.items()}}


def first_calls(name: str, repeats: int) -> dict[str, Any]:
    """What the first call on a model costs more than the second, in milliseconds."""
    make, inputs = CASES[name]
    extra = []
    for _ in range(repeats):
        model, x = make().eval(), inputs(64)
        call = functools.partial(md.estimate, model, x, budget=30)
        first, second = seconds(call), seconds(call)
        extra.append(1e3 * (first - second))
    return {"case": name, "extra": float(np.median(extra))}


def verdicts(row: dict[str, Any]) -> list[str]:
    """Which promises a row breaks."""
    limit = max(row["loop"], FAST)
    broken = [f"{method} slower than the loop" for method in ("pooled", "auto", "sample") if row[method] > limit]
    if row["passes"] == 100 and row["loop"] >= 20 and row["pooled"] > row["loop"] / 2:
        broken.append("not twice as fast at 100")
    if row["predictor"] - row["engine"] > 2.0:
        broken.append("predictor more than 2 ms above its passes")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows = []
    for name in CASES:
        if options.only in name:
            for n in ROWS:
                for passes in PASSES:
                    row = study(name, n, passes, options.repeats)
                    rows.append(row)
                    shown = (f"{k} {v:.2f}" if isinstance(v, float) else f"{v}" for k, v in row.items())
                    print(*shown, *verdicts(row), sep=" | ", flush=True)
    first = [first_calls(name, max(3, options.repeats // 3)) for name in CASES if options.only in name]
    for row in first:
        print("first call above a later one:", row)
    if options.only:
        return
    columns = ("network", "inputs", "passes", "loop", "pooled", "auto", "`sample`", "Predictor above its passes")
    lines = [
        [r["case"], r["rows"], r["passes"], *(f"{r[k]:.1f}" for k in ("loop", "pooled", "auto", "sample")),
         f"{r['predictor'] - r['engine']:.1f}"]
        for r in rows
    ]  # fmt: skip
    common.write_into("throughput.md", "latency", common.table(columns, lines))
    words = ", ".join(f"{r['case']} {r['extra']:.0f} ms" for r in first)
    common.write_into("throughput.md", "first-call", f"The first call on a model takes longer: {words}.")
    common.save("latency", {"later": rows, "first": first}, repeats=options.repeats)


if __name__ == "__main__":
    main()
