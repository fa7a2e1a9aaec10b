"""House rules: one test for each, which lists all offenders and says how to mend it."""

from collections.abc import Iterable

import pytest


def none(offenders: Iterable[str], mend: str) -> None:
    """Fail with what to do and with the whole list, if there is anything in it."""
    if found := list(offenders):
        lines = "\n".join(f"  {line}" for line in found)
        pytest.fail(f"{mend}\n{len(found)} found:\n{lines}", pytrace=False)
