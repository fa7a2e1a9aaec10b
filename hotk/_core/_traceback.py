"""Tracebacks that show the lines of the user, and not how hotk got there."""

import functools
import os
import types
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from ._errors import HotkError


_P = ParamSpec("_P")
_T = TypeVar("_T")
_OF_JAX = "JAX has removed its internal frames"
_HOTK = os.path.dirname(os.path.dirname(__file__)) + os.sep


def hides_frames(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Leave hotk's own frames out of the traceback of what is raised within.

    As in JAX, `JAX_TRACEBACK_FILTERING=off` leaves them in.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return function(*args, **named)
        except Exception as error:
            if getattr(jax.config, "jax_traceback_filtering", "") == "off":
                raise
            raise _shortened(error)  # noqa: B904 (it is the same exception)

    return run


def _shortened(error: Exception) -> Exception:
    frames, trace = [], error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_HOTK):
            frames.append(trace)
        trace = trace.tb_next
    short = None
    for frame in reversed(frames):
        short = types.TracebackType(
            short, frame.tb_frame, frame.tb_lasti, frame.tb_lineno
        )
    notes = getattr(error, "__notes__", [])
    if notes and isinstance(error, HotkError):  # the fix is the end of its message
        error.__notes__ = [note for note in notes if _OF_JAX not in note]
    return error.with_traceback(short)
