"""Floor 8. Truncated Taylor series through any program."""

from ._derivatives import derivatives as derivatives, taylor as taylor
from ._mode import Taylor as Taylor
from ._series import Series as Series
from ._transform import series_of as series_of
