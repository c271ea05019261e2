"""The site builds without a warning, and looks right in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from browser import WIDTHS, axe, browser, console, outside_requests, serve, show

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
THEIRS = "#__palette"  # the theme's own switch between light and dark, two radio buttons with hidden labels


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site was not built: mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="the site was not built: mkdocstrings is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_page_in_chromium(site):
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    assert len(pages) > 12
    with serve(site) as home, browser() as driver:
        for page in pages:
            for width in WIDTHS:
                show(driver, f"{home}/{page}", width)
                assert driver.execute_script("return document.documentElement.scrollWidth") <= width, (page, width)
            faults = [line for line in axe(driver) if THEIRS not in line]
            assert faults == [], page
            assert _dead(driver) == [], page
        assert console(driver) == []
        assert outside_requests(driver, home) == []


def _dead(driver) -> list[str]:
    """Links of our own that the server does not know."""
    script = """const done = arguments[arguments.length - 1];
        const urls = [...new Set([...document.querySelectorAll('a[href]')].map(a => a.href.split('#')[0])
            .filter(u => u.startsWith(location.origin)))];
        Promise.all(urls.map(u => fetch(u, {method: 'HEAD'}).then(r => r.ok ? null : u, () => u)))
            .then(found => done(found.filter(u => u)))"""
    return list(driver.execute_async_script(script))
