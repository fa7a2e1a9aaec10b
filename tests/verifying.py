"""Which tests are left out where every program is checked: `HOTK_VERIFY=1 pytest`.

A check traces and evaluates the function of the user once more. So a test is left out
that counts how often a body runs, or that looks at what is alive, at the time that a
call takes or at hotk's own counters. Most are told by the words in their source; others
are marked `counts`. What `tests/counting.py` counts is counted without the checks.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import pytest


_WORDS = re.compile(
    r"\b(tick|__next__|next|walks|cache_info|weakref|getrefcount|tracemalloc|"
    r"perf_counter|monotonic|"
    r"monkeypatch|planted|subprocess|no_leaks|resident_bytes|grown_by_fresh_closures)\b"
)


def is_on() -> bool:
    """Whether this process checks every program."""
    return os.environ.get("HOTK_VERIFY", "0") not in ("", "0")


def counts(item: pytest.Item) -> bool:
    """Whether a test would see the checks."""
    if item.get_closest_marker("counts"):
        return True
    function = getattr(item, "function", None)
    return function is not None and _sees_checks(function)


@functools.cache
def _sees_checks(function: Callable[..., Any]) -> bool:
    return bool(_WORDS.search(inspect.getsource(function)))
