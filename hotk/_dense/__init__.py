"""Dense results: unit directions, how many at once, which maps are diagonal."""

from ._block import (
    Sizes as Sizes,
    choose_block as choose_block,
    is_complex as is_complex,
    is_fused as is_fused,
    over_basis as over_basis,
    recorded_blocks as recorded_blocks,
    size_of as size_of,
    split_rows as split_rows,
    unit as unit,
)
from ._columns import of_some as of_some
from ._divided import columns as columns
from ._entrywise import is_entrywise as is_entrywise
from ._flat import (
    dimension as dimension,
    flattened as flattened,
    gathered as gathered,
    is_explicit as is_explicit,
    parts as parts,
    promoted as promoted,
    refuse_shards as refuse_shards,
    unflattened as unflattened,
    whole as whole,
)
from ._index import (
    Index as Index,
    entry_name as entry_name,
    leaf_names as leaf_names,
    leaf_numbers as leaf_numbers,
    name_of as name_of,
)
from ._split import (
    Block as Block,
    By as By,
    Division as Division,
    split_over as split_over,
)
from ._vectors import (
    as_vector as as_vector,
    cast_leaf as cast_leaf,
    from_flat as from_flat,
    is_flat as is_flat,
)
