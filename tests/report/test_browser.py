"""The page in headless Chromium: quiet console, no outside requests, no sideways scrolling, accessible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mlmc_dropout as md
from mlmc_dropout.report import write_page
from mlmc_dropout.report.data import PageData
from mlmc_dropout.report.folder import write_folder
from testing.browser import WIDTHS, axe, browser, console, dead_links, outside_requests, serve, show

pytest.importorskip("jinja2")
pytestmark = pytest.mark.slow


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make().eval()


class Segmentation(nn.Module):
    """Probabilities of three classes at every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Dropout2d(0.3), nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x)))).softmax(1)


class Logits(Segmentation):
    """Logits of three classes at every pixel, classes last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x)))).movedim(1, -1)


def _extremes() -> md.Quantity:
    return md.Quantity(
        "extremes", features=lambda pair: pair[0], combine=lambda e: np.stack([e.max(-1), e.min(-1), e.sum(-1)], -1)
    )


def cases() -> dict[str, tuple[md.Result, dict[str, Any], PageData]]:
    """A page of every kind: result, what was asked, what is shown besides."""
    draw = np.random.default_rng(0)
    line = seeded(lambda: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)))
    plane = seeded(lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1)))
    classes = seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10)))
    tokens = seeded(lambda: nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(24, 2)))
    heads = seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4)))
    asked = ("quantile_0.05", "quantile_0.95", "above_0.3")
    x, rows, ids = np.linspace(0, 1, 50)[:, None], draw.normal(size=(60, 6)), draw.integers(0, 50, (40, 6))
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 12), np.linspace(0, 5, 9)), -1).reshape(-1, 2)
    names = [f"a class with a long name {i}" for i in range(10)]
    features = [f"feature {i}" for i in range(6)]
    passes = {3: draw.normal(size=(100, 10)), 7: draw.normal(size=(100, 10))}
    warned = ["Something is amiss.", "Give --metrics nll,entropy,expected_entropy,mutual_information,brier,accuracy."]
    missed = {"asked": {"tolerance": 1e-4, "quantile": 1.0}, "seconds": 3.0, "warnings": warned}
    long = {"command": "mlmc-dropout " + "--option value " * 30, "weights": "0123456789abcdef" * 2}
    return {
        "bands": (md.estimate(line, x, method="mlmc", budget=300), long, PageData.of(x)),
        "classifier": (
            md.estimate(classes, rows, budget=300, transform="softmax"),
            {},
            PageData.of(rows, draw.integers(0, 10, 60), names, features, passes),
        ),
        "logits": (
            md.estimate(classes, rows, budget=100, outputs="logits"),
            {},
            PageData.of(rows, draw.integers(0, 10, 60), names, features),
        ),
        "binary": (
            md.estimate(plane, grid, budget=100, outputs="binary-logits"),
            {},
            PageData.of(grid, draw.integers(0, 2, len(grid)), ["a quiet night", "an alarm worth getting up for"]),
        ),
        "top": (
            md.estimate(classes, rows, budget=60, outputs="logits", decision=md.TopK(5, by="entropy")),
            {"asked": {"decision": "top:5:entropy", "confidence": 0.99}},
            PageData.of(rows, None, names, features),
        ),
        "above": (
            md.estimate(classes, rows, budget=60, outputs="logits", decision=md.Above(0.2)),
            {"asked": {"decision": "above:0.2", "confidence": 0.99}},
            PageData.of(rows, None, names, features),
        ),
        "decided": (
            md.estimate(classes, rows, budget=60, outputs="logits", decision="label"),
            {"asked": {"decision": "label", "confidence": 0.99}},
            PageData.of(rows, None, names, features),
        ),
        "heads": (
            md.estimate(
                heads,
                rows,
                budget=100,
                outputs="mean-log-variance",
                quantities=("aleatoric_variance", "epistemic_variance", "total_variance", *asked, _extremes()),
            ),
            {},
            PageData.of(rows, feature_names=features),
        ),
        "pixels": (
            md.estimate(seeded(Logits), torch.rand(3, 1, 16, 16), budget=16, outputs="logits"),
            {},
            PageData.of(None, draw.integers(0, 3, (3, 16, 16)), ["road", "sky", "everything else"]),
        ),
        "segmentation": (
            md.estimate(seeded(Segmentation), torch.rand(4, 1, 32, 40), budget=32),
            {},
            PageData.of(),
        ),
        "surface": (
            md.estimate(plane, grid, budget=300),
            {},
            PageData.of(grid, feature_names=["voltage", "pressure"]),
        ),
        "scatter": (
            md.estimate(plane, draw.normal(size=(80, 2)), budget=30),
            {},
            PageData.of(draw.normal(size=(80, 2))),
        ),
        "tokens": (md.estimate(tokens, ids, budget=300), {}, PageData.of(ids)),
        "tolerance": (md.estimate(plane, grid, tolerance=1e-4, budget=100, method="pooled"), missed, PageData.of(grid)),
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, (result, info, data) in cases().items():
        write_folder(folder / name, result, {"title": f"{name} " + "with_a_long_name_" * 6, **info}, data)
        write_page(folder / name)
    return folder


CUT_OFF = """return [...document.querySelectorAll('main *')].filter(e => {
        const box = e.getBoundingClientRect();
        return box.width > 1 && !e.closest('.hidden, thead, svg') && (box.right > innerWidth + 1 || box.left < -1);
    }).concat([...document.querySelectorAll('.scroll, pre, figure, .note')]
    .filter(e => e.scrollWidth > e.clientWidth + 1))
    .map(e => e.tagName + ': ' + e.textContent.slice(0, 60))"""


BROKEN = """return [...document.querySelectorAll('td:not(.word)')].filter(cell => {
        const text = document.createRange();
        text.selectNodeContents(cell);
        const lines = new Set([...text.getClientRects()].map(box => Math.round(box.top)));
        return lines.size > 1 && !/ /.test(cell.textContent.trim());
    }).map(cell => cell.textContent)"""


def test_pages_in_chromium(pages):
    with serve(pages) as home, browser() as driver:
        for name in sorted(path.name for path in pages.iterdir()):
            for width in WIDTHS:
                for dark in (False, True):
                    show(driver, f"{home}/{name}/report.html", width, dark)
                    where = (name, width, dark)
                    assert driver.execute_script("return document.documentElement.scrollWidth") <= width, where
                    assert driver.execute_script(CUT_OFF) == [], where
                    assert driver.execute_script(BROKEN) == [], where
                    assert axe(driver) == [], where
                    assert dead_links(driver) == [], where
        assert console(driver) == []
        assert outside_requests(driver, home) == []


def test_the_checks_can_fail(tmp_path):
    """Negative control: a page with every fault is caught on every count."""
    (tmp_path / "bad.html").write_text(
        "<title>bad</title><body style='background:#fff'><h4 style='color:#eee'>pale</h4><a href='#nowhere'>x</a>"
        "<img src='http://192.0.2.1/x.png'><div style='width:3000px'>wide</div><script>oops()</script>"
        "<table><td style='display:block;width:2em;overflow-wrap:anywhere'>0.14498&nbsp;±&nbsp;0.00044</table>"
    )
    with serve(tmp_path) as home, browser() as driver:
        show(driver, f"{home}/bad.html", 360)
        assert driver.execute_script("return document.documentElement.scrollWidth") > 360
        assert driver.execute_script(CUT_OFF.replace("main *", "body *"))
        assert len(driver.execute_script(BROKEN)) == 1
        assert any("color-contrast" in line for line in axe(driver))
        assert dead_links(driver) == ["#nowhere"]
        assert any("oops" in line for line in console(driver))
        assert outside_requests(driver, home) == ["http://192.0.2.1/x.png"]
