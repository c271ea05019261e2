"""The built package: complete, importable from elsewhere, quick to import."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="the package was not built: python-build is not installed")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], capture_output=True, text=True
    )
    if done.returncode and "No matching distribution" in done.stderr + done.stdout:
        pytest.skip("the package was not built: its build backend could not be downloaded")
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def test_wheel_and_sdist_hold_what_they_must(built):
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    inside = zipfile.ZipFile(wheel).namelist()
    for name in ("py.typed", "report/templates/page.html", "report/templates/style.css", "cli/__init__.py"):
        assert f"mlmc_dropout/{name}" in inside
    assert any(name.endswith("boundary-layer/weights.safetensors") for name in inside)
    assert not any(name.startswith(("tests/", "docs/")) for name in inside)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "mkdocs.yml", "src/mlmc_dropout/__init__.py"} <= names


def test_the_wheel_works_from_a_folder_of_its_own(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "site"),
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = "import sys, mlmc_dropout.cli as c; print(c.__file__); sys.exit(c.main(['demo', '--budget', '300']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert (tmp_path / "mlmc-dropout-demo" / "report.html").is_file()


def test_import_takes_less_than_two_seconds_beyond_torch():
    """Seconds of processor time, so that a busy machine does not decide."""
    code = "import torch, time; t = time.process_time(); import mlmc_dropout; print(time.process_time() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 2.0
