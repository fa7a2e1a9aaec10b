"""A progress bar is shown where it can be read."""

import io
import sys

import pytest

from hotk._core import bar, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_bar_is_written_to_terminals_only(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    assert list(progress(range(3), "steps", show=True)) == [0, 1, 2]
    with bar("steps", 3, show=True) as advance:
        advance(3, "done")
    assert ("steps" in sys.stderr.getvalue()) == (stream is Terminal)
