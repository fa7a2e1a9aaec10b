"""Packages that hotk does not need: imported where they are used."""

import importlib
from typing import Any


def extra(package: str, name: str = "") -> Any:
    """Import an optional package.

    Args:
        package: Its name, or that of a module of it.
        name: The extra of hotk that brings it; the package's own name if left out.

    Raises:
        ImportError: If it is not installed; the message says how to.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        raise ImportError(
            f'This needs the package `{top}`: pip install "hotk[{name or top}]"',
            name=top,
        ) from error
