"""Headless Chromium for tests: pages are opened from a server of our own, everything they ask for is recorded.

Needs Debian's chromium and chromium-driver (``scripts/install_browser.sh``), selenium and
axe-selenium-python. Without them the tests that use it are skipped, and say so.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["WIDTHS", "axe", "browser", "console", "dead_links", "outside_requests", "serve", "show"]

WIDTHS = (360, 1440)
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars")
_FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a server for ``folder``."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def browser() -> Iterator[Any]:
    """A fresh Chromium, or a skipped test."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("page not looked at in a browser: chromium is not installed (scripts/install_browser.sh)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="page not looked at in a browser: no selenium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.binary_location = chromium
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
        driver.set_script_timeout(300)  # axe-core takes its time on long pages
        try:
            yield driver
        finally:
            driver.quit()


def show(driver: Any, address: str, width: int, dark: bool = False) -> None:
    """Open a page at a width, in light or dark."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(address)


def console(driver: Any) -> list[str]:
    """What the console complained of since it was last asked."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]


def outside_requests(driver: Any, home: str) -> list[str]:
    """Addresses asked for that are not ours."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked, "the browser's record of requests is empty"
    return [url for url in asked if not url.startswith((home, "data:", "blob:", "chrome:", "about:"))]


def axe(driver: Any, **options: Any) -> list[str]:
    """Violations found by axe-core, one line each."""
    module = pytest.importorskip("axe_selenium_python", reason="accessibility not checked: no axe-selenium-python")
    checker = module.Axe(driver)
    checker.inject()
    found = checker.run(options=options or None)["violations"]
    return [
        f"{violation['id']}: {violation['help']}: {node['target']} {node.get('failureSummary', '')}"
        for violation in found
        for node in violation["nodes"]
    ]


def dead_links(driver: Any) -> list[str]:
    """Links within the page that lead nowhere."""
    script = """return [...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href'))
        .filter(h => h.length > 1 && !document.getElementById(decodeURIComponent(h.slice(1))))"""
    return list(driver.execute_script(script))
