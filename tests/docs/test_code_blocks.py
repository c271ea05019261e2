"""Every code block of README, CONTRIBUTING and docs is run; printed output shown after a block is compared.

How blocks are run is in scripts/code_blocks.py. Words must match, numbers to 2 % (other machines round
differently). ``<!-- not run: reason -->`` before a block exempts it; there are few.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SLOW = {"docs/tutorials/cluster.md", "docs/tutorials/frameworks.md"}
NUMBER = re.compile(r"[-−+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


code_blocks = _script("code_blocks")


def _same(shown: str, printed: str) -> None:
    """Words equal, numbers to 2 %."""
    assert NUMBER.sub("#", " ".join(shown.split())) == NUMBER.sub("#", " ".join(printed.split())), printed
    for a, b in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        assert float(a.replace("−", "-")) == pytest.approx(float(b.replace("−", "-")), rel=0.02, abs=1e-9), printed


def _pages() -> list[object]:
    names = [path.relative_to(ROOT).as_posix() for path in code_blocks.pages()]
    marks = {name: [pytest.mark.slow] for name in SLOW}
    marks["docs/tutorials/frameworks.md"].append(pytest.mark.filterwarnings("ignore"))  # other people's warnings
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


@pytest.mark.parametrize("name", _pages())
def test_code_blocks_run(name, tmp_path, monkeypatch):
    absent = [
        m for b in code_blocks.blocks((ROOT / name).read_text("utf-8")) if not b.exempt for m in code_blocks.missing(b)
    ]
    if absent:
        pytest.skip(f"the code of {name} was not run: {', '.join(absent)} not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block, printed in code_blocks.run(ROOT / name):
        if block.output is not None:
            _same(block.output, printed)


def test_exemptions_are_few():
    texts = [path.read_text(encoding="utf-8") for path in code_blocks.pages()]
    exempt = [block.exempt for text in texts for block in code_blocks.blocks(text) if block.exempt]
    assert len(exempt) <= 6, exempt


def test_the_comparison_of_output_can_fail():
    _same("mean 1.00 ± 3.1e-02", "mean   1.01 ± 3.1e-02")
    for shown, printed in (("mean 1.0", "mean 2.0"), ("mean 1.0", "median 1.0"), ("a 1 2", "a 1")):
        with pytest.raises(AssertionError):
            _same(shown, printed)


def test_every_picture_comes_from_a_committed_script():
    source = (ROOT / "scripts" / "pictures.py").read_text(encoding="utf-8")
    drawn = set(re.findall(r'^    "([\w-]+)": \w+,$', source[source.index("PICTURES") :], re.M))
    shown = {
        name
        for path in code_blocks.pages()
        for name in re.findall(r"img/([\w-]+)\.svg", path.read_text(encoding="utf-8"))
    }
    assert drawn and shown == drawn == {path.stem for path in (ROOT / "docs" / "img").glob("*.svg")}
