"""What made a run: versions and revision, so that it can be made again."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

__all__ = ["provenance", "revision"]

_PACKAGES = ("mlmc-dropout", "torch", "numpy", "safetensors")


def provenance() -> dict[str, object]:
    """Start time, versions of what computes, and the git revision of this code if it has one."""
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
    return {"started": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions, "revision": revision()}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def revision() -> str | None:
    """The commit of the checkout this package is in; ``+`` marks uncommitted changes in the package."""
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "HEAD")
    # An installed copy may lie inside somebody else's repository: ask whether git knows this file.
    if commit is None or _git(here, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return commit + ("+" if _git(here, "status", "--porcelain", "--", "..") else "")


def _git(where: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
