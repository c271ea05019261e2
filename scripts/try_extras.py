"""Every extra, installed alone from a wheel into an empty environment, does what it promises.

``python scripts/try_extras.py FOLDER`` takes minutes and a network (or a local index): it builds the wheel, makes an
environment per set of extras in FOLDER, runs what each extra is for, and every tutorial with what its first line says.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)[0]  # type: ignore[index]
DEMO = "from mlmc_dropout.cli import main; assert main(['demo', '--budget', '300', '--out', 'demo']) == 0\n"
NETCDF = """
import numpy, xarray, mlmc_dropout as md
result = md.load_result('demo/result.npz')
with xarray.open_dataset('demo/result.nc') as data:
    numpy.testing.assert_array_equal(data['mean'].values, result.mean)
assert len(result.to_dataframe()) == result.mean.size
from pathlib import Path
assert '<h1>' in Path('demo/report.html').read_text(encoding='utf-8')
"""
DASK = """
import torch, mlmc_dropout as md
from distributed import Client
if __name__ == '__main__':
    net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        far = md.estimate(net, torch.zeros(3, 1), budget=200, method='pooled', executor=client)
    assert (far.mean == md.estimate(net, torch.zeros(3, 1), budget=200, method='pooled').mean).all()
"""
FAST = """
import os, torch
from mlmc_dropout.sampling import compiled, masks
keys = masks.pass_keys(7, 0, 0, range(9))
os.environ['MLMC_DROPOUT_NUMBA'] = '0'
by_torch = masks.bernoulli(keys, 500, 0.1)
os.environ['MLMC_DROPOUT_NUMBA'] = '1'
assert compiled.loops(1, keys.device) is not None
assert torch.equal(masks.bernoulli(keys, 500, 0.1), by_torch)
"""
EXAMPLES = "".join(
    f"runpy.run_path({str(path)!r}, run_name='__main__')\n" for path in sorted(ROOT.glob("examples/*.py"))
)
PROMISES = {
    "": DEMO,
    "report": DEMO + NETCDF,
    "examples": "import runpy\n" + EXAMPLES,
    "distributed": DASK,
    "fast": FAST,
    "docs": f"import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'mkdocs', 'build', '-q', '-f', "
    f"{str(ROOT / 'mkdocs.yml')!r}, '-d', __import__('os').path.abspath('site')], check=True)",
}
TUTORIAL = """
import sys
sys.path[:0] = [{scripts!r}]
from pathlib import Path
import code_blocks
if __name__ == '__main__':  # worker processes import this file
    for block, printed in code_blocks.run(Path({page!r})):
        pass
"""


def tutorials() -> dict[str, str]:
    """Page -> the extras its first line tells to install; pages that need other people's frameworks are left out."""
    found = {}
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        needs = re.search(
            r'^\*Needs:\* `pip install "?mlmc-dropout(?:\[([\w,]+)\])?"?`(.*)$', page.read_text("utf-8"), re.M
        )
        if needs is None:
            raise SystemExit(f"{page.name} does not say what to install")
        if not needs[2]:
            found[str(page)] = needs[1] or ""
    return found


def environment(folder: Path, wheel: Path, extras: str) -> Path:
    """A fresh environment with the wheel and these extras; its interpreter."""
    home = folder / f"env-{extras.replace(',', '-') or 'none'}"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "-c",
            str(ROOT / "constraints.txt"),
        ]
        subprocess.run([*pip, TORCH], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([*pip, f"{wheel}[{extras}]" if extras else str(wheel)], check=True, stderr=subprocess.DEVNULL)
    return python


def attempt(name: str, python: Path, code: str, folder: Path) -> bool:
    """Run code in a folder of its own; say how it went."""
    place = folder / f"try-{re.sub(r'[^a-z]+', '-', name.lower())}"
    place.mkdir(exist_ok=True)
    (place / "attempt.py").write_text(code, encoding="utf-8")
    done = subprocess.run([str(python), "attempt.py"], cwd=place, capture_output=True, text=True)
    print(f"{name:40} {'holds' if done.returncode == 0 else 'FAILS'}", flush=True)
    if done.returncode:
        print(done.stdout[-500:], done.stderr[-2000:], sep="\n")
    return done.returncode == 0


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    fine = [
        attempt(f"extra {extras or '(none)'}", environment(folder, wheel, extras), code, folder)
        for extras, code in PROMISES.items()
    ]
    for page, extras in tutorials().items():
        code = TUTORIAL.format(scripts=str(ROOT / "scripts"), page=page)
        fine.append(attempt(f"tutorial {Path(page).stem}", environment(folder, wheel, extras), code, folder))
    raise SystemExit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
