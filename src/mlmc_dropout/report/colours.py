"""Numbers as colours, and matrices as small PNG pictures that are written into the page itself."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["ANCHORS", "colour", "png"]

# From dark to light through blue and green: readable in grey, and for most colour-blind people.
ANCHORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))


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
    height, width = values.shape
    rows = _places(values, low, high).astype(np.uint8)
    raw = b"".join(b"\x00" + row.tobytes() for row in rows)  # every line begins with its filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # eight bits, colours from a palette
    parts = ((b"IHDR", head), (b"PLTE", _palette().tobytes()), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)
    return "data:image/png;base64," + base64.b64encode(file).decode()


def _places(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Where numbers stand in the palette."""
    scaled = (np.nan_to_num(values, nan=low) - low) / (high - low) if high > low else np.zeros(np.shape(values))
    return np.clip(scaled * 255, 0, 255).round()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
