"""Options that several commands share, and the limits within which numbers make sense."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlmc_dropout.errors import InputError
from mlmc_dropout.files import check_writable

if TYPE_CHECKING:
    from mlmc_dropout.methods.mlmc.ladder import Ladder

__all__ = ["ASKED", "FILES", "METHOD", "SAMPLING", "SHOWN", "STOP", "WORK"]
__all__ += ["CheckpointFile", "ClassAxis", "ClassNames", "Debug", "Dtype", "Exclude", "Include", "Inputs", "Json"]
__all__ += ["Model", "Open", "Out", "Overwrite", "Quiet", "Rate", "Scheduler", "Transform", "Weights", "Workers"]
__all__ += ["WritePage", "check_budget", "check_output", "check_rate", "check_seed", "fresh_folder"]
__all__ += ["parse_decision", "parse_integers", "parse_ladder", "parse_names"]

MAX_PASSES = 10**9
MAX_LEVELS = 16

FILES, ASKED, STOP, METHOD = "Files", "What is asked", "When to stop", "Method"
SAMPLING, WORK, SHOWN = "Sampling", "Who does the work", "What is shown"

Model = Annotated[
    str,
    typer.Option(help="package.module:factory, path/to/file.py:factory, or a folder of train.", rich_help_panel=FILES),
]
Inputs = Annotated[
    Path, typer.Option(help=".npy, .npz, .csv, .parquet, .pt or .safetensors, inputs first.", rich_help_panel=FILES)
]
Out = Annotated[Path, typer.Option(help="Folder for results and the page.", rich_help_panel=FILES)]
Weights = Annotated[
    Path | None, typer.Option(help="State dict: .safetensors, or a torch file of tensors.", rich_help_panel=FILES)
]
Dtype = Annotated[str | None, typer.Option(help="Type to convert the inputs to, as int64.", rich_help_panel=FILES)]
ClassNames = Annotated[
    Path | None, typer.Option(help="Text file, one name of a class per line.", rich_help_panel=FILES)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run in the folder.", rich_help_panel=FILES)]
ClassAxis = Annotated[
    int | None,
    typer.Option(help="Axis of the classes: 1 for images (N, C, H, W); the last if not given.", rich_help_panel=ASKED),
]
Transform = Annotated[
    str | None, typer.Option(help="softmax, sigmoid or module:function, on each pass.", rich_help_panel=SAMPLING)
]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="<pattern>", help="Only dropout sites whose name fits.", rich_help_panel=SAMPLING),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="<pattern>", help="No dropout sites whose name fits.", rich_help_panel=SAMPLING),
]
Rate = Annotated[
    float | None, typer.Option(help="Dropout rate to use instead of the model's.", rich_help_panel=SAMPLING)
]
Workers = Annotated[int, typer.Option(help="Processes to share the work.", rich_help_panel=WORK)]
Scheduler = Annotated[
    str | None, typer.Option(help="Address of a Dask scheduler to use instead.", rich_help_panel=WORK)
]
CheckpointFile = Annotated[
    Path | None, typer.Option(help="File to save progress in and to resume from.", rich_help_panel=WORK)
]
WritePage = Annotated[bool, typer.Option("--page/--no-page", help="Write report.html.", rich_help_panel=SHOWN)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=SHOWN)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=SHOWN)]
Open = Annotated[bool, typer.Option("--open", help="Show the page in a browser.", rich_help_panel=SHOWN)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=SHOWN)]


def check_budget(budget: float | None, name: str = "--budget") -> None:
    """Refuse budgets that are no number of passes, or that no computer could spend.

    Args:
        budget: Passes per input; None is accepted.
        name: The option, for the message.

    Raises:
        InputError: If it makes no sense.
    """
    if budget is None:
        return
    if not math.isfinite(budget) or budget < 1:
        raise InputError(f"{name} is a number of passes per input, at least 1: got {budget:g}")
    if budget > MAX_PASSES:
        raise InputError(f"{name} {budget:g} would never end; at most {MAX_PASSES:g} passes per input are allowed")


def check_rate(rate: float | None) -> None:
    """Refuse dropout rates that drop nothing or everything.

    Args:
        rate: The rate; None is accepted.

    Raises:
        InputError: If it does not lie between 0 and 1.
    """
    if rate is not None and not 0 < rate < 1:
        raise InputError(f"--rate must lie strictly between 0 and 1: got {rate:g}")


def check_seed(seed: int) -> None:
    """Refuse seeds that do not have 63 bits.

    Args:
        seed: The seed.

    Raises:
        InputError: If it is out of range.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed must lie between 0 and 2**63 - 1: got {seed}")


