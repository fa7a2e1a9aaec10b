"""Dense results: unit directions, how many at once, which maps are diagonal."""

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
from ._sizes import Sizes as Sizes
