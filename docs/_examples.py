"""An extension of the documentation build: `Example:` holds code, as `Examples:` does.

Griffe knows the plural only; it would take prompts for quotations, lists for links.
"""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Write the title of the section as griffe knows it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object, before it is parsed."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
