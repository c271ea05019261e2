"""Options that several commands share, and the limits within which numbers make sense."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from mlmc_dropout.errors import InputError
from mlmc_dropout.methods.mlmc.ladder import Ladder

__all__ = ["Debug", "Json", "Quiet", "check_budget", "check_output", "check_seed", "fresh_folder", "parse_ladder"]
__all__ += ["parse_integers"]

MOST_PASSES = 10**9
MOST_LEVELS = 16

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def check_budget(budget: float | None, name: str = "--budget") -> None:
    """Refuse what no computer will live to see."""
    if budget is None:
        return
    if not math.isfinite(budget) or budget < 1:
        raise InputError(f"{name} is a number of passes per input, at least 1: got {budget:g}")
    if budget > MOST_PASSES:
        raise InputError(f"{name} {budget:g} would never end; at most {MOST_PASSES:g} passes per input are allowed")


def check_seed(seed: int) -> None:
    """Seeds are 63-bit."""
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must lie between 0 and 2**63 - 1: got {seed}")


def parse_integers(text: str, name: str) -> tuple[int, ...]:
    """``4,8,16`` as whole numbers."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name} takes whole numbers separated by commas, as in 4,8,16: got {text!r}") from None
    if len(values) > MOST_LEVELS or any(abs(value) > MOST_PASSES for value in values):
        raise InputError(f"{name} takes at most {MOST_LEVELS} numbers of at most {MOST_PASSES:g}: got {text!r}")
    return values


def parse_ladder(text: str) -> Ladder:
    """``4,8,16`` as a ladder."""
    return Ladder(parse_integers(text, "--ladder"))


def fresh_folder(out: Path, overwrite: bool, sign: str) -> None:
    """Refuse a folder that cannot be written, or that already holds a run (``sign``) or other people's files."""
    check_output(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"--out {str(out)!r} is a file; give the name of a folder")
    holds = sorted(path.name for path in out.iterdir())
    if holds and not overwrite:
        what = "a run" if sign in holds else f"{len(holds)} other files"
        raise InputError(f"--out {str(out)!r} already holds {what}; choose another folder, or add --overwrite")


def check_output(out: Path) -> None:
    """Refuse a place that cannot be written, before any work is done."""
    try:
        parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    except (OSError, ValueError):
        raise InputError(f"--out {str(out)!r} is not a possible name of a folder") from None
    if parent != out and not parent.is_dir():
        raise InputError(f"--out {str(out)!r} cannot be made: {str(parent)!r} is a file")
    if any(len(part.encode(errors="surrogateescape")) > 255 for part in out.parts):
        raise InputError(f"--out {str(out)!r} is too long a name for a folder")
