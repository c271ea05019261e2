"""What is said twice outside the code is said alike: linters, versions, the paper, the changelog."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from mlmc_dropout import __version__

ROOT = Path(__file__).parents[2]
yaml = pytest.importorskip("yaml", reason="workflow, hooks and citation not read: PyYAML is not installed")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read(name: str) -> dict:
    return yaml.safe_load(text(name))


def test_hooks_run_the_linters_of_make():
    recipe = re.search(r"^lint:.*\n((?:\t.+\n)+)", text("Makefile"), re.M)[1]
    wanted = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in recipe.splitlines()]
    hooks = [hook["entry"] for hook in read(".pre-commit-config.yaml")["repos"][0]["hooks"]]
    assert [entry.removeprefix(".venv/bin/").removesuffix(" --force-exclude") for entry in hooks] == wanted


def test_the_workflow_runs_what_there_is():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    assert set(jobs) == {"lint", "test", "docs", "wheel"}
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = [target for line in lines if line.startswith("make ") for target in line.split()[1:]]
    assert targets and set(targets) <= set(re.findall(r"^([\w-]+):", text("Makefile"), re.M))
    oldest = re.search(r'requires-python = ">=([\d.]+)"', text("pyproject.toml"))[1]
    assert jobs["test"]["strategy"]["matrix"]["python"][0] == oldest
    assert len(re.findall(r'"torch>=[\d.]+"', text("pyproject.toml"))) == 1  # the workflow reads the lowest from here


def test_the_citation_is_of_this_version_and_that_paper():
    citation = read("CITATION.cff")
    assert citation["version"] == __version__
    (paper,) = citation["references"]
    assert paper["title"] in " ".join(text("README.md").split())
    assert [author["family-names"] for author in paper["authors"]] == ["Pim", "Pryer"]


def test_the_changelog_has_its_form():
    headings = re.findall(r"^(##+) (.+)$", text("CHANGELOG.md"), re.M)
    assert headings[0] == ("##", "[Unreleased]")
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for level, title in headings:
        assert (
            title in kinds
            if level == "###"
            else re.fullmatch(r"\[(Unreleased|\d+\.\d+\.\d+)\](?: - \d{4}-\d\d-\d\d)?", title)
        )


def test_contributing_leads_to_the_architecture():
    page = text("CONTRIBUTING.md")
    assert "(docs/architecture.md)" in page and all(f"make {name} " in page for name in ("test", "test-all", "docs"))


def test_slow_tests_that_are_listed_exist():
    """A renamed test would otherwise come back into ``make test`` without a word."""
    for line in text("tests/slow_tests.txt").splitlines():
        path, name = line.split("[")[0].split("::")
        assert re.search(rf"^def {name}\(", text(path), re.M), line


def test_benchmarks_use_names_that_there_are(monkeypatch):
    pytest.importorskip("sklearn", reason="benchmarks train on its data")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for script in (ROOT / "benchmarks").glob("*.py"):
        assert importlib.import_module(script.stem).__doc__
