"""The page about the architecture names files and functions that exist, and every folder of the package."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mlmc_dropout"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CHANGES = re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
PATH = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md)|(?:[\w-]+/)+)`")
OTHERS = {
    "auto",
    "runtime",
    "spec.choose",
    "submit",
    "autograd.grad",
    "None",
    "x",
}  # words in code style that we do not define
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`")


def found(path: str) -> Path | None:
    """Where a path on the page leads: into the package, or from the root."""
    return next((base / path for base in (PACKAGE, ROOT) if (base / path).exists()), None)


def names(path: Path) -> set[str]:
    """What a file defines, members of classes as ``Class.member``."""
    defined: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for name in _defined(node):
            defined.add(name)
            members = (
                [below for inner in node.body for below in _defined(inner)] if isinstance(node, ast.ClassDef) else []
            )
            defined |= {f"{name}.{member}" for member in members} | set(members)
    return defined


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def all_names() -> set[str]:
    return {name for path in PACKAGE.rglob("*.py") for name in names(path)}


@pytest.mark.parametrize("path", sorted(set(PATH.findall(PAGE))))
def test_paths_exist(path):
    assert found(path) is not None


def test_names_exist():
    known = all_names() | OTHERS
    words = {word for word in NAME.findall(PAGE) if not word.endswith((".py", ".md"))}
    assert {word for word in words if word not in known and found(f"{word}.py") is None} == set()


def test_a_name_that_is_gone_is_noticed():
    assert {"Goal.met", "estimate", "_RULES"} <= all_names() and "Goal.harvest" not in all_names()


def test_every_folder_is_on_the_page():
    folders = {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders - set(PATH.findall(PAGE)) == set()


def test_the_list_is_the_order_of_imports():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"][::-1]
    rank = {name.strip().split(".")[1]: place for place, layer in enumerate(layers) for name in layer.split("|")}
    rows = re.findall(r"^\| (`.+?`) \|", PAGE[PAGE.index("| folder or file") : PAGE.index("Imports point")], re.M)
    listed = [name.strip("/").removesuffix(".py") for row in rows for name in PATH.findall(row)]
    assert [rank[name] for name in listed] == sorted(rank[name] for name in listed)
    assert set(rank) - {"demo", "version"} == set(listed)


def test_eight_changes_in_five_lines_each():
    assert len(CHANGES) == 8
    for title, text in CHANGES:
        assert len(re.findall(r"^- ", text, re.M)) <= 5, title
        assert any(found(path) for path in PATH.findall(text)), title
