"""Files that are complete or not there, written beside their place and moved into it; archives with a header."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_expansion", "check_writable", "digest", "read_archive", "replacing", "sync_folder", "write_archive"]

TRIAL = 1 << 16  # bytes written to see whether there is room


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
        header: Plain data, kept as JSON with a digest of the whole content; nothing in the file can be executed.
        arrays: Arrays by name.
        compress: Smaller, and slower to write.
        before: Called when the new file is complete, just before it takes its place.
    """
    save = np.savez_compressed if compress else np.savez
    plain = json.loads(json.dumps(header))
    text = json.dumps({**plain, "digest": digest(plain, arrays)})
    with replacing(path, before) as scratch, open(scratch, "wb") as file:
        save(file, allow_pickle=False, header=np.array(text), **arrays)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def read_archive(
    path: Path, formats: Mapping[int, bool] | None = None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays of an archive.

    Args:
        path: The file.
        formats: Known values of ``format`` in the header, and whether such files have a digest. Without it all have
            one. A file of another format is not checked: the caller refuses it.

    Returns:
        The header as plain data, and the arrays by name.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged, was edited, or is something else.
    """
    try:
        check_expansion(path)
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop("header")))
        found = header.pop("digest", None)
        signed = formats is None or formats.get(header.get("format"))
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever numpy, zipfile, zlib and json raise on what is no archive of ours
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if signed is None or (found is None and not signed):  # of another format, or of one without a digest
        return header, arrays
    if found != digest(header, arrays):
        raise ValueError("its contents do not belong together; it was edited")
    return header, arrays


def digest(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """A hash of the contents of an archive.

    Args:
        header: Plain data, as JSON gives it back.
        arrays: Arrays by name.

    Returns:
        The hash.
    """
    known = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        known.update(f"{name} {values.dtype.str} {arrays[name].shape}".encode())
        if values.size:
            known.update(values.reshape(-1).view(np.uint8).data)
    return known.hexdigest()


def check_expansion(path: Path) -> None:
    """Refuse a NumPy archive that takes more memory than there is, before any of it is read.

    A few kilobytes can be made to expand to terabytes, and an array can claim to be larger than its data.

    Args:
        path: The file.

    Raises:
        ValueError: If it would expand too far, or its arrays do not have the sizes they claim.
    """
    limit, total = _memory() // 2, 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            total += member.file_size
            if total > limit:
                raise ValueError(
                    f"it expands to more than {limit / 2**30:.3g} GiB, half of this machine's memory; "
                    "save large arrays as .npy files"
                )
            with archive.open(member) as file:
                claimed = _claimed_bytes(file)
                if claimed != member.file_size - file.tell():
                    raise ValueError(f"{member.filename!r} claims {claimed} bytes of data and has others")


def _claimed_bytes(file: IO[bytes]) -> int:
    """The size of an array by its header, which is read."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in readers:
        raise ValueError(f"version {version} of NumPy's format is not known here")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which could run code")
    return math.prod(shape) * int(dtype.itemsize)


def _memory() -> int:
    """Bytes of memory of this machine; a guess where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 16 << 30


def check_writable(place: Path) -> None:
    """Try to write at a place, and leave nothing behind: a folder can be read-only, and a disk full.

    Args:
        place: A folder or file, which need not exist: the trial is made in the nearest folder that does.

    Raises:
        OSError: If nothing can be written there.
    """
    folder = next(path for path in (place, *place.absolute().parents) if path.is_dir())
    with tempfile.TemporaryFile(dir=folder) as trial:
        trial.write(bytes(TRIAL))
        trial.flush()
        os.fsync(trial.fileno())


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
