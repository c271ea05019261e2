"""Every public argument is documented: no public function with parameters lacks its Args."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mlmc_dropout

ROOT = Path(mlmc_dropout.__file__).parent


def _public(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Public functions, and public methods of public classes."""
    for child in ast.iter_child_nodes(node):
        name = getattr(child, "name", "_")
        if name.startswith("_"):
            continue
        if isinstance(child, ast.FunctionDef):
            yield prefix + name, child
        elif isinstance(child, ast.ClassDef):
            yield from _public(child, f"{prefix}{name}.")


def _parameters(function: ast.FunctionDef) -> list[str]:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_no_public_function_with_parameters_lacks_its_args() -> None:
    missing = []
    for path in sorted(ROOT.rglob("*.py")):
        for name, function in _public(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(function) or ""
            if _parameters(function) and "Args:" not in text and "overload" not in ast.dump(function):
                missing.append(f"{path.relative_to(ROOT)}:{function.lineno} {name}")
    assert not missing, missing


def test_documented_arguments_exist() -> None:
    """The other way round: an Args section names no argument that is gone, and none is left out."""
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        for name, function in _public(ast.parse(path.read_text(encoding="utf-8"))):
            documented = _documented(ast.get_docstring(function) or "")
            actual = set(_parameters(function)) | {a.arg for a in (function.args.vararg, function.args.kwarg) if a}
            if documented and (documented - actual or set(_parameters(function)) - documented):
                wrong.append(f"{path.relative_to(ROOT)} {name}: {sorted(documented ^ actual)}")
    assert not wrong, wrong


def _documented(text: str) -> set[str]:
    """Names in the Args section."""
    lines = text.splitlines()
    if "Args:" not in [line.strip() for line in lines]:
        return set()
    start = [line.strip() for line in lines].index("Args:")
    names = set()
    for line in lines[start + 1 :]:
        if line.strip() and not line.startswith("    "):
            break
        if line.startswith("    ") and not line.startswith("     ") and ":" in line:
            names.add(line.strip().split(":")[0].split(" ")[0].lstrip("*"))
    return names
