"""Primitives of hotk: derivative rules, sums over devices, how arrays are computed."""

from ._across import (
    crossing as crossing,
    shared as shared,
    shared_axes as shared_axes,
    shares as shares,
    summed as summed,
    taken as taken,
    takes_part as takes_part,
)
from ._alike import divided_as as divided_as
from ._custom import (
    NotTransposableError as NotTransposableError,
    extreme as extreme,
    with_extremes as with_extremes,
    with_forward_rule as with_forward_rule,
    with_rules as with_rules,
)
from ._held import (
    constants as constants,
    have_tangents as have_tangents,
    held as held,
    held_in as held_in,
    may_have_tangents as may_have_tangents,
    released as released,
)
from ._linear import (
    AbstractLinear as AbstractLinear,
    apply_linear as apply_linear,
    check_linear as check_linear,
    notes_of as notes_of,
)
from ._nondifferentiable import (
    forward_only as forward_only,
    nondifferentiable as nondifferentiable,
    without_derivative as without_derivative,
)
from ._ruled import AbstractRuled as AbstractRuled, apply_ruled as apply_ruled
from ._written import written as written
