"""Truncated Taylor series through any program."""

from ._frame import TooManyNumbersError as TooManyNumbersError
from ._local import Seeds as Seeds
from ._series import scaled as scaled
from ._support import support as support
from ._transform import series_of as series_of
