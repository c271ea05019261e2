"""Pictures that lie beside the shipped weights are shown on the site, too, where links out of docs/ would be dead.

The sample report is written anew whenever the site is built, so that it is what the library writes today.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\.\./src/mlmc_dropout/pinn/weights/([\w-]+)/([\w-]+\.png)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures under img/pinn/."""
    for path in sorted((ROOT / "src" / "mlmc_dropout" / "pinn" / "weights").glob("*/*.png")):
        name = f"img/pinn/{path.parent.name}-{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "sample-report.html", content=_sample_report()))
    return files


def _sample_report() -> str:
    """The page of the demo."""
    from mlmc_dropout.cli import main

    with tempfile.TemporaryDirectory() as folder:
        if main(["demo", "--quiet", "--out", f"{folder}/demo"]) != 0:
            raise RuntimeError("the demo failed, and with it the sample report")
        return Path(folder, "demo", "report.html").read_text(encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links into the package to the added pictures."""
    return LINK.sub(r"img/pinn/\1-\2", markdown)
