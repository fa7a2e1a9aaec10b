"""What a `Prepared` does when it is called with something else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._capture import (
    Closure,
    Opaque,
    Signature,
    SignatureField,
    Skeleton,
    Walk,
    own_copy,
    sharding_of,
)
from hotk._core import Leaf, Point, PreparationError, Tracer, trace_context

from ._program import Program


class StaticLeaves:
    """Static arguments of a `Prepared`: compared by identity, so always hashable.

    Attributes:
        by_number: The arguments, by their number among all leaves.
    """

    __slots__ = ("by_number",)

    def __init__(self, by_number: Mapping[int, object]) -> None:
        self.by_number = by_number

    @staticmethod
    def of(statics: Mapping[int, object]) -> "StaticLeaves":
        """Hold static arguments by their number among all leaves."""
        return StaticLeaves(dict(statics)) if statics else _NO_STATICS


_NO_STATICS = StaticLeaves({})
_NUMBERS = (bool, int, float, complex)
_ARRAYS = (jax.Array, np.ndarray, np.generic)


class PreparedOperator(Protocol):
    """What is known here of a `Prepared`."""

    leaves: tuple[Array, ...]
    skeleton: Skeleton
    program: Program
    signature: Signature
    statics: StaticLeaves
    operator: Callable[..., PyTree]
    on_mismatch: str

    @property
    def closure(self) -> Closure:
        """The function, as it was when prepared."""
        ...

    def __call__(self, x: Point, *rest: PyTree) -> PyTree:
        """Evaluate the operator."""
        ...


def convert_leaves(
    prepared: PreparedOperator, leaves: Sequence[PyTree]
) -> list[Leaf] | None:
    """Convert the leaves of a call, or return `None` if a static one differs.

    NumPy arrays are copied; a direction of NumPy arrays or Python numbers gets the
    dtype that it was prepared with.
    """
    statics = prepared.statics.by_number
    directions = _direction(prepared)
    converted: list[Leaf] = []
    for i, leaf in enumerate(leaves):
        if i in statics:
            if i not in directions and not _same_static(leaf, statics[i]):
                return None
        elif isinstance(leaf, jax.Array):
            _, want, weak = prepared.signature.leaves[i].aval
            number = isinstance(leaf, Tracer) and jnp.ndim(leaf) == 0
            if number and i in directions and not weak and leaf.dtype == want:
                leaf = jax.lax.convert_element_type(leaf, want)  # of a Python number
            converted.append(leaf)
        elif isinstance(leaf, (np.ndarray, np.generic, *_NUMBERS)):
            _, want, weak = prepared.signature.leaves[i].aval
            if i in directions and not weak and _can_be_cast(leaf, want):
                converted.append(np.array(leaf, dtype=want, copy=True))
            else:
                own: PyTree = leaf
                if not isinstance(leaf, _NUMBERS):
                    own = own_copy(np.asarray(leaf))
                converted.append(own)
        else:
            return None
    return converted


def _direction(prepared: PreparedOperator) -> range:
    """Return the numbers of the direction's leaves."""
    x_tree, rest_tree = prepared.program.tree.children()
    if not prepared.program.options.definition.takes:
        return range(0)
    begin = x_tree.num_leaves
    return range(begin, begin + rest_tree.children()[0].num_leaves)


def _can_be_cast(leaf: PyTree, dtype: np.dtype) -> bool:
    """Whether a cast drops no imaginary part."""
    return not np.iscomplexobj(leaf) or jnp.issubdtype(dtype, jnp.complexfloating)


def _same_static(a: object, b: object) -> bool:
    if a is b:
        return True
    if isinstance(a, _ARRAYS) or isinstance(b, _ARRAYS):
        return _same_content(a, b)
    walks = Walk(), Walk()
    try:
        for walk, value in zip(walks, (a, b), strict=True):
            walk.visit(value)
    except Opaque:
        return False
    return not walks[0].leaves and walks[0].key == walks[1].key


def _same_content(a: object, b: object) -> bool:
    """Whether two arrays that are static by content are the same for a program."""
    if not (isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)):
        return False
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return False
    one, other = own_copy(np.asarray(a)), own_copy(np.asarray(b))
    return one.dtype == other.dtype and np.array_equal(one, other)


def same_shardings(prepared: PreparedOperator, arrays: Sequence[Leaf]) -> bool:
    """Whether all arrays lie on the devices that they were prepared for."""
    statics = prepared.statics.by_number
    leaves = prepared.signature.leaves
    expected = [leaf.sharding for i, leaf in enumerate(leaves) if i not in statics]
    return all(
        isinstance(array, Tracer) or _same_sharding(array, sharding)
        for array, sharding in zip(arrays, expected, strict=True)
    )