def parse_integers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers separated by commas.

    Args:
        text: As in ``4,8,16``.
        name: The option, for the message.

    Returns:
        The numbers.

    Raises:
        InputError: If the text is something else, or the numbers are too many or too large.
    """
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name} takes whole numbers separated by commas, as in 4,8,16: got {text!r}") from None
    if len(values) > MAX_LEVELS or any(abs(value) > MAX_PASSES for value in values):
        raise InputError(f"{name} takes at most {MAX_LEVELS} numbers of at most {MAX_PASSES:g}: got {text!r}")
    return values


def parse_ladder(text: str) -> Ladder:
    """A ladder of fidelities.

    Args:
        text: As in ``4,8,16``.

    Returns:
        The ladder.

    Raises:
        InputError: If the text is no list of whole numbers.
    """
    from mlmc_dropout.methods.mlmc.ladder import Ladder

    return Ladder(parse_integers(text, "--ladder"))


def parse_names(text: str, name: str) -> tuple[str, ...]:
    """Names separated by commas.

    Args:
        text: As in ``entropy,label``.
        name: The option, for the message.

    Returns:
        The names.

    Raises:
        InputError: If there are none.
    """
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise InputError(f"{name} takes names separated by commas, as in entropy,label: got {text!r}")
    return names


def parse_decision(text: str) -> Any:
    """What ``--decision`` asks to settle.

    Args:
        text: ``label``, ``above:0.5``, ``top:50`` or ``top:50:entropy``.

    Returns:
        The value of ``decision=``.

    Raises:
        InputError: If it is none of these.
    """
    from mlmc_dropout.quantities.shares import Above
    from mlmc_dropout.stopping.decisions import TopK

    kind, *rest = text.split(":")
    try:
        if kind == "label" and not rest:
            return "label"
        if kind == "above" and len(rest) == 1:
            return Above(float(rest[0]))
        if kind == "top" and len(rest) in (1, 2):
            return TopK(int(rest[0]), *rest[1:])
    except ValueError:
        pass
    raise InputError(f"--decision is label, above:0.5, top:50 or top:50:entropy: got {text!r}")


def fresh_folder(out: Path, overwrite: bool, marker: str) -> None:
    """Refuse a folder that cannot be written, or that already holds a run or other people's files.

    Args:
        out: The folder.
        overwrite: Accept a folder that is not empty.
        marker: Name of the file that marks a run.

    Raises:
        InputError: If the folder is refused.
    """
    check_output(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"--out {str(out)!r} is a file; give the name of a folder")
    holds = sorted(path.name for path in out.iterdir())
    if holds and not overwrite:
        what = "a run" if marker in holds else f"{len(holds)} other files"
        raise InputError(f"--out {str(out)!r} already holds {what}; choose another folder, or add --overwrite")


def check_output(out: Path) -> None:
    """Refuse a place that cannot be written, before any work is done.

    Args:
        out: A folder or a file, which need not exist.

    Raises:
        InputError: If it cannot be made.
    """
    try:
        parent = next(p for p in (out, *out.absolute().parents) if p.exists())
    except (OSError, ValueError):
        raise InputError(f"--out {str(out)!r} is not a possible name of a folder") from None
    if parent != out and not parent.is_dir():
        raise InputError(f"--out {str(out)!r} cannot be made: {str(parent)!r} is a file")
    if any(len(part.encode(errors="surrogateescape")) > 255 for part in out.parts):
        raise InputError(f"--out {str(out)!r} is too long a name for a folder")
    try:
        check_writable(out)
    except OSError as error:
        raise InputError(f"--out {str(out)!r} cannot be written ({error.strerror}); choose another folder") from None
