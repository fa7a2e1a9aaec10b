"""Small programs, compiled once each."""

import pytest


@pytest.fixture(autouse=True)
def fast(compiled_fast):
    """Compile without optimizations."""
