"""torchvision on a torch without CUDA.

The wheel that package indexes give by default is built for CUDA. Beside a CPU build of torch its compiled
operators do not load, and then importing torchvision fails, because it describes two operators that nobody has
declared. The models need none of them: :func:`declare_operators` declares the two, and does nothing where
torchvision is whole, or absent.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

__all__ = ["declare_operators"]

_SCHEMA = "{}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_KEPT: list[torch.library.Library] = []  # a declaration lives as long as its library


def declare_operators() -> bool:
    """Declare the operators of torchvision if its own cannot be loaded; whether it was needed."""
    spec = importlib.util.find_spec("torchvision")
    if _KEPT or "torchvision" in sys.modules or spec is None or spec.origin is None:
        return False
    try:
        torch.ops.load_library(str(Path(spec.origin).parent / "_C.so"))
    except (ImportError, OSError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(_SCHEMA.format(name))
        _KEPT.append(library)
    return bool(_KEPT)
