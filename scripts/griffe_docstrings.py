"""For the site: doctests in docstrings become code blocks, reST roles and ``::`` become Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S.*|\n(?P=indent)\.\.\. ?.*)*", re.M)
_EXAMPLES = re.compile(r"^(?P<indent> *)Examples?:\n(?P<body>(?:(?P=indent) +.*\n?|[ ]*\n)*)", re.M)
_ROLE = re.compile(r":(?:class|meth|func|mod|attr|data):`~?([^`]+)`")
_LITERAL = re.compile(r"::$", re.M)
_TABLE = re.compile(r"(?:^={3,}[ =]*\n)(?P<rows>(?:.+\n)+?)(?:^={3,}[ =]*$)", re.M)


def _fenced(match: re.Match[str]) -> str:
    indent = match["indent"]
    return f"{indent}```pycon\n{match[0]}\n{indent}```"


def _listed(match: re.Match[str]) -> str:
    rows = [re.split(r"\s{2,}", row.strip(), maxsplit=1) for row in match["rows"].splitlines()]
    return "\n".join(f"- {' · '.join(row)}" for row in rows) + "\n"


def markdown(text: str) -> str:
    """A docstring of ours as Markdown; examples are left to griffe, which knows them as ``Examples:``."""
    text = _LITERAL.sub(":", _ROLE.sub(r"`\1`", _TABLE.sub(_listed, text)))
    parts, end = [], 0
    for section in _EXAMPLES.finditer(text):
        parts.append(_DOCTEST.sub(_fenced, text[end : section.start()]))
        parts.append(f"{section['indent']}Examples:\n{section['body']}")
        end = section.end()
    return "".join([*parts, _DOCTEST.sub(_fenced, text[end:])])


class Docstrings(griffe.Extension):
    """Rewrites every docstring once the package is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Walk the package."""
        self._walk(pkg)

    def _walk(self, node: Any) -> None:
        if node.docstring is not None:
            node.docstring.value = markdown(node.docstring.value)
        for member in node.members.values():
            if not member.is_alias:
                self._walk(member)
