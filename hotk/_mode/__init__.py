"""How one derivative is taken, and how two are nested."""

from ._auto import (
    AUTO as AUTO,
    Auto as Auto,
    Facts as Facts,
    along_candidates as along_candidates,
    first_order_candidates as first_order_candidates,
    forward_first as forward_first,
    reverse_first as reverse_first,
    second_order_candidates as second_order_candidates,
    taylor_only as taylor_only,
    weak_if as weak_if,
    weak_like as weak_like,
)
from ._first import (
    AbstractMode as AbstractMode,
    Forward as Forward,
    Reverse as Reverse,
    real_inner as real_inner,
)
from ._nested import (
    FORWARD_OVER_FORWARD as FORWARD_OVER_FORWARD,
    FORWARD_OVER_REVERSE as FORWARD_OVER_REVERSE,
    NESTINGS as NESTINGS,
    REVERSE_OVER_FORWARD as REVERSE_OVER_FORWARD,
    REVERSE_OVER_REVERSE as REVERSE_OVER_REVERSE,
    Nested as Nested,
)
from ._taylor import Taylor as Taylor
from .series import (
    Seeds as Seeds,
    TooManyNumbersError as TooManyNumbersError,
    scaled as scaled,
    series_of as series_of,
    support as support,
)
