"""The documentation site: complete, readable everywhere, searched from the disk.

It needs the extra `docs`. Chromium is asked what a browser shows, where there is one.
"""

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import hotk
from tests.test_api import OPERATORS


HOUSE = Path(__file__).parents[1]
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "chrome"]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="it needs the extra `docs`"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = ["mkdocs", "build", "--strict", "--config-file", ".mkdocs.yml"]
    built = subprocess.run(
        [sys.executable, "-m", *command, "--site-dir", folder],
        cwd=HOUSE,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(HOUSE)},
        capture_output=True,
        text=True,
    )
    assert not built.returncode, built.stderr
    return folder


@pytest.fixture
def browse():
    """Open a page of the disk in Chromium, and return what it has become."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("Chromium is not installed")

    def opened(url):
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        # One file of the disk may then look into another in a frame. Time is counted
        # in milliseconds, and passes while nothing is left to load.
        flags += ["--allow-file-access-from-files", "--virtual-time-budget=600000"]
        run = subprocess.run([browser, *flags, url], capture_output=True, timeout=300)
        return run.stdout.decode("utf-8")

    return opened


def pages(site):
    return sorted(page for page in site.rglob("*.html") if page.name != "404.html")


class Links(HTMLParser):
    """The targets of links, the files that are loaded, and the names on a page."""

    def __init__(self, page):
        super().__init__()
        self.targets, self.loaded, self.names = set(), set(), set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.names.add(attrs.get("id"))
        if tag == "a" and "href" in attrs:
            self.targets.add(attrs["href"])
        elif tag == "link" and attrs.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loaded.add(attrs["href"])
        elif "src" in attrs:
            self.loaded.add(attrs["src"])


def is_local(target):
    return not re.match(r"[a-z]+:|//", target)


@pytest.mark.exhaustive
def test_every_link_leads_somewhere(site):
    links = {page: Links(page) for page in pages(site)}
    broken = []
    for page, found in links.items():
        for target in filter(is_local, found.targets | found.loaded):
            path, fragment = urldefrag(unquote(target))
            file = (page.parent / path).resolve() if path else page
            there = file.exists() and (
                not fragment or file not in links or fragment in links[file].names
            )
            if not there:
                broken.append((page.name, target))
    assert not broken


def test_nothing_is_fetched(site):
    fetched = {
        target
        for page in pages(site)
        for target in Links(page).loaded
        if not is_local(target) and not target.startswith("data:")
    }
    assert not fetched


def entries(site):
    """Return the part of the reference that is about each operator."""
    for page in site.glob("reference/*.html"):
        parts = re.split(r'<h3 id="hotk\.([\w.]+)"', page.read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in OPERATORS:
                yield name, text


def test_each_operator_has_its_formula_and_its_guides(site):
    found = dict(entries(site))
    assert set(found) == set(OPERATORS)
    assert not [name for name, text in found.items() if "<math" not in text]
    assert not [name for name, text in found.items() if 'class="guides"' not in text]


def test_methods_of_python_are_not_in_the_reference(site):
    for page in site.glob("reference/*.html"):
        names = Links(page).names - {None}
        assert not [name for name in names if re.search(r"\.__\w+__$", name)]


def test_every_page_says_the_version(site):
    for page in pages(site):
        title = re.search(r"<title>(.*?)</title>", page.read_text(encoding="utf-8"))
        assert hotk.__version__ in title[1]


WIDTHS = """
const frame = document.createElement("iframe")
document.body.append(frame)
const found = []
for (const page of PAGES) for (const width of [400, 1400]) {
  frame.width = width
  await new Promise(done => { frame.onload = done; frame.src = page })
  await new Promise(done => setTimeout(done, 50))
  const root = frame.contentDocument.documentElement
  found.push([page, frame.contentWindow.innerWidth, root.scrollWidth])
  if (width == 1400)
    for (const { parentNode: t } of root.querySelectorAll(".md-typeset__table"))
      found.push([`a table of ${page}`, t.clientWidth, t.scrollWidth])
}
"""


def asked(browse, site, script):
    """Run a script beside the pages, and return what it has put into `found`."""
    names = [str(page.relative_to(site)) for page in pages(site)]
    script = script.replace("PAGES", json.dumps(names))
    page = site / "asked.htm"
    page.write_text(
        f"<!doctype html><body><script type=module>{script}\n"
        "document.body.innerHTML = '<pre></pre>'\n"
        "document.querySelector('pre').textContent = JSON.stringify(found)</script>",
        encoding="utf-8",
    )
    [answer] = re.findall(r"<pre>(.*?)</pre>", browse(page.as_uri()), re.DOTALL)
    return json.loads(html.unescape(answer))


def test_no_page_or_table_scrolls_sideways(browse, site):
    found = asked(browse, site, WIDTHS)
    assert {400, 1400} <= {width for _, width, _ in found}
    assert any(name.startswith("a table") for name, *_ in found)
    assert not [row for row in found if row[2] > row[1]]


COLUMNS = """
const frame = document.createElement("iframe")
frame.width = 1400
document.body.append(frame)
await new Promise(done => { frame.onload = done; frame.src = "math.html" })
const code = frame.contentDocument.querySelector("pre > code")
code.textContent = "x".repeat(88)
const found = [code.scrollWidth, code.clientWidth]
"""


def test_a_line_of_88_columns_fits(browse, site):
    needed, there = asked(browse, site, COLUMNS)
    assert needed <= there


SWITCHED = """
const frame = document.createElement("iframe")
document.body.append(frame)
await new Promise(done => { frame.onload = done; frame.src = "index.html" })
const inner = frame.contentDocument
const found = []
for (const title of ["Switch to dark mode", "Switch to light mode"]) {
  inner.querySelector(`label[title="${title}"]`).click()
  await new Promise(done => setTimeout(done, 500))
  found.push(frame.contentWindow.getComputedStyle(inner.body).backgroundColor)
}
"""


def test_light_and_dark_are_switched(browse, site):
    dark, light = asked(browse, site, SWITCHED)
    assert light == "rgb(255, 255, 255)"
    assert max(map(int, re.findall(r"\d+", dark)[:3])) < 64


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("hvp", "hvp"),
        ("Hessian-vector product", "hvp"),
        ("gradient", "gradient"),
        ("hotk.safe.norm", "safe.norm"),
        ("trust region", "optim.trust_region"),
    ],
)
def test_the_search_finds_from_the_disk(browse, site, words, name):
    text = browse(f"{(site / 'index.html').as_uri()}?q={words.replace(' ', '+')}")
    results = re.findall(r'class="md-search-result__link"', text)
    first = re.search(r'href="[^"]*#hotk\.([\w.]+)"[^>]*search-result__link', text)
    assert results
    assert first[1] == name
