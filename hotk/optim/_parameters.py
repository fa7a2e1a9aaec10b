"""Parameters as wrappers hand them over: masked, filtered, made one vector."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from hotk._core import (
    DtypeError,
    Point,
    StructureError,
    describe,
    describe_tree,
    difference,
    differentiated,
    is_inexact,
    leaf_name,
    message,
)


Vector: TypeAlias = Array | np.ndarray


class AllParameters(NamedTuple):
    """All parameters, beside those that `with_params` hands on.

    Attributes:
        full: All of them.
        part: The same, `None` where they are hidden: what `optax.flatten` may flatten.
    """

    full: optax.Params
    part: optax.Params


def all_parameters(given: optax.Params | AllParameters | None) -> AllParameters | None:
    """Return what `full_params=` of an update is."""
    if given is None or isinstance(given, AllParameters):
        return given
    return AllParameters(given, given)


def parts_like(call: str, params: Point, updates: optax.Updates) -> list[Any]:
    """Return the gradient of each parameter, `None` where there is none."""
    leaves, tree = jax.tree.flatten(params)
    try:
        parts = tree.flatten_up_to(updates)
    except (ValueError, TypeError, KeyError):
        parts = None
    if parts is None or not all(map(_may_be_gradient, parts, leaves)):
        raise StructureError(
            message(
                call,
                "`updates` must have the structure and the shapes of `params`.",
                **difference("updates", params, updates, partial=True),
                fix="Give the gradient with respect to `params`; it may have `None` in "
                "the places of leaves that do not change.",
            )
        )
    return parts


def _may_be_gradient(part: Any, leaf: Any) -> bool:
    """Whether it stands for one leaf: a node without leaves, or what has its shape."""
    if not jax.tree_util.all_leaves([part]):
        return not jax.tree.leaves(part)
    return not is_inexact(leaf) or np.shape(part) == np.shape(leaf)


def of_all_parameters(
    call: str,
    f: Callable[[Any], Any],
    params: optax.Params,
    known: AllParameters | None,
) -> Callable[[Any], Any]:
    """Return an objective as a function of what a wrapper leaves of its parameters.

    Args:
        call: The call, for messages.
        f: The objective.
        params: The parameters, some perhaps masked, or all in one vector.
        known: All parameters, if they are given.
    """
    if known is None:
        _refuse_parts(call, params)
        return f
    full, part = known
    if is_vector(params) and not is_vector(full):
        _check_size(call, params, part)
        return lambda x: f(with_hidden(_unflattened(x, part), full))
    if jax.tree.structure(params) == jax.tree.structure(full):
        return f
    return lambda x: f(merged(x, full))


def _refuse_parts(call: str, params: optax.Params) -> None:
    """Refuse parameters that are not what the objective takes."""
    if is_masked(params):
        raise StructureError(
            message(
                call,
                "some parameters are masked, and the objective needs all.",
                expected="`full_params=`, or a transformation in `with_params`",
                got="`params` with `optax.MaskedNode`s",
                fix="Write `hotk.optim.with_params(optax.masked(...))`, around "
                "`optax.partition` as well.",
            )
        )
    if within_flatten(params):
        raise StructureError(
            message(
                call,
                "`optax.flatten` makes the parameters one vector, and the objective "
                "needs them as they are.",
                expected="`full_params=`, or a transformation in `with_params`",
                got=f"`params` as {describe(params)}",
                fix="Write `hotk.optim.with_params(optax.flatten(...))`.",
            )
        )


def is_masked(params: optax.Params) -> bool:
    """Whether a wrapper of optax has masked some of them."""
    return any(map(_is_masked, jax.tree.leaves(params, is_leaf=_is_masked)))


def is_vector(params: object) -> TypeGuard[Vector]:
    """Whether parameters are one vector, of the user or of `optax.flatten`."""
    return isinstance(params, (jax.Array, np.ndarray)) and params.ndim == 1


_FLATTEN = getattr(optax.flatten(optax.identity()).update, "__code__", None)
_WRAPPERS = ("hotk", "jax", "optax")


def within_flatten(params: optax.Params) -> bool:
    """Whether the parameters of this update are a vector that `optax.flatten` made.

    No argument says so, and without an answer the objective would be called with the
    vector. Many functions take it: one of a tuple reads numbers where it expects
    arrays, and the step is wrong (`test_flatten_is_refused_where_it_would_be_wrong`).
    The search ends at the first caller that is no wrapper: an objective may run an
    optimizer of its own.
    """
    frame = inspect.currentframe() if is_vector(params) else None
    while frame is not None:
        if frame.f_code is _FLATTEN:
            return True
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _WRAPPERS:
            return False
        frame = frame.f_back
    return False


def _in_vector(vector: Vector, full: optax.Params) -> list[bool]:
    """Return for each leaf of all parameters whether it is part of a vector.

    All are; or, if the rest of a module was left out, those that are differentiated.
    """
    leaves, tree = jax.tree.flatten(full)
    numbers = [isinstance(leaf, (int, float, jax.Array, np.ndarray)) for leaf in leaves]
    total = sum(np.size(a) for a, yes in zip(leaves, numbers, strict=True) if yes)
    return numbers if total == vector.size else differentiated(leaves, tree)


def _check_size(call: str, vector: Vector, full: optax.Params) -> None:
    pairs = zip(jax.tree.leaves(full), _in_vector(vector, full), strict=True)
    size = sum(np.size(leaf) for leaf, yes in pairs if yes)
    if size != vector.size:
        raise StructureError(
            message(
                call,
                "`params` is one vector, but not of the numbers in `full_params`.",
                expected=f"{size} numbers, of {describe_tree(full)}",
                got=describe(vector),
                fix="Give as `full_params` what `optax.flatten` was given as `params`.",
            )
        )


def _unflattened(vector: Array, full: optax.Params) -> optax.Params:
    """Return all parameters, from the vector that `optax.flatten` makes of them."""
    leaves, tree = jax.tree.flatten(full)
    start = 0
    for i, yes in enumerate(_in_vector(vector, full)):
        if yes:
            leaf, end = leaves[i], start + np.size(leaves[i])
            if is_inexact(leaf):
                dtype = jnp.result_type(leaf)
                leaves[i] = vector[start:end].reshape(np.shape(leaf)).astype(dtype)
            start = end
    return tree.unflatten(leaves)


def _is_masked(leaf: object) -> bool:
    return isinstance(leaf, optax.MaskedNode)


def merged(masked: optax.Params, full: optax.Params) -> optax.Params:
    """Return all parameters, those that are not masked from the first tree."""
    choose = lambda a, b: b if _is_masked(a) else a
    return jax.tree.map(choose, masked, full, is_leaf=_is_masked)


def with_hidden(params: optax.Params, full: optax.Params) -> optax.Params:
    """Return parameters with those that are `None` from the second tree.

    They are not merged within the objective, as those are that are masked: so a filter
    traces no more than none (`test_a_filter_traces_and_compiles_no_more`). A masked
    node stays, as the states of optax have it in its place.
    """
    if is_vector(params) or jax.tree.structure(params) == jax.tree.structure(full):
        return params
    absent = lambda leaf: leaf is None or _is_masked(leaf)
    choose = lambda a, b: b if a is None else a
    return jax.tree.map(choose, params, full, is_leaf=absent)


def refuse_complex_parameters(call: str, params: optax.Params) -> None:
    """Refuse complex parameters: the conventions of gradients differ there."""
    for path, leaf in jax.tree.leaves_with_path(params):
        if is_inexact(leaf) and jnp.iscomplexobj(leaf):
            raise DtypeError(
                message(
                    call,
                    f"`{leaf_name('params', path)}` is complex.",
                    expected="real parameters",
                    got=describe(leaf),
                    fix="Optimize real and imaginary part, as two leaves.",
                )
            )


def refuse_other_leaves(
    call: str, params: optax.Params, trees: Sequence[optax.Params]
) -> None:
    """Refuse a state that was initialized with other leaves than have a gradient.

    Args:
        call: The call, for messages.
        params: The parameters that have a gradient, `None` elsewhere.
        trees: Parts of the state that have the structure of the parameters.
    """
    for tree in trees:
        if jax.tree.structure(tree) == jax.tree.structure(params):
            pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(params), strict=True)
            if all(a.shape == np.shape(b) for a, b in pairs):
                continue
        raise StructureError(_other_leaves(call, params, tree))


_FIX = (
    "`init` and `update` take the same leaves: for gradients of `eqx.filter_grad` "
    "write `init(eqx.filter(params, eqx.is_inexact_array))`. To freeze leaves, give "
    "the optimizer `where=`: then both take all of them."
)


def _other_leaves(call: str, params: optax.Params, tree: optax.Params) -> str:
    shapes = {p: np.shape(a) for p, a in jax.tree.leaves_with_path(params)}
    known = {p: np.shape(a) for p, a in jax.tree.leaves_with_path(tree)}
    for path in {**shapes, **known}:
        name = leaf_name("params", path)
        if path not in known:
            claim = f"`{name}` has a gradient, but the state was initialized without."
        elif path not in shapes:
            claim = f"`{name}` has no gradient, but the state was initialized with it."
        elif shapes[path] != known[path]:
            claim = f"`{name}` had another shape when the state was initialized."
        else:
            continue
        return message(
            call,
            claim,
            expected=describe_tree(tree),
            got=describe_tree(params),
            fix=_FIX,
        )
    return message(
        call,
        "the state was initialized with a tree of other nodes.",
        **difference("params", tree, params),
        fix=_FIX,
    )
