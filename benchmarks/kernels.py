"""Nanoseconds per unit of the kernels that passes are made of, beside others that could do the same: one thread.

Each is timed on the activations of 32 passes of 200 rows, 64 and 128 units wide; the shortest of many times counts.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import torch
import torch.nn.functional as F

from mlmc_dropout.sampling.masks import bernoulli, latin_hypercube, pass_keys
from mlmc_dropout.sampling.memory import keep_freed_memory

PASSES, ROWS = 32, 200


def shortest(function: Callable[[], Any], repeats: int) -> float:
    """Seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def kernels(width: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by its name."""
    x, weight, bias = torch.randn(PASSES * ROWS, width), torch.randn(width, width), torch.randn(width)
    bits = (torch.rand(PASSES * ROWS, width) > 0.1).to(torch.uint8)
    keep, drop, multiplier, short = bits.bool(), bits == 0, bits.float(), bits.bfloat16()
    zero, out = torch.zeros(()), torch.empty_like(x)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    keys, scale = pass_keys(0, 0, 0, range(PASSES)), 1.0 / 0.9
    a, product, factor = bits.view(torch.int64).numpy().view(np.uint64), np.uint64(0xBF58476D1CE4E5B9), 12345

    def drawn_by(wish: str, draw: Callable[..., Any], *asked: Any) -> Callable[[], Any]:
        def call() -> Any:
            os.environ["MLMC_DROPOUT_NUMBA"] = wish
            return draw(*asked)

        call()  # loads and compiles
        return call

    def fused(name: str) -> Callable[[], Any]:
        return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, bias, name, [], "")

    return {
        "linear layer": lambda: F.linear(x, weight, bias),
        "linear layer, oneDNN": fused("none"),
        "linear layer with SiLU, oneDNN": fused("swish"),
        "linear layer with tanh, oneDNN": fused("tanh"),
        "SiLU": lambda: F.silu(x),
        "tanh": lambda: torch.tanh(x),
        "tanh, oneDNN": lambda: torch.tanh(x.to_mkldnn()).to_dense(),
        "mask: convert, scale, multiply": lambda: bits.to(torch.float32).mul_(scale).mul_(x),
        "mask: convert, addcmul": lambda: torch.addcmul(zero, x, bits.to(torch.float32), value=scale),
        "mask: product of float and bytes": lambda: torch.mul(x, bits).mul_(scale),
        "mask: product of float and bool": lambda: torch.mul(x, keep).mul_(scale),
        "mask: product of float and bfloat16": lambda: torch.mul(x, short).mul_(scale),
        "mask: where": lambda: torch.where(keep, x, zero).mul_(scale),
        "mask: masked_fill": lambda: x.masked_fill(drop, 0.0).mul_(scale),
        "mask: product with a ready multiplier": lambda: torch.mul(x, multiplier, out=out),
        **{
            f"{name}, {tool}": drawn_by(wish, *asked)
            for name, asked in {
                "keep bits": (bernoulli, keys, width, 0.1, ROWS),
                "keep bits, rate of 64/256": (bernoulli, keys, width, 0.25, ROWS),
                "keep bits of designs of two": (latin_hypercube, keys[: PASSES // 2], 2, width, 0.1, ROWS),
                "keep bits of designs of 16": (latin_hypercube, keys[: PASSES // 16], 16, width, 0.1, ROWS),
            }.items()
            for tool, wish in (("torch", "0"), ("Numba", "1"))
        },
        "dropout of torch": lambda: F.dropout(x, 0.1),
        "eight units: integer product, torch": lambda: bits.view(torch.int64).mul(factor),
        "eight units: integer product, NumPy": lambda: np.multiply(a, product),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MLMC_DROPOUT_KEEP_MEMORY", "1")
    keep_freed_memory(1 << 28)  # what the system takes for new memory is not the kernel's
    rows: list[list[Any]] = []
    with torch.no_grad():
        found = [
            {
                name: 1e9 * shortest(run, options.repeats) / (PASSES * ROWS * width)
                for name, run in kernels(width).items()
            }
            for width in (64, 128)
        ]
    rows = [[name, *(f"{one[name]:.2f}" for one in found)] for name in found[0]]
    text = common.table(("kernel", "64 wide", "128 wide"), rows)
    print(text)
    common.write_into("throughput.md", "kernels", text)
    common.save("kernels", dict(zip((64, 128), found, strict=True)), repeats=options.repeats)


if __name__ == "__main__":
    main()
