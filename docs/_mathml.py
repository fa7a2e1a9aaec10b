"""A hook of the documentation build: formulas in TeX become MathML."""

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError


# What `pymdownx.arithmatex` writes in its generic form.
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)
# A longer formula within a line may be wider than a telephone.
LONG = 45


def on_page_content(content: str, **_) -> str:
    """Convert the formulas of one page, docstrings included."""
    return FORMULA.sub(_formula, content)


def _formula(match: re.Match[str]) -> str:
    tex = html.unescape(match[3]).strip()
    inline = match[2] == "("
    mathml = convert(tex, display="inline" if inline else "block")
    if "\\" in mathml or ">&<" in mathml:  # a command or an alignment left as it was
        raise PluginError(f"latex2mathml does not know all of this formula: {tex}")
    if inline and len(tex) <= LONG:
        return mathml
    return f'<{match[1]} class="formula">{mathml}</{match[1]}>'  # it scrolls by itself
