"""The site builds without a warning, needs no network, and looks right in a browser: every page, not a sample."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import mlmc_dropout as md
from mlmc_dropout import errors, pinn
from testing.browser import WIDTHS, axe, browser, console, outside_requests, serve, show

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SAMPLE = "sample-report.html"
THEIRS = "#__palette"  # the theme's own switch between light and dark, two radio buttons with hidden labels
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(\S+?)[\"\s>]|<link\b[^>]*\bhref=\"?(\S+?)[\"\s>]")
LOADED_BY_STYLE = re.compile(r"url\(['\"]?([^)'\"]+)|@import\s+['\"]([^'\"]+)")
FAULTS = r"""
    const page = document.querySelector('.md-content') ?? document.body, faults = [];
    const bare = page.cloneNode(true);
    for (const element of bare.querySelectorAll('pre, code, .katex, script, style')) element.remove();
    const text = [...page.querySelectorAll('p, li, td, dd')].map(e => e.innerText).join('\n');
    for (const raw of ['$$', '\\(', '\\[', '\\frac', '\\sum'])
        if (bare.textContent.includes(raw)) faults.push('raw formula: ' + raw);
    for (const line of text.split('\n')) if (/^:\s/.test(line)) faults.push('raw definition: ' + line);
    for (const formula of document.querySelectorAll('.arithmatex'))
        if (!formula.querySelector('.katex-html')) faults.push('not drawn: ' + formula.textContent);
    for (const picture of page.querySelectorAll('img'))
        if (!picture.naturalWidth) faults.push('no picture: ' + picture.src);
    const wide = document.documentElement.scrollWidth;
    if (wide > innerWidth) faults.push('page is ' + wide + ' wide');
    const fixed = innerWidth >= 1280 ? 'pre, code, table, .md-typeset__scrollwrap, .arithmatex' : '.arithmatex';
    for (const element of page.querySelectorAll(fixed))
        if (element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX !== 'visible')
            faults.push('cut off: ' + element.innerText.slice(0, 60));
    return faults;
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site was not built: mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings", reason="the site was not built: mkdocstrings is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def pages(site: Path) -> list[str]:
    """Addresses of all pages of the site."""
    others = {"404.html", SAMPLE}  # the sample report is no page of the site; tests/report looks at such
    found = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name not in others)
    assert len(found) > 20
    return found


def navigation(entries: list[Any]) -> list[tuple[str, str]]:
    """Title and file of every page in the navigation; the page of a section has the section's title."""
    found = []
    for title, below in (pair for entry in entries for pair in entry.items()):
        if isinstance(below, str):
            found.append((title, below))
        else:
            found += [(title, one) for one in below if isinstance(one, str)]
            found += navigation([one for one in below if not isinstance(one, str)])
    return found


def sentences(page: str) -> set[str]:
    """The sentences of a page that are long enough to be somebody's work; no code, tables, links or marks."""
    text = re.sub(r"^ *```.*?^ *```|^\|.*?$|^#.*?$|^!\[.*?$|<!--.*?-->", "\n\n", page, flags=re.M | re.S)
    text = re.sub(r"\]\([^)]*\)|[*`\[\]]", "", text)
    plain = (" ".join(part.split()).lower() for block in re.split(r"\n\s*\n|\n *[-*] ", text) for part in [block])
    return {one for block in plain for one in re.split(r"(?<=[.:;?!])\s", block) if len(one.split()) >= 10}


def test_titles_are_those_of_the_navigation():
    yaml = pytest.importorskip("yaml", reason="navigation not read: PyYAML is not installed")
    titles = navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    first = {file: (DOCS / file).read_text(encoding="utf-8").splitlines()[0] for _, file in titles}
    assert {file: f"# {title}" for title, file in titles} == first
    assert {file for _, file in titles} == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_no_two_pages_say_the_same():
    said = defaultdict(set)
    for path in sorted(DOCS.rglob("*.md")):
        for sentence in sentences(path.read_text(encoding="utf-8")):
            said[sentence].add(path.relative_to(DOCS).as_posix())
    assert {sentence: where for sentence, where in said.items() if len(where) > 1} == {}
    assert len(said) > 300 and sentences("One two three\nfour five six seven *eight* nine ten.") != set()


