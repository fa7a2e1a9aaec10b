"""Compile fast: most of the time of these tests is compiling."""

import pytest


@pytest.fixture(autouse=True)
def fast(compiled_fast):
    pass
