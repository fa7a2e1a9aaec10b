"""A function that an operator holds: split once, never changed, never opaque."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import (
    NEEDS_VALUE,
    ModeError,
    StructureError,
    describe_tree,
    function_name,
    in_trace,
    message,
    nothing_inexact,
)
from hotk.capture import Closure, Opaque, Snapshot, Staged, own_copy, survey

from ._vectors import fitted


class Fixed:
    """What cannot change from point to point: parts of the arguments, as given.

    All are equal: the function beside them tells two operators apart.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        """Whether the other one is of this kind."""
        return isinstance(other, Fixed)

    def __hash__(self) -> int:
        """Return the hash of all."""
        return hash(Fixed)


@final
class WithStatics(eqx.Module):
    """A function whose arguments have parts that are no arrays.

    Attributes:
        f: The function.
        statics: Those parts, `None` in the place of an array; all `None` if the
            function is a program that has them.
        fixed: The parts as they were given.
    """

    f: Any
    statics: Any
    fixed: Fixed = eqx.field(static=True)

    @property
    def func(self) -> Any:
        """The function, by the name that `functools.partial` has for it."""
        return self.f

    def __call__(self, x: Any, *args: Any) -> Any:
        """Call the function with both parts put together."""
        x, args = eqx.combine((x, args), self.statics)
        return self.f(x, *args)


