"""How far above hotk's code that of the user is, for warnings."""

import sys

from hotk.function import is_library_file


def user_level() -> int:
    """Return how far above the caller the code of the user is."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level
