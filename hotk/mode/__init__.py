"""Floor 2. How one derivative is taken, and how two are nested."""

from ._adopted import adopted as adopted
from ._auto import (
    AUTO as AUTO,
    Auto as Auto,
    Facts as Facts,
    along_candidates as along_candidates,
    first_order_candidates as first_order_candidates,
    second_order_candidates as second_order_candidates,
)
from ._basis import (
    is_complex as is_complex,
    over_basis as over_basis,
    size_of as size_of,
    split_rows as split_rows,
    unit as unit,
)
from ._block import (
    choose_block as choose_block,
    is_fused as is_fused,
    recorded_blocks as recorded_blocks,
)
from ._columns import columns as columns
from ._entrywise import is_entrywise as is_entrywise
from ._first import (
    AbstractMode as AbstractMode,
    Forward as Forward,
    Reverse as Reverse,
)
from ._linear import (
    AbstractLinear as AbstractLinear,
    apply_linear as apply_linear,
    check_linear as check_linear,
    notes_of as notes_of,
)
from ._nested import (
    FORWARD_OVER_FORWARD as FORWARD_OVER_FORWARD,
    FORWARD_OVER_REVERSE as FORWARD_OVER_REVERSE,
    NESTINGS as NESTINGS,
    REVERSE_OVER_FORWARD as REVERSE_OVER_FORWARD,
    REVERSE_OVER_REVERSE as REVERSE_OVER_REVERSE,
    Nested as Nested,
)
from ._ruled import AbstractRuled as AbstractRuled, apply_ruled as apply_ruled
from ._sizes import Sizes as Sizes
from ._taylor import Taylor as Taylor
from ._weak import weak_if as weak_if, weak_like as weak_like
from .series import Units as Units, scaled as scaled, series_of as series_of
