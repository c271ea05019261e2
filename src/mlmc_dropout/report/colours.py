"""Numbers as colours, and matrices as small PNG pictures that are written into the page itself."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["ANCHORS", "CLASS_COLOURS", "class_png", "colour", "png"]

# From dark to light through blue and green: readable in grey, and for most colour-blind people.
ANCHORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))

# For classes: told apart by most colour-blind people (Okabe and Ito); the last one is for all further classes.
CLASS_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#332288", "#8a8f94")


def _palette(size: int = 256) -> NDArray[np.uint8]:
    at = np.linspace(0, len(ANCHORS) - 1, size)
    channels = [np.interp(at, range(len(ANCHORS)), [anchor[c] for anchor in ANCHORS]) for c in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def colour(value: float, low: float, high: float) -> str:
    """The colour of a number.

    Args:
        value: The number.
        low: What is darkest.
        high: What is lightest.

    Returns:
        As in ``#440154``.

    Examples:
        >>> colour(0.0, 0.0, 1.0), colour(1.0, 0.0, 1.0)
        ('#440154', '#fde725')
    """
    r, g, b = _palette()[int(_places(np.array(value), low, high))]
    return f"#{r:02x}{g:02x}{b:02x}"


def png(values: NDArray[np.float64], low: float, high: float) -> str:
    """A matrix as a picture, one pixel per number.

    Args:
        values: The matrix, its first row on top.
        low: What is darkest.
        high: What is lightest.

    Returns:
        A ``data:`` address.
    """
    return _address(_places(values, low, high).astype(np.uint8), _palette().tobytes())


def class_png(places: NDArray[np.int64]) -> str:
    """A matrix of classes as a picture, one pixel each.

    Args:
        places: Places in ``CLASS_COLOURS``, the first row on top.

    Returns:
        A ``data:`` address.
    """
    return _address(places.astype(np.uint8), b"".join(bytes.fromhex(name[1:]) for name in CLASS_COLOURS))


def _address(rows: NDArray[np.uint8], palette: bytes) -> str:
    height, width = rows.shape
    raw = b"".join(b"\x00" + row.tobytes() for row in rows)  # every line begins with its filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # eight bits, colours from a palette
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)
    return "data:image/png;base64," + base64.b64encode(file).decode()


def _places(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Where numbers stand in the palette."""
    scaled = (np.nan_to_num(values, nan=low) - low) / (high - low) if high > low else np.zeros(np.shape(values))
    return np.clip(scaled * 255, 0, 255).round()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
