"""Packages that hotk does not need: imported where they are used."""

import importlib
from typing import Any


def extra(package: str) -> Any:
    """Import an optional package.

    Args:
        package: Its name, which is that of hotk's extra as well.

    Raises:
        ImportError: If it is not installed; the message says how to.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f'This needs the package `{package}`: pip install "hotk[{package}]"',
            name=package,
        ) from error