def test_nothing_is_loaded_from_elsewhere(site):
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        pattern = LOADED if path.suffix == ".html" else LOADED_BY_STYLE
        asked = ["".join(groups) for groups in pattern.findall(path.read_text(encoding="utf-8"))]
        assert [one for one in asked if re.match(r"(https?:)?//", one)] == [], path.name
    assert LOADED.findall('<script defer src="https://a.b/c.js">') and LOADED_BY_STYLE.findall("@import 'https://a.b'")


def test_every_public_name_is_on_the_api_page(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    shown = {name.rsplit(".", 1)[-1] for name in re.findall(r'id="(mlmc_dropout[\w.]*)"', page)}
    wanted = {*md.__all__, *pinn.__all__, *errors.__all__, "Event", "CheckpointWarning"} - {"__version__", "theory"}
    assert wanted - shown == set()
    assert page.count("Parameters:") > 20  # tables of arguments


def test_every_page_is_drawn(site):
    formulas = terms = 0
    with serve(site) as home, browser() as driver:
        for page in pages(site):
            for width in (360, 1280):
                show(driver, f"{home}/{page}", width)
                assert driver.execute_script(FAULTS) == [], (page, width)
            source = (DOCS / page).with_suffix(".md").read_text(encoding="utf-8")
            source = re.sub(r"^ *```.*?^ *```", "", source, flags=re.M | re.S)
            drawn = driver.execute_script("return document.querySelectorAll('.katex').length")
            assert drawn >= source.count("$$") // 2 + source.replace("$$", "").count("$") // 2, page
            defined = driver.execute_script("return document.querySelectorAll('dl > dd').length")
            assert defined >= len(re.findall(r"^: {3}", source, re.M)), page
            formulas, terms = formulas + drawn, terms + defined
        assert console(driver) == []
        assert outside_requests(driver, home) == []
    assert formulas > 50 and terms > 10


def test_faults_of_a_page_are_found(tmp_path):
    """A page with one fault of each kind."""
    wrong = "<p>so $$x$$ and \\(y\\)</p><p>term<br>: meaning</p><span class=arithmatex>z</span><img src=none.png>"
    (tmp_path / "bad.html").write_text(f"<!doctype html><body>{wrong}<pre style='overflow:auto'>{'x' * 999}</pre>")
    with serve(tmp_path) as home, browser() as driver:
        show(driver, f"{home}/bad.html", 1280)
        faults = " ".join(driver.execute_script(FAULTS))
    for kind in ("raw formula: $$", "raw formula: \\(", "raw definition", "not drawn", "no picture", "cut off"):
        assert kind in faults


def test_the_first_page_shows_a_report(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="sample-report.html"' in first and 'src="img/report.png"' in first
    assert "<h1>Boundary-layer surrogate</h1>" in (site / SAMPLE).read_text(encoding="utf-8")


def test_formulas_and_search_work_from_a_folder(site):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with browser() as driver:
        show(driver, (site / "concepts" / "variance-reduction.html").as_uri(), 1280)
        assert driver.execute_script(FAULTS) == []
        assert driver.execute_async_script("document.fonts.ready.then(arguments[0].bind(null, null))") is None
        assert driver.execute_script("return document.fonts.check('12px KaTeX_Main')")
        driver.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("checkpoint")
        found = WebDriverWait(driver, 30).until(lambda d: d.find_elements(By.CSS_SELECTOR, ".md-search-result__item"))
        assert found
        assert outside_requests(driver, "file:") == []


@pytest.mark.slow
def test_every_page_is_accessible_and_has_no_dead_links(site):
    with serve(site) as home, browser() as driver:
        for page in pages(site):
            for width in WIDTHS:
                show(driver, f"{home}/{page}", width)
                assert driver.execute_script("return document.documentElement.scrollWidth") <= width, (page, width)
            faults = [line for line in axe(driver) if THEIRS not in line]
            assert faults == [], page
            assert _dead(driver) == [], page


def _dead(driver: Any) -> list[str]:
    """Links of our own that the server does not know."""
    script = """const done = arguments[arguments.length - 1];
        const urls = [...new Set([...document.querySelectorAll('a[href]')].map(a => a.href.split('#')[0])
            .filter(u => u.startsWith(location.origin)))];
        Promise.all(urls.map(u => fetch(u, {method: 'HEAD'}).then(r => r.ok ? null : u, () => u)))
            .then(found => done(found.filter(u => u)))"""
    return list(driver.execute_async_script(script))
