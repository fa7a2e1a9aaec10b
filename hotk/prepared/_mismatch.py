"""What a `Prepared` does when it is called with something else."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import PreparationError, Tracer, trace_context
from hotk.capture import (
    Closure,
    Opaque,
    Row,
    Signature,
    Walk,
    own_copy,
    sharding_of,
)


class Held:
    """Static arguments of a `Prepared`: compared by identity, so always hashable."""

    __slots__ = ("by_number",)

    def __init__(self, by_number: dict[int, Any]) -> None:
        self.by_number = by_number

    @staticmethod
    def of(statics: dict[int, Any]) -> "Held":
        """Hold static arguments by their number among all leaves."""
        return Held(dict(statics)) if statics else NOTHING


NOTHING = Held({})
_NUMBERS = (bool, int, float, complex)


def make_ready(prepared: Any, leaves: list[Any]) -> list[Any] | None:
    """Convert the leaves of a call, or return `None` if a static one differs.

    NumPy arrays are copied; a direction of NumPy arrays or Python numbers gets the
    dtype that it was prepared with.
    """
    statics = prepared.statics.by_number
    directions = _direction(prepared)
    made = []
    for i, leaf in enumerate(leaves):
        if i in statics:
            if i not in directions and not _same_static(leaf, statics[i]):
                return None
        elif isinstance(leaf, jax.Array):
            _, want, weak = prepared.signature.leaves[i].aval
            number = isinstance(leaf, Tracer) and jnp.ndim(leaf) == 0
            if number and i in directions and not weak and leaf.dtype == want:
                leaf = jax.lax.convert_element_type(leaf, want)  # of a Python number
            made.append(leaf)
        elif isinstance(leaf, (np.ndarray, np.generic, *_NUMBERS)):
            _, want, weak = prepared.signature.leaves[i].aval
            if i in directions and not weak and _fits(leaf, want):
                made.append(np.array(leaf, dtype=want, copy=True))
            else:
                made.append(
                    leaf if isinstance(leaf, _NUMBERS) else own_copy(np.asarray(leaf))
                )
        else:
            return None
    return made


def _direction(prepared: Any) -> range:
    """Return the numbers of the direction's leaves."""
    x_tree, rest_tree = prepared.program.tree.children()
    if not prepared.program.options.kind.takes:
        return range(0)
    first = x_tree.num_leaves
    return range(first, first + rest_tree.children()[0].num_leaves)


def _fits(leaf: Any, dtype: Any) -> bool:
    return not np.iscomplexobj(leaf) or jnp.issubdtype(dtype, jnp.complexfloating)


def _same_static(a: Any, b: Any) -> bool:
    if a is b:
        return True
    walks = Walk(), Walk()
    try:
        for walk, value in zip(walks, (a, b), strict=True):
            walk.visit(value)
    except Opaque:
        return False
    return not walks[0].leaves and walks[0].key == walks[1].key


def same_shardings(prepared: Any, arrays: list[Any]) -> bool:
    """Whether all arrays lie on the devices that they were prepared for."""
    statics = prepared.statics.by_number
    leaves = prepared.signature.leaves
    expected = [leaf.sharding for i, leaf in enumerate(leaves) if i not in statics]
    return all(
        isinstance(array, Tracer) or _same_sharding(array, sharding)
        for array, sharding in zip(arrays, expected, strict=True)
    )


def _same_sharding(array: Any, expected: Any) -> bool:
    found = sharding_of(array)
    if found is None or expected is None:
        return found is expected
    return found.is_equivalent_to(expected, array.ndim)


def answer(prepared: Any, x: Any, rest: Any) -> Any:
    """Raise, retrace or cast, as the `Prepared` was told to."""
    if prepared.on_mismatch == "retrace":
        return _retrace(prepared, x, rest)
    kind = prepared.program.options.kind
    called = Signature.of((x, *rest), kind.roots(1 + len(rest)))
    settings = prepared.program.unlike(trace_context())
    if prepared.on_mismatch == "cast" and not settings:
        cast = _cast(prepared, (x, *rest), called)
        if cast is not None:
            return prepared(*cast)
    rows = [Row(True, "function", prepared.skeleton.name, prepared.skeleton.name)]
    rows += prepared.signature.compare(called)
    rows += [Row(False, name, *pair) for name, pair in settings.items()]
    if all(row.same for row in rows):
        rows.append(Row(False, "captured arrays", "as prepared", "of another kind"))
    raise mismatch_error(prepared, rows)


_WAY_OUT = (
    "Prepare again for the new arguments, or prepare with `on_mismatch='retrace'`."
)
_MANY = 12


def mismatch_error(
    prepared: Any, rows: list[Row], fix: str = _WAY_OUT
) -> PreparationError:
    """Write the error: a line a field, with a tick or a cross and both values.

    Of many fields those that differ come first.
    """
    if len(rows) > _MANY:
        rows = sorted(rows, key=lambda row: row.same)
    lines = [f"`{prepared.program.options.kind.name}` was prepared for something else."]
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


def _retrace(prepared: Any, x: Any, rest: Any) -> Any:
    options = prepared.program.options
    skeleton = prepared.skeleton
    f = Closure(prepared.leaves[len(prepared.leaves) - skeleton.count :], skeleton)
    return prepared.operator(
        f,
        x,
        *rest,
        mode=options.mode,
        has_aux=options.has_aux,
        batched=options.batched,
        block_size=options.block_size,
        order=options.order,
    )


def _cast(prepared: Any, arguments: Any, called: Signature) -> Any:
    """Cast dtypes and weak types and move to the devices; `None` if shapes differ."""
    mine = prepared.signature
    if mine.structure != called.structure:
        return None
    leaves, treedef = jax.tree.flatten(arguments)
    made = []
    for leaf, want, got in zip(leaves, mine.leaves, called.leaves, strict=True):
        if want == got:
            made.append(leaf)
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
            made.append(np.asarray(leaf).astype(dtype).item())
            continue
        if not _fits(leaf, dtype):
            return None
        array = jnp.asarray(leaf, dtype)
        if want.sharding is not None:
            array = jax.device_put(array, want.sharding)
        made.append(array)
    again = treedef.unflatten(made)
    roots = prepared.program.options.kind.roots(len(arguments))
    now = Signature.of(again, roots)
    return again if all(row.same for row in mine.compare(now)) else None
