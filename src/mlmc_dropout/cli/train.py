"""``mlmc-dropout train``: the two benchmarks of the paper, or one of your own from a config file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from mlmc_dropout.cli.console import Output
from mlmc_dropout.cli.options import Debug, Json, Quiet, check_output
from mlmc_dropout.errors import InputError

__all__ = ["train"]


def train(
    problem: Annotated[str | None, typer.Argument(help="boundary-layer, source-inference or poisson.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with what differs from the defaults.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a run to continue.")] = None,
    out: Annotated[Path, typer.Option(help="Where the run gets a folder of its own.")] = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a physics-informed dropout network; a stopped run continues with --resume.

    Args:
        problem: ``boundary-layer``, ``source-inference`` or ``poisson``.
        config: TOML file with what differs from the defaults.
        resume: Folder of a run to continue.
        out: Folder in which the run gets a folder.
        as_json: Print one JSON object instead of text.
        quiet: Print nothing but errors.
        debug: Show the traceback of an error.

    Raises:
        InputError: If nothing is named to train.
    """
    from mlmc_dropout import pinn
    from mlmc_dropout.pinn.progress import Silent

    if problem is None and config is None and resume is None:
        raise InputError(
            "nothing to train: name a problem (boundary-layer, source-inference or poisson), --config or --resume"
        )
    check_output(out)
    output = Output(as_json, quiet)
    path = pinn.train(problem, config, resume, out, progress=None if output.prints_text else Silent())
    summary_file = path / "summary.json"
    summary = json.loads(summary_file.read_text(encoding="utf-8")) if summary_file.is_file() else {}
    output.say(f"weights and history are in {path}")
    if (path / "weights.safetensors").is_file():
        output.say("next:")
        output.say(f"mlmc-dropout estimate \\\n    --model {shlex.quote(str(path))} \\")
        output.say("    --inputs x.npy --budget 1000 --out estimate")
        output.say("where x.npy holds the points, one per row, as written in Python by")
        output.say("np.save('x.npy', np.linspace(0, 1, 200)[:, None])")
    output.data({"run": str(path), "summary": summary})
