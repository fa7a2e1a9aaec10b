"""Where the code of the user is: for warnings, and for errors from inside of it."""

import sys

from hotk._capture import is_library_file
from hotk._core import file_name


def user_level() -> int:
    """Return how far above the caller the code of the user is."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


def error_line(error: BaseException | None) -> str:
    """Say which line of the user's function an error is about.

    Where none of its own lines is the user's, the cause is asked: JAX makes it the
    traceback of the code that it transforms.
    """
    if error is None:
        return ""
    line, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library_file(code.co_filename):
            line = f" in {file_name(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line or error_line(error.__cause__)
