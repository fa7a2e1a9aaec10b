"""Operators that are traced and compiled once: direct calls and `Prepared`."""

from ._arguments import PreparedInOrder as PreparedInOrder, rearranged as rearranged
from ._arranged import (
    Arranged as Arranged,
    Arrangement as Arrangement,
    arranged as arranged,
)
from ._budget import (
    check_budget as check_budget,
    check_bytes as check_bytes,
    memory_budget as memory_budget,
    set_memory_budget as set_memory_budget,
)
from ._call import Call as Call
from ._checks import as_one_number as as_one_number, check_callable as check_callable
from ._contents import ask_for_content as ask_for_content
from ._explain import Explanation as Explanation, explain as explain
from ._family import Bound as Bound, Member as Member, Variant as Variant
from ._info import CacheInfo as CacheInfo, Info as Info
from ._inputs import as_input as as_input
from ._jitted import jitted as jitted
from ._one_device import lost_sum as lost_sum
from ._operator import Operator as Operator, operator as operator
from ._options import USER_CALL as USER_CALL, Options as Options
from ._prepare import prepare_again as prepare_again
from ._prepared import Prepared as Prepared
from ._program import Program as Program, Runner as Runner, few_runs as few_runs
from ._store import (
    STORE as STORE,
    cache_info as cache_info,
    clear_cache as clear_cache,
)
from ._typed_operator import (
    TypedOperator as TypedOperator,
    array_of_array as array_of_array,
    like_point as like_point,
    like_value as like_value,
    list_like_value as list_like_value,
    three_of_array as three_of_array,
    two_of_array as two_of_array,
    value_and_like_point as value_and_like_point,
    with_aux as with_aux,
)
from ._watch import WATCH as WATCH, shown as shown
from .warnings import (
    PerCode as PerCode,
    code_of as code_of,
    user_level as user_level,
)
