"""What is differentiated: callables as modules, and signatures of calls."""

from ._arrays import (
    IndexedByJax as IndexedByJax,
    copied as copied,
    is_numeric as is_numeric,
    own_copy as own_copy,
)
from ._callables import CustomDerivative as CustomDerivative
from ._captured_tracer import (
    host_reaches_tracer as host_reaches_tracer,
    reaches_tracer as reaches_tracer,
)
from ._captured_type import (
    SameThing as SameThing,
    StaticArrays as StaticArrays,
    Trail as Trail,
    is_static as is_static,
)
from ._cause import (
    CHANGED as CHANGED,
    KEEPS as KEEPS,
    RULE_CAPTURES_ARRAY as RULE_CAPTURES_ARRAY,
    RULE_CAPTURES_TRACER as RULE_CAPTURES_TRACER,
    TOO_DEEP as TOO_DEEP,
    WRITES as WRITES,
    Opaque as Opaque,
    OpaqueCause as OpaqueCause,
    OpaqueReason as OpaqueReason,
)
from ._closure import Closure as Closure, Skeleton as Skeleton
from ._code import CodeFacts as CodeFacts, facts_of as facts_of
from ._declared import static as static
from ._explain import (
    captures as captures,
    changes as changes,
    opaque_place as opaque_place,
)
from ._guard import key_and_arrays as key_and_arrays
from ._library import is_library_file as is_library_file
from ._pickled import pickled as pickled, unpickled as unpickled
from ._rebuild import Rebuild as Rebuild, chosen_of as chosen_of, survey as survey
from ._signature import (
    Aval as Aval,
    Signature as Signature,
    SignatureField as SignatureField,
    SignatureLeaf as SignatureLeaf,
    aval_of as aval_of,
    sharding_of as sharding_of,
)
from ._snapshot import Snapshot as Snapshot
from ._traced_program import (
    Staged as Staged,
    TracedProgram as TracedProgram,
    rule_key as rule_key,
    with_copies as with_copies,
)
from ._tree import (
    check_faithful as check_faithful,
    dict_orders as dict_orders,
    in_orders as in_orders,
    moving_nodes as moving_nodes,
    walk_all as walk_all,
)
from ._values import by_identity as by_identity
from ._walk import Walk as Walk
