"""Truncated Taylor series through any program."""

from ._series import Units as Units, scaled as scaled
from ._transform import series_of as series_of
