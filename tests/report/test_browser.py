"""The page in headless Chromium: quiet console, no outside requests, no sideways scrolling, accessible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.report import write_page
from mlmc_dropout.report.folder import write_folder
from testing.browser import WIDTHS, axe, browser, console, dead_links, outside_requests, serve, show

pytest.importorskip("jinja2")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages: bands of a multilevel run, ranks of an automatic one."""
    folder = tmp_path_factory.mktemp("pages")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        line = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)).eval()
        plane = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)).eval()
    x, y = np.linspace(0, 1, 50)[:, None], np.random.default_rng(0).random((60, 2))
    info = {"title": "A page " + "with_a_long_name_" * 6, "command": "mlmc-dropout " + "--option value " * 30}
    write_folder(folder / "bands", md.estimate(line, x, method="mlmc", budget=300), info, x)
    write_folder(folder / "ranks", md.estimate(plane, y, budget=300), {**info, "warnings": ["Something is amiss."]}, y)
    for name in ("bands", "ranks"):
        write_page(folder / name)
    return folder


def test_pages_in_chromium(pages):
    with serve(pages) as home, browser() as driver:
        for name in ("bands", "ranks"):
            for width in WIDTHS:
                for dark in (False, True):
                    show(driver, f"{home}/{name}/report.html", width, dark)
                    where = (name, width, dark)
                    assert driver.execute_script("return document.documentElement.scrollWidth") <= width, where
                    assert axe(driver) == [], where
                    assert dead_links(driver) == [], where
        assert console(driver) == []
        assert outside_requests(driver, home) == []


def test_the_checks_can_fail(tmp_path):
    """Negative control: a page with every fault is caught on every count."""
    (tmp_path / "bad.html").write_text(
        "<title>bad</title><body style='background:#fff'><h4 style='color:#eee'>pale</h4><a href='#nowhere'>x</a>"
        "<img src='http://192.0.2.1/x.png'><div style='width:3000px'>wide</div><script>oops()</script>"
    )
    with serve(tmp_path) as home, browser() as driver:
        show(driver, f"{home}/bad.html", 360)
        assert driver.execute_script("return document.documentElement.scrollWidth") > 360
        assert any("color-contrast" in line for line in axe(driver))
        assert dead_links(driver) == ["#nowhere"]
        assert any("oops" in line for line in console(driver))
        assert outside_requests(driver, home) == ["http://192.0.2.1/x.png"]
