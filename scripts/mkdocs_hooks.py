"""Pictures that lie beside the shipped weights are shown on the site, too, where links out of docs/ would be dead."""

from __future__ import annotations

import re
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
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links into the package to the added pictures."""
    return LINK.sub(r"img/pinn/\1-\2", markdown)
