"""Functions that know their own derivatives, for each mode.

`help(hotk.rule.Backend)` documents one of these:

    Backend Condition Custom Differentiability Findings NaNOrigin OverAxis Substituted
    as_shards can_differentiate check_backend custom disabled external fixed_point
    from_shards linear_solve lint locate_nan minimum over_axis root substitute which
"""

from . import safe as safe
from ._backend import Backend as Backend, check_backend as check_backend
from ._can_differentiate import (
    Differentiability as Differentiability,
    can_differentiate as can_differentiate,
)
from ._condition import Condition as Condition
from ._custom import Custom as Custom, custom as custom, disabled as disabled
from ._external import external as external
from ._implicit import (
    fixed_point as fixed_point,
    minimum as minimum,
    root as root,
)
from ._linear_solve import linear_solve as linear_solve
from ._lint import Findings as Findings, lint as lint
from ._locate_nan import NaNOrigin as NaNOrigin, locate_nan as locate_nan
from ._over_axis import OverAxis as OverAxis, over_axis as over_axis
from ._shards import as_shards as as_shards, from_shards as from_shards
from ._substitute import Substituted as Substituted, substitute as substitute
from ._which import which as which
