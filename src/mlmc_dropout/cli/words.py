"""Messages of the library in the words of a shell: ``--class-axis 1`` in place of ``class_axis=1``."""

from __future__ import annotations

import re

__all__ = ["as_options"]

_SAME = (
    *("budget", "checkpoint", "class_axis", "confidence", "counts", "decision", "effort", "exclude", "familywise"),
    *("include", "ladder", "levels", "masks", "method", "metrics", "outputs", "passes", "quantile", "quantities"),
    *("relative", "seed", "tolerance", "tolerance_variance", "transform"),
)
_OPTIONS = {**{name: f"--{name.replace('_', '-')}" for name in _SAME}, "rates": "--rate", "executor": "--workers"}
_ARGUMENT = re.compile(
    rf"(?<![\w.\-`])(?P<name>{'|'.join(sorted(_OPTIONS, key=len, reverse=True))})="
    r"(?P<value>lambda [^;,()]*(?:\([^()]*\))?|'[^']*'|<[^>]*>|\('[^()]*\)|-?\w[\w.\-]*)?"
    r"(?P<others>(?:(?:,| or| and) '[^']*')*)"
)
_SUBJECT = re.compile(rf"^(?P<name>{'|'.join(sorted(_OPTIONS, key=len, reverse=True))})(?= is |: )")
_PHRASES = {
    ": give y": ": give --labels",
    ", or give an md.Metric": "",
    "above_0.3 (md.Above), quantile_0.95 (md.Quantile) or md.Quantity": "above_0.3 or quantile_0.95",
}


def as_options(message: str) -> str:
    """A message of the library as somebody reads it who has typed a command.

    Args:
        message: A sentence with arguments of Python.

    Returns:
        The same with the options of the command line.

    Examples:
        >>> as_options("say when to stop: tolerance=, or budget= in passes per input")
        'say when to stop: --tolerance, or --budget in passes per input'
        >>> as_options("give class_axis=1, otherwise class_axis=-1; it needs outputs='logits' or 'probabilities'")
        'give --class-axis 1, otherwise --class-axis -1; it needs --outputs logits or probabilities'
        >>> as_options("to leave it out, give metrics=('nll', 'entropy').")
        'to leave it out, give --metrics nll,entropy.'
        >>> as_options("choose one by transform=lambda out: out[0]")
        'choose one by --transform module:function'
        >>> as_options("tolerance is a standard error to reach: got 0.0")
        '--tolerance is a standard error to reach: got 0.0'
        >>> as_options("use label, above_0.3 (md.Above), quantile_0.95 (md.Quantile) or md.Quantity")
        'use label, above_0.3 or quantile_0.95'
        >>> as_options("TopK(400) of 40 inputs leaves nothing to decide; choose fewer")
        'top:400 of 40 inputs leaves nothing to decide; choose fewer'
    """
    for python, shell in _PHRASES.items():
        message = message.replace(python, shell)
    message = re.sub(r"\bTopK\((\d+)\)", r"top:\1", message)
    message = _SUBJECT.sub(lambda found: _OPTIONS[found["name"]], message)
    return _ARGUMENT.sub(_option, message)


def _option(found: re.Match[str]) -> str:
    option, value = _OPTIONS[found["name"]], found["value"] or ""
    value = value if value.startswith("(") else value.strip("'")
    ending = ""
    if value.startswith("lambda"):
        value = "module:function"
    elif value.startswith("("):
        value = ",".join(re.findall(r"'([^']*)'", value))
    elif value.endswith("."):  # of the sentence
        value, ending = value[:-1], "."
    if value in ("True", ""):
        return option + ending
    return f"{option} {value}{ending}" + found["others"].replace("'", "")
