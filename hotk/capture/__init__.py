"""What is differentiated: callables as modules, and signatures of calls."""

from ._callables import Ruled as Ruled
from ._closure import Closure as Closure, Skeleton as Skeleton
from ._explain import (
    TOO_DEEP as TOO_DEEP,
    captures as captures,
    changes as changes,
    opaque_place as opaque_place,
)
from ._fixes import FIXES as FIXES, fix_of as fix_of
from ._gone import GONE as GONE, HELD as HELD, holds_gone as holds_gone
from ._guard import look as look
from ._rebuild import Rebuild as Rebuild, survey as survey
from ._recipe import (
    Recipe as Recipe,
    is_library_file as is_library_file,
    recipe_of as recipe_of,
)
from ._registry import static as static
from ._rule_key import rule_key as rule_key
from ._signature import (
    Row as Row,
    Signature as Signature,
    kind_of as kind_of,
    sharding_of as sharding_of,
)
from ._snapshot import Snapshot as Snapshot
from ._staged import Staged as Staged
from ._traced_program import TracedProgram as TracedProgram
from ._tree import (
    check_faithful as check_faithful,
    dict_orders as dict_orders,
    in_orders as in_orders,
    moving_nodes as moving_nodes,
    walk_all as walk_all,
)
from ._values import (
    ALL_NUMPY as ALL_NUMPY,
    ALL_NUMPY_AND_SMALL as ALL_NUMPY_AND_SMALL,
    INTEGERS as INTEGERS,
    SCALARS as SCALARS,
    SMALL as SMALL,
    SMALL_NUMPY as SMALL_NUMPY,
    copied as copied,
    is_numeric as is_numeric,
    is_small as is_small,
    own_copy as own_copy,
)
from ._walk import (
    CHANGED as CHANGED,
    KEEPS as KEEPS,
    WRITES as WRITES,
    Identity as Identity,
    Opaque as Opaque,
    Trail as Trail,
    Walk as Walk,
)
