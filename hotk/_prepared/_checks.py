"""Checks of directions and results, made while tracing, and of deleted arrays."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import (
    DtypeError,
    Function,
    Leaf,
    OutputError,
    Point,
    StructureError,
    Tracer,
    describe,
    describe_tree,
    difference,
    float_scalar,
    function_name,
    function_place,
    leaf_name,
    message,
)

from ._options import Definition


def check_callable(call: str, f: object) -> None:
    """Refuse what cannot be called."""
    if not callable(f):
        raise TypeError(
            message(
                call,
                "the first argument must be the function.",
                expected="a callable",
                got=describe(f),
                fix=f"Write `{call}`: the function, then the point.",
            )
        )


def match_direction(
    call: str,
    names: tuple[str, str],
    point: PyTree,
    direction: PyTree,
    *,
    castable: set[int],
    batched: bool,
    differentiated: Sequence[bool],
) -> list[Array]:
    """Return the leaves of a direction for the differentiated leaves of a point.

    Args:
        call: The call, for messages.
        names: The names of point and direction, for messages.
        point: The point: a tree whose differentiated leaves are arrays.
        direction: A tree of the same structure.
        castable: Identities of the leaves that may be cast.
        batched: Whether the leaves have one leading axis more.
        differentiated: Which leaves of the point are differentiated.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(point)
    try:
        parts = treedef.flatten_up_to(direction)
    except (ValueError, TypeError, KeyError) as error:
        raise StructureError(
            message(
                call,
                f"`{names[1]}` must have the structure of `{names[0]}`.",
                **difference(names[1], point, direction),
                fix=f"Build `{names[1]}` with `jax.tree.map` over `{names[0]}`.",
            )
        ) from error
    matched: list[Array] = []
    count: int | None = None
    for (path, leaf), part, keep in zip(paths, parts, differentiated, strict=True):
        if not keep:
            continue
        pair = (leaf_name(names[0], path), leaf_name(names[1], path))
        part = _match_leaf(call, pair, leaf, part, castable=castable, batched=batched)
        if batched:
            if count is not None and part.shape[0] != count:
                raise StructureError(
                    message(
                        call,
                        f"`{pair[1]}` must have as many directions as the others.",
                        expected=f"leading axis of length {count}",
                        got=f"leading axis of length {part.shape[0]}",
                        fix="Give every leaf the same leading axis.",
                    )
                )
            count = part.shape[0]
        matched.append(part)
    return matched


def _fix(shape: tuple[int, ...], want: tuple[int, ...], batched: bool) -> str:
    if batched and shape == want:
        return "Leave out `batched=True` for one direction, or add a leading axis."
    if not batched and shape[1:] == want:
        return "Reshape it, or pass `batched=True` for a batch of directions."
    return "Reshape it; hotk never broadcasts."


def _match_leaf(
    call: str,
    names: tuple[str, str],
    leaf: Leaf,
    part: object,
    *,
    castable: set[int],
    batched: bool,
) -> Array:
    want = jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))
    if not isinstance(
        part, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    ):
        raise StructureError(
            message(
                call,
                f"`{names[1]}` must be an array, as `{names[0]}` is.",
                expected=describe(want),
                got=describe(part),
                fix=f"Give a direction for `{names[0]}`, zeros to leave it out.",
            )
        )
    shape = np.shape(part)
    if (shape[1:] if batched else shape) != want.shape or (batched and not shape):
        axis = "s," if want.shape else "s"
        expected = describe(want)
        if batched:
            expected = expected.replace("[", f"[{axis}", 1) + " (s directions)"
        raise StructureError(
            message(
                call,
                f"`{names[1]}` must have the shape of `{names[0]}`.",
                expected=expected,
                got=describe(part),
                fix=_fix(shape, want.shape, batched),
            )
        )
    dtype = jnp.result_type(part)
    if dtype == want.dtype:
        return jnp.asarray(part)
    # NumPy arrays and Python numbers have the dtype that was easy to write.
    if id(part) in castable and jnp.can_cast(_widest(dtype), _widest(want.dtype)):
        return jnp.asarray(part, want.dtype)
    raise DtypeError(
        message(
            call,
            f"`{names[1]}` must have the dtype of `{names[0]}`.",
            expected=describe(want),
            got=describe(part),
            fix="Cast it, as in `v.astype(x.dtype)`; hotk never promotes, and drops no "
            "imaginary part.",
        )
    )