def _same_sharding(array: Leaf, expected: jax.sharding.Sharding | None) -> bool:
    found = sharding_of(array)
    if found is None or expected is None:
        return found is expected
    assert isinstance(array, jax.Array)  # only those have one
    return found.is_equivalent_to(expected, array.ndim)


def answer_mismatch(
    prepared: PreparedOperator, x: Point, rest: tuple[PyTree, ...]
) -> PyTree:
    """Raise, retrace or cast, as `on_mismatch` says.

    Raises:
        PreparationError: If the arguments do not fit and are not to be made to.
    """
    if prepared.on_mismatch == "retrace":
        return _retrace(prepared, x, rest)
    roots = prepared.program.options.definition.roots(1 + len(rest))
    called = Signature.of((x, *rest), roots)
    settings = prepared.program.unlike(trace_context())
    if prepared.on_mismatch == "cast" and not settings:
        arguments = _cast(prepared, (x, *rest), called)
        if arguments is not None:
            return prepared(*arguments)
    rows = [
        SignatureField(True, "function", prepared.skeleton.name, prepared.skeleton.name)
    ]
    rows += prepared.signature.compare(called)
    rows += _other_contents(prepared, jax.tree.leaves((x, *rest)))
    rows += [SignatureField(False, name, *pair) for name, pair in settings.items()]
    if all(row.same for row in rows):
        rows.append(
            SignatureField(False, "captured arrays", "as prepared", "of another kind")
        )
    raise mismatch_error(prepared, rows)


def _other_contents(
    prepared: PreparedOperator, leaves: Sequence[object]
) -> list[SignatureField]:
    """Return a row for each array or number that decides the program, and differs."""
    names = prepared.signature.names
    if len(leaves) != len(names):
        return []
    pairs = [
        (names[i], static, leaves[i])
        for i, static in prepared.statics.by_number.items()
        if isinstance(static, (*_ARRAYS, *_NUMBERS))
        and not _same_static(leaves[i], static)
    ]
    return [
        SignatureField(False, f"content of {name}", f"{was!r:.60}", f"{now!r:.60}")
        for name, was, now in pairs
    ]


_FIX = "Prepare again for the new arguments, or prepare with `on_mismatch='retrace'`."
_MANY = 12


def mismatch_error(
    prepared: PreparedOperator, rows: Sequence[SignatureField], fix: str = _FIX
) -> PreparationError:
    """Write the error: a line a field, with a tick or a cross and both values.

    Of many fields those that differ come first.
    """
    if len(rows) > _MANY:
        rows = sorted(rows, key=lambda row: row.same)
    name = prepared.program.options.definition.name
    lines = [f"`{name}` was prepared for something else."]
    for row in rows:
        mark = "✓" if row.same else "✗"
        values = (
            row.prepared
            if row.same
            else f"prepared {row.prepared}, called {row.called}"
        )
        lines.append(f"  {mark} {row.field}: {values}")
    lines.append(fix)
    return PreparationError("\n".join(lines))


def _retrace(prepared: PreparedOperator, x: Point, rest: tuple[PyTree, ...]) -> PyTree:
    options = prepared.program.options
    return prepared.operator(
        prepared.closure,
        x,
        *rest,
        mode=options.mode,
        has_aux=options.has_aux,
        batched=options.batched,
        block_size=options.block_size,
        order=options.order,
    )


def _cast(
    prepared: PreparedOperator, arguments: tuple[PyTree, ...], called: Signature
) -> tuple[PyTree, ...] | None:
    """Cast dtypes and weak types and move to the devices; `None` if shapes differ."""
    mine = prepared.signature
    if mine.structure != called.structure or mine.leaves == called.leaves:
        return None  # what differs is the content of an index, which no cast changes
    leaves, treedef = jax.tree.flatten(arguments)
    cast: list[Leaf] = []
    for leaf, want, got in zip(leaves, mine.leaves, called.leaves, strict=True):
        if want == got:
            cast.append(leaf)
            continue
        if (
            want.aval[0] == "static"
            or got.aval[0] == "static"
            or want.aval[0] != got.aval[0]
        ):
            return None
        _, dtype, weak = want.aval
        if not np.can_cast(got.aval[1], dtype, "same_kind"):
            return None  # nothing is rounded to an integer or to a truth
        if weak and np.shape(leaf) == ():
            cast.append(np.asarray(leaf).astype(dtype).item())
            continue
        if not _can_be_cast(leaf, dtype):
            return None
        array = jnp.asarray(leaf, dtype)
        if want.sharding is not None:
            array = jax.device_put(array, want.sharding)
        cast.append(array)
    result = treedef.unflatten(cast)
    roots = prepared.program.options.definition.roots(len(arguments))
    now = Signature.of(result, roots)
    return result if all(row.same for row in mine.compare(now)) else None
