"""Which captured arrays are static by content, from stage to stage of a call."""

from hotk._capture import StaticArrays

from .warnings import NEEDS_CONTENT, NUMPY_COMPUTES


# For each reason, which captured arrays to take as static in turn; in a direct call,
# which looks at their content each time, and in a `Prepared`, which holds them.
LEVELS = {
    NEEDS_CONTENT: (
        StaticArrays.INTEGERS,
        StaticArrays.SCALARS,
        StaticArrays.SMALL_NUMPY,
        StaticArrays.SMALL,
        StaticArrays.ALL_NUMPY,
        StaticArrays.ALL_NUMPY_AND_SMALL,
    ),
    NUMPY_COMPUTES: (
        StaticArrays.SMALL_NUMPY,
        StaticArrays.SMALL,
        StaticArrays.ALL_NUMPY,
    ),
}
# Beyond this a function is traced at each call: a digest takes long, and what is
# computed from the arrays is kept with the program.
MOST_BYTES = 1 << 20
HELD_LEVELS = (
    StaticArrays.NONE,
    StaticArrays.ALL_NUMPY,
    StaticArrays.ALL_NUMPY_AND_SMALL,
)
OPAQUE = 1 + max(StaticArrays)
