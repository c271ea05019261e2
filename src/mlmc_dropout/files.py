"""Files that are complete or not there, written beside their place and moved into it; archives with a header."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["read_archive", "replacing", "sync_folder", "write_archive"]


@contextlib.contextmanager
def replacing(path: Path, before: Callable[[], None] | None = None) -> Iterator[Path]:
    """Write a file under another name and give it its own when it is complete.

    Args:
        path: The file; at every moment it is the old or the new one.
        before: Called when the new file is complete, just before it takes its place.

    Yields:
        The path to write to. It is removed if anything goes wrong, Ctrl-C included.
    """
    scratch = path.with_name(path.name + ".part")
    try:
        yield scratch
        if before is not None:
            before()
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def write_archive(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    compress: bool = True,
    before: Callable[[], None] | None = None,
) -> None:
    """Replace a NumPy archive, and have the system write it to the disk.

    Args:
        path: The file.
        header: Plain data, kept as JSON; nothing in the file can be executed.
        arrays: Arrays by name.
        compress: Smaller, and slower to write.
        before: Called when the new file is complete, just before it takes its place.
    """
    save = np.savez_compressed if compress else np.savez
    with replacing(path, before) as scratch, open(scratch, "wb") as file:
        save(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read_archive(path: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The header and the arrays of an archive.

    Args:
        path: The file.

    Returns:
        The header as plain data, and the arrays by name.
    """
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(str(arrays.pop("header"))), arrays


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable, where the system can.

    Args:
        folder: The folder.
    """
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
