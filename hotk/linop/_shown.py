"""How operators show, in a terminal and in a notebook."""

import html

import jax

from hotk._dense import Index

from ._linear_map import AbstractLinearMap


def shown_in_notebook(operator: AbstractLinearMap) -> str:
    """Return the operator in one line, and a table of the leaves of its space."""
    line = f"<p><code>{html.escape(repr(operator))}</code></p>"
    if not jax.tree.leaves(operator.like):
        return line
    return line + Index.of(operator.like)._repr_html_()
