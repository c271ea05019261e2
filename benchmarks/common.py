"""What the benchmark scripts share: networks trained on the spot, tables, and files of raw numbers."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

RESULTS = Path(__file__).parent / "results"

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def environment() -> dict[str, Any]:
    """Versions and threads, to read the numbers by."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def save(name: str, rows: Any, **settings: Any) -> Path:
    """Write ``benchmarks/results/<name>.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), "settings": settings, "rows": rows}, indent=1) + "\n")
    return path


def load(name: str) -> list[Any]:
    """The rows of ``benchmarks/results/<name>.json``; none if there is no such file."""
    path = RESULTS / f"{name}.json"
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    text = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in text])


def seconds(function: Callable[[], Any]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def product_speed(rounds: int) -> float:
    """Floating-point operations per second of a product of two matrices of 1024 x 1024, the best of some rounds."""
    a = torch.randn(1024, 1024)
    return 2 * 1024**3 / min(seconds(lambda: a @ a) for _ in range(rounds))


def standardised(x: np.ndarray) -> Tensor:
    """Columns with mean 0 and standard deviation 1, as float32."""
    spread = x.std(axis=0)
    return torch.from_numpy((x - x.mean(axis=0)) / np.where(spread > 0, spread, 1)).float()


def train(model: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor], steps: int, seed: int = 0) -> nn.Module:
    """Adam on random batches of 64."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(x), (64,), generator=generator)
        optimiser.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimiser.step()
    return model.eval()


def mlp(inputs: int, widths: Sequence[int], outputs: int, p: float, activation: str, seed: int = 0) -> nn.Sequential:
    """Hidden layers with dropout after every activation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(inputs, width), ACTIVATIONS[activation](), nn.Dropout(p)]
            inputs = width
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def write_into(document: str, marker: str, text: str) -> None:
    """Replace what stands between ``<!-- marker -->`` and ``<!-- /marker -->`` in a page of the documentation."""
    path = Path(__file__).parents[1] / "docs" / document
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    before, rest = path.read_text().split(start)
    after = rest.split(end)[1]
    path.write_text(f"{before}{start}\n{text}\n{end}{after}")
