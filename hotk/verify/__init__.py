"""Every new program checked against other roads to its numbers, at its first result."""

from ._comparison import Difference as Difference, difference as difference
from ._verified import Verified as Verified, verified as verified
