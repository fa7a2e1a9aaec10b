"""A hook of the documentation build: the pages of `reference/` as readers find them.

The pages hold the list of public names, each name once. Their summaries, which the
overview and the search show, are the first sentences of the docstrings.
"""

import functools
import html
import json
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page


ROOT = Path(__file__).parents[1]
TOPIC = re.compile("reference/(?!index)")
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
NAME = re.compile(r"^::: hotk\.([\w.]+)$", re.MULTILINE)
GUIDES = r'<p class="guides">.*?</p>'
ENTRY = r'<div class="doc doc-contents first">\s*(?:<p>.*?</p>)?'

topics: list[File] = []


def on_nav(nav: Navigation, **_: Any) -> None:
    """Note the pages of the reference, in the order of the navigation."""
    pages = [page.file for page in nav.pages]
    topics[:] = [
        file for file in pages if re.match("reference/(?!index)", file.src_uri)
    ]


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """List every name with its summary on the first page of the reference."""
    if page.file.src_uri != "reference/index.md":
        return markdown
    for file in topics:
        text = file.content_string
        title = TITLE.findall(text)[0]
        markdown += f"\n## [{title}]({Path(file.src_uri).name})\n\n"
        for name in NAME.findall(text):
            markdown += f"- [`{name}`][hotk.{name}]: {summary(name)}\n"
    return markdown


def on_page_content(content: str, *, page: Page, **_: Any) -> str:
    """Move the guides of a section into each of its entries, below the summary.

    A reader who comes from the search sees the entry and not the head of the section.
    """
    if page.file not in topics:
        return content
    guides = ""

    def move(match: re.Match[str]) -> str:
        nonlocal guides
        if match[0].startswith("<p"):
            # Titles of other pages are no reason to find this entry.
            guides = match[0].replace("<p", "<p data-search-exclude", 1)
            return ""
        return match[0] + guides

    return re.sub(f"{GUIDES}|{ENTRY}", move, content, flags=re.DOTALL)


@event_priority(-50)  # after the search has written its index, before it is inlined
def on_post_build(*, config: Any) -> None:
    """Let the search find a name by the words of its summary."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    names = {name for file in topics for name in NAME.findall(file.content_string)}
    for entry in index["docs"]:
        name = entry["location"].partition("#hotk.")[2]
        if name in names:
            words = re.sub(r"\$.*?\$", "…", summary(name)).replace("`", "")
            entry["title"] = html.escape(f"{name}: {words}", quote=False)
            entry["boost"] = boost(name)
        elif name.rpartition(".")[0] in names:
            entry["title"] = name  # of a method, which would be without its class
    path.write_text(json.dumps(index), encoding="utf-8")


def boost(name: str) -> int:
    """Rank operators before their `value_` variants, and both before all else.

    Without it `optim.hvp` comes before `hvp`, and headings of pages before both.
    """
    if "." in name or not package()[name].is_function:
        return 3
    return 6 if name.startswith("value_") else 10


def summary(name: str) -> str:
    """Return the first sentence of the docstring, or the value of a constant."""
    described = package()[name]
    if described.is_attribute and not described.docstring:
        return f"`{described.value}`"
    paragraph = described.docstring.value.split("\n\n")[0]
    return re.split(r"(?<=\.)\s", " ".join(paragraph.split()))[0]


@functools.cache
def package() -> griffe.Object | griffe.Alias:
    """Read hotk, without importing it."""
    return griffe.load("hotk", search_paths=[str(ROOT)], resolve_aliases=True)