def _as_leaf(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return jnp.asarray(own_copy(np.asarray(value)))
    if isinstance(value, (bool, int, float, complex)):
        return jnp.asarray(value)
    return value


def arrays_of(tree: Any) -> Any:
    """Return the arrays of a tree, NumPy's copied; `None` for what is no array."""
    return eqx.filter(jax.tree.map(_as_leaf, tree), eqx.is_array)


def hold(f: Callable[..., Any], x: Any, args: Any) -> tuple[Any, Any, Any]:
    """Split a function and its arguments into modules whose leaves are arrays.

    A function that is opaque is traced to its program. If Python needs the value of an
    array besides the point, to branch by it or to count up to it, the arrays are part
    of the program.

    Returns:
        The function as a closure, the point, and the further arguments, with `None` in
        place of what cannot change: that is the closure's.
    """
    given = jax.tree.map(_as_leaf, (x, args))
    arrays, parts = eqx.partition(given, eqx.is_array)
    try:
        return (_closed(f, arrays, parts), *arrays)
    except Exception:  # a value may be needed: if not, the error comes again
        moving = jax.tree.map(eqx.is_inexact_array, given[0])
        known = jax.tree.map(lambda a: False, given[1])
        arrays, parts = eqx.partition(given, (moving, known))
    try:
        return (Closure.of(_staged(f, arrays, parts)), *arrays)
    except NEEDS_VALUE as error:
        if in_trace():  # it may be a tracer of the outside whose value is asked for
            raise
        raise _needs_point(f, error) from error


def _closed(f: Any, arrays: Any, parts: Any) -> Closure:
    """Return a function of arrays as a closure, by its program if it is opaque."""
    held = WithStatics(f, parts, Fixed(parts)) if jax.tree.leaves(parts) else f
    closure = Closure.of(held)
    if closure.skeleton.opaque is None:
        try:
            _call.eval_shape(closure, *arrays)
            return closure
        except Opaque:  # what it holds cannot be built anew
            pass
    return Closure.of(_staged(f, arrays, parts))


@jax.jit
def _call(closure: Closure, x: Any, args: Any) -> Any:
    """Call a function; JAX remembers for which it could be traced.

    One that writes into something is not among them: it is held as its program.
    """
    f = closure.skeleton.function(closure.leaves)
    snapshot = Snapshot(*survey(f), ())
    try:
        result = f(x, *args)
    finally:
        wrote = snapshot.restore()
    if wrote is not None:
        raise Opaque(wrote)
    return result


def _staged(f: Any, arrays: Any, parts: Any) -> WithStatics:
    """Trace a function now, with what cannot change."""

    def run(arrays: Any) -> Any:
        x, args = eqx.combine(arrays, parts)
        return f(x, *args)

    staged = Staged.of(run, arrays)
    return WithStatics(staged, jax.tree.map(lambda a: None, parts), Fixed(parts))


def _needs_point(f: Any, error: Exception) -> ModeError:
    return ModeError(
        message(
            "HessianOperator(f, x)",
            f"`{function_name(f)}` needs the value of the point.",
            expected="operations of `jax.numpy` on what depends on `x`",
            got=str(error).strip().splitlines()[0],
            fix="Use `jnp.where` or `jax.lax.cond` for `if`, `jnp` for `np`, and keep "
            "`float(x)`, `int(x)` and `x.item()` outside.",
        )
    )


def parts_of(f: Closure, arrays: Any) -> Any:
    """Return what the arguments of a held function have besides their arrays."""
    held = f.skeleton.template
    if isinstance(held, WithStatics):
        return held.fixed.parts
    return jax.tree.map(lambda a: None, arrays)


def moved(name: str, new: Any, old: Any, parts: Any) -> Any:
    """Return the arrays of a tree that is to be like another one.

    Args:
        name: What it is called.
        new: The tree. NumPy's arrays and Python's numbers get the dtype of the old.
        old: The arrays of the other tree, `None` elsewhere.
        parts: What may not change, `None` elsewhere; it may be left out in `new`.

    Raises:
        StructureError: If it is not like the other.
    """
    want, treedef = jax.tree.flatten(old, is_leaf=lambda a: a is None)
    keep = treedef.flatten_up_to(parts)
    try:
        found = treedef.flatten_up_to(new)
    except (ValueError, TypeError, KeyError):
        found = [StructureError] * len(want)
    made = [b if a is None else _fitted(b, a) for a, b in zip(want, found, strict=True)]
    same = [
        b is not None if a is not None else b is None or _same(c, b)
        for a, b, c in zip(want, made, keep, strict=True)
    ]
    if all(same):
        pairs = zip(want, made, strict=True)
        return treedef.unflatten([None if a is None else b for a, b in pairs])
    expected, got = describe_tree(eqx.combine(old, parts)), describe_tree(new)
    if expected == got:  # of the same kind, but not the same
        i = same.index(False)
        expected, got = f"{keep[i]!r:.200}", f"{made[i]!r:.200}"
    raise StructureError(
        message(
            "H.at(x, *args)",
            f"`{name}` is not like that of the operator.",
            expected=expected,
            got=got,
            fix="Shapes and dtypes, and what is no array or has a value that the "
            "function needs, are to be the same: make a new operator for others.",
        )
    )


def _fitted(new: Any, old: Any) -> Any:
    """Return a leaf for the place of another one, `None` if it does not fit there."""
    made = fitted(new, old)
    kind = {"b": bool, "i": int, "f": float, "c": complex}.get(old.dtype.kind)
    weak = jax.typeof(old).weak_type and isinstance(new, (int, float, complex))
    if made is not None and weak and kind is not None:
        same = jnp.asarray(kind(new))  # weak as well, so that no program is another
        return same if same.dtype == old.dtype else made
    return made


def _same(old: Any, new: Any) -> bool:
    """Whether a part of an argument is what it was."""
    if new is old:
        return True
    if eqx.is_array_like(old) or eqx.is_array_like(new):
        old, new = np.asarray(old), np.asarray(new)
        return old.shape == new.shape and bool(np.all(old == new))
    if callable(old) and callable(new):
        a, b = Closure.of(old), Closure.of(new)
        return a.skeleton == b.skeleton and not a.leaves and not b.leaves
    return type(old) is type(new) and bool(old == new)


def split(call: str, x: Any) -> tuple[Any, Any]:
    """Split a point into what is differentiated and the rest, `None` elsewhere.

    Raises:
        DtypeError: If nothing is differentiated.
    """
    moving, rest = eqx.partition(x, eqx.is_inexact_array)
    if not jax.tree.leaves(moving):
        raise nothing_inexact(call, x)
    return moving, rest
