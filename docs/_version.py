"""A hook of the documentation build: every page says which version it describes.

The first page says as well where the repository is. Both stand in one place each, in
`hotk/__init__.py` and in `pyproject.toml`.
"""

import re
import tomllib
from pathlib import Path
from typing import Any


ROOT = Path(__file__).parents[1]
# A comment of the first page, in whose place the version and the links stand.
PLACE = "<!-- version and repository -->"


def version() -> str:
    """Read the version without importing hotk."""
    text = (ROOT / "hotk" / "__init__.py").read_text(encoding="utf-8")
    [found] = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return found


def repository() -> str:
    """Read the address of the repository."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["urls"]["Repository"]


def on_config(config: Any) -> Any:
    """Write the version beside the name in the header and in the titles."""
    config.site_name = f"{config.site_name} {version()}"
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Write the version and the address of the repository into the first page."""
    if page.file.src_uri != "index.md":
        return markdown
    assert PLACE in markdown, f"docs/index.md has the line {PLACE}"
    line = f"Version {version()} · [Repository]({repository()})"
    return markdown.replace(PLACE, f"{line} · [Changelog](changelog.md)")