def _widest(dtype: np.dtype) -> np.dtype:
    """Return the widest dtype of the same kind: width does not matter in a cast."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype("complex128")
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype("float64")
    return np.dtype("int8")


_VALUES = (jax.Array, np.ndarray, np.generic, int, float, complex)


def check_output(call: str, f: Function, y: PyTree, want: str) -> None:
    """Check the value of `f`, or the shapes of it.

    Args:
        call: The call, for messages.
        f: The function, for messages.
        y: Its value, or a tree of `jax.ShapeDtypeStruct`s.
        want: `scalar` for one real number, `single` for one that may have an axis of
            length one, `inexact` for a tree of floating or complex arrays, `outputs`
            for such a tree, of which a single number is to be real, `pair` for one real
            number and a tree of real arrays.
    """
    where = f"`{function_name(f)}`{function_place(f)}"
    for path, leaf in jax.tree_util.tree_flatten_with_path(y)[0]:
        if not isinstance(leaf, (*_VALUES, jax.ShapeDtypeStruct)):
            raise OutputError(
                message(
                    call,
                    f"{where} must return arrays.",
                    expected="arrays or numbers",
                    got=f"{describe(leaf)} at {leaf_name('y', path)}",
                    fix="Return only what can be differentiated; pass other arrays "
                    "as the second output with `has_aux=True`.",
                )
            )
    if want in ("scalar", "single") or (want == "outputs" and _is_one_number(y)):
        _check_scalar(call, where, y, ((),) if want == "scalar" else ((), (1,)))
        return
    if want == "pair" and not _is_pair(y):
        raise OutputError(
            message(
                call,
                f"{where} must return an objective and its constraints.",
                expected="a pair of one real number and a tree of real floating arrays",
                got=describe_tree(y),
                fix="Write `return objective, constraints`, and `()` for no "
                "constraints.",
            )
        )
    if y is None:
        raise OutputError(
            message(
                call,
                f"{where} must return arrays.",
                expected="arrays or numbers",
                got="None",
                fix="Return something: without a `return`, a function returns None.",
            )
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(y)[0]:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise OutputError(
                message(
                    call,
                    f"{where} must return floating-point numbers.",
                    expected="floating or complex arrays",
                    got=f"{describe(leaf)} at {leaf_name('y', path)}",
                    fix="Cast the result to a float, or return it with `has_aux=True`.",
                )
            )


def _is_one_number(y: PyTree) -> bool:
    is_leaf = jax.tree.structure(y) == jax.tree.structure(0)
    return is_leaf and np.shape(y) in ((), (1,))


def _is_pair(y: PyTree) -> bool:
    if not isinstance(y, tuple) or len(y) != 2 or y[1] is None:
        return False
    number = jax.tree.structure(y[0]) == jax.tree.structure(0) and not np.shape(y[0])
    dtypes = map(jnp.result_type, jax.tree.leaves(y))
    return number and all(jnp.issubdtype(a, jnp.floating) for a in dtypes)


def as_one_number(y: PyTree, want: str) -> PyTree:
    """Drop the axis of a single number, for operators that take it for a scalar.

    Args:
        y: What `f` returned.
        want: See `check_output`.
    """
    drops = want == "single" or (want == "outputs" and _is_one_number(y))
    return jnp.reshape(y, ()) if drops else y


def _check_scalar(
    call: str, where: str, y: PyTree, shapes: Sequence[tuple[int, ...]]
) -> None:
    if jax.tree.structure(y) != jax.tree.structure(0):
        problem = f"{where} must return one real number."
        fix = "Return the scalar alone"
        if y is None:
            fix = "Return the scalar: without a `return`, a function returns None"
        if isinstance(y, tuple) and len(y) == 2:
            fix += "; for `(value, aux)` pass `has_aux=True`"
        got = describe_tree(y)
    elif np.shape(y) not in shapes:
        problem = f"{where} must return one real number."
        fix = "Reduce it with `jnp.sum` or `jnp.mean`"
        if np.size(y) == 1:
            fix = "Drop its axes, as in `y.reshape(())` or `y[0]`"
        got = describe(y)
    elif not jnp.issubdtype(jnp.result_type(y), jnp.floating):
        problem = f"{where} must return a real floating-point number."
        complex_ = jnp.issubdtype(jnp.result_type(y), jnp.complexfloating)
        fix = (
            "Take the real part or `jnp.abs(y)**2`; for the derivatives of a complex "
            "number, as log psi, use `hotk.jacobian`"
            if complex_
            else "Cast it to a float; an integer has no derivative"
        )
        got = describe(y)
    else:
        return
    raise OutputError(
        message(
            call,
            problem,
            expected=f"a floating-point scalar, {float_scalar()}",
            got=got,
            fix=fix + ".",
        )
    )


def check_aux(call: str, f: Function, out: PyTree) -> tuple[PyTree, PyTree]:
    """Split `(y, aux)`, and check that `aux` is made of arrays."""
    where = f"`{function_name(f)}`{function_place(f)}"
    if not (isinstance(out, tuple) and len(out) == 2):
        raise OutputError(
            message(
                call,
                f"{where} must return a pair with `has_aux=True`.",
                expected="(value, aux)",
                got=describe_tree(out),
                fix="Return `(value, aux)`, or drop `has_aux=True`.",
            )
        )
    for path, leaf in jax.tree_util.tree_flatten_with_path(out[1])[0]:
        if not isinstance(leaf, _VALUES):
            raise OutputError(
                message(
                    call,
                    f"the auxiliary output of {where} must be made of arrays.",
                    expected="arrays or numbers",
                    got=f"{describe(leaf)} at {leaf_name('aux', path)}",
                    fix="Leave it out: a compiled program returns arrays only.",
                )
            )
    return out


def note_deleted(
    error: Exception,
    definition: Definition,
    x: Point,
    rest: tuple[PyTree, ...],
    captured: Sequence[Leaf] = (),
) -> None:
    """Add to an error of JAX the name of the first array that was deleted.

    JAX tells its shape alone.

    Args:
        error: What JAX raised when it ran a program.
        definition: The operator.
        x: The point.
        rest: What follows it.
        captured: The captured arrays.
    """
    roots = definition.roots(1 + len(rest))
    for root, tree in zip(roots, (x, *rest), strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if _is_deleted(leaf):
                error.add_note(_note(f"`{leaf_name(root, path)}`", leaf))
                return
    for leaf in captured:
        if _is_deleted(leaf):
            error.add_note(_note("an array that `f` captures", leaf))
            return


def _is_deleted(leaf: object) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return False
    return leaf.is_deleted()


def _note(name: str, leaf: object) -> str:
    return (
        f"{name}, {describe(leaf)}, was deleted or donated before this call. Use the "
        "array that the function with `donate_argnums` returned, or donate nothing."
    )
