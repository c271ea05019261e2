"""Run in a process of its own: growth of the peak memory from a short run to a long one, in MB."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
from torch import nn

import mlmc_dropout as md


def peak() -> float:
    """The most memory this program ever held, in MB.

    Linux counts in ``ru_maxrss`` what the parent held before it started the program, too; its own
    high-water mark does not have that.
    """
    status = Path("/proc/self/status")
    if status.exists():
        mark = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(mark.split()[1]) / 1024
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main(passes: int, keep: bool) -> None:
    """Print the growth; with ``keep`` all passes are held, which must show."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
    x = torch.linspace(0, 1, 100)[:, None]
    runs = {"pooled": {}, "mlmc": {"ladder": (4, 8, 16)}}
    for method, options in runs.items():
        md.estimate(model, x, method=method, budget=1000, **options)
    before = peak()
    held = []
    for method, options in runs.items():
        if keep:
            held.append(md.DropoutSampler(model).sample(x, passes=passes))
        else:
            assert md.estimate(model, x, method=method, budget=passes, **options).cost > 0.99 * passes
    print(peak() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), "--keep" in sys.argv)
