"""Floor 4. Functions that know their own derivatives, for each mode."""

from . import safe as safe
from ._custom import Custom as Custom, custom as custom
from ._disabled import disabled as disabled
from ._external import external as external
from ._implicit import (
    fixed_point as fixed_point,
    linear_solve as linear_solve,
    minimum as minimum,
    root as root,
)
from ._which import which as which
