"""The picture of a report on the first page: ``python scripts/screenshot.py`` writes docs/img/report.png.

Needs Chromium (scripts/install_browser.sh). The page is that of ``mlmc-dropout demo``, 1100 pixels wide.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from mlmc_dropout.cli import main  # noqa: E402
from testing.browser import browser, serve, show  # noqa: E402

WIDTH, HEIGHT = 1100, 640


def screenshot(out: Path) -> None:
    """Write the upper part of the page."""
    with tempfile.TemporaryDirectory() as folder:
        if main(["demo", "--quiet", "--out", f"{folder}/demo"]) != 0:
            raise SystemExit("the demo failed")
        with serve(Path(folder)) as home, browser() as driver:
            show(driver, f"{home}/demo/report.html", WIDTH)
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
            taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    out.write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    screenshot(ROOT / "docs" / "img" / "report.png")
