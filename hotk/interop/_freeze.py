"""`freeze`: a function with the values that it captures now, to be prepared later."""

from collections.abc import Sequence

from jaxtyping import PyTree

from hotk._capture import Closure, Staged
from hotk._core import Function
from hotk._prepared import Prepared


def freeze(f: Function, prepared: Sequence[Prepared], *arguments: PyTree) -> Closure:
    """Return a function with the values that it captures now.

    Hessians are prepared when a solver asks for one, which may be after the user
    changed what `f` captures: they have to be those of the same function as the value.

    Args:
        f: A function made of the functions that were prepared.
        prepared: Operators on these functions, prepared at this moment.
        *arguments: Examples of what it is called with: numbers and arrays.

    Returns:
        The function. Later changes of what `f` captures do not change it.
    """
    # Captured arrays stay inputs of the program where Python code does not need their
    # values. Preparation has found out which do, and is not repeated: other data then
    # need no compilation (`test_other_data_need_no_compile`).
    if all(operator.skeleton.opaque is None for operator in prepared):
        static = max(operator.skeleton.static_arrays for operator in prepared)
        closure = Closure.of(f, static_arrays=static)
        if closure.skeleton.opaque is None:
            return closure
    # An object whose state hotk cannot track is traced now: its values become constants
    # (`test_an_object_with_state_is_frozen`).
    return Closure.of(Staged.of(f, *arguments))
