"""How operators show, in a terminal and in a notebook."""

import html
from typing import Any

import jax

from ._index import Index


def shown_in_notebook(operator: Any) -> str:
    """Return the operator in one line, and a table of the leaves of its space."""
    line = f"<p><code>{html.escape(repr(operator))}</code></p>"
    if not jax.tree.leaves(operator.like):
        return line
    return line + Index.of(operator.like)._repr_html_()
