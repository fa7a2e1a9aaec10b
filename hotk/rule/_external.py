"""`external`: functions that are computed outside of JAX, with their derivatives."""

from collections.abc import Callable
from typing import NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    DtypeError,
    ModeError,
    StructureError,
    called_on_host,
    describe,
    describe_tree,
    function_name,
    function_place,
    message,
)

from ._custom import Custom


HostFunction: TypeAlias = Callable[..., PyTree]
"""A function of trees of NumPy arrays, run on the host."""

Shapes: TypeAlias = PyTree
"""A tree of `jax.ShapeDtypeStruct`."""


def external(
    fun: HostFunction,
    *,
    result_shape: PyTree,
    jvp: HostFunction | None = None,
    vjp: HostFunction | None = None,
    hvp: HostFunction | None = None,
    vmap_method: str = "sequential",
) -> Custom:
    r"""Make a differentiable function of JAX from one of NumPy, such as a simulator.

    It runs on the host, by `jax.pure_callback`, so it works under `jit` and `vmap`; a
    call costs about 0.1 ms more than `fun`. Its derivatives are those that are given.
    Of the others

    - a missing `jvp` is one call of `vjp` for each number in the result;
    - a missing `vjp` is one call of `jvp` for each number in the arguments;
    - a missing `hvp` is a central difference of `vjp`, given or derived, three calls in
      float64, with the step $h = \epsilon^{1/3} \min_i \max(1, |x_i|) / |t_i|$ over the
      numbers that move, $\epsilon$ that of the dtype which the given rule returns. Its
      relative error is about $\epsilon^{2/3}$, 4e-11 in float64, for a function that
      changes on the scale of the larger of 1 and each argument; `info.rules` says so.
      One that changes on a smaller scale needs a rule, or arguments in other units.

    Args:
        fun: `fun(*args)` of NumPy arrays, which returns a tree of them. It must be
            pure: it may be called any number of times, or not at all.
        result_shape: The result's shapes and dtypes: a tree of `jax.ShapeDtypeStruct`,
            or of arrays, or a function from those of the arguments to it.
        jvp: `jvp(primals, tangents)`, which returns the tangent of the result.
        vjp: `vjp(primals, cotangent)`, which returns a tuple with the cotangent of each
            argument; `None` is zero.
        hvp: `hvp(primals, tangents, cotangent)`, which returns a tuple with the
            derivative of `vjp` along the tangents, for each argument.
        vmap_method: What `jax.vmap` does: see `jax.pure_callback`. With
            `"expand_dims"` and `"broadcast_all"` the rules that are given take a batch
            in one call, as `fun` does; those derived are called for each element.

    Returns:
        A function with rules, as `hotk.rule.custom` makes it.

    Raises:
        StructureError: When `fun` or a rule returns another structure or shape than was
            declared.
        DtypeError: When a rule would have to be derived for complex numbers.
        ModeError: When it is differentiated and neither `jvp` nor `vjp` was given, or
            to third order.

    Example:
        >>> sine = hotk.rule.external(
        ...     np.sin,
        ...     result_shape=lambda x: x,
        ...     vjp=lambda primals, u: (np.cos(primals[0]) * u,),
        ... )
        >>> print(f"{hotk.second_derivative(sine, 0.5):.4f}")
        -0.4794
    """
    shape_of = result_shape if callable(result_shape) else lambda *_: result_shape

    def call(
        host: HostFunction, shape: Shapes, *arrays: PyTree, derived: bool = False
    ) -> PyTree:
        own = jax.tree.map(_shape, arrays)

        def on_host(*args: PyTree) -> PyTree:
            # Axes that `vmap_method` has put before those of the arguments.
            args = _numpy(*args)
            lead = _lead(args, own)
            if derived and lead:
                return _for_each(host, lead, shape, own, args)
            return host(_behind(lead, shape), *args)

        last = lambda *a: called_on_host(on_host, shape, *a, vmap_method=vmap_method)
        return _without_derivative(fun, last)(*arrays)

    def run(*args: PyTree) -> PyTree:
        shape = jax.tree.map(_shape, shape_of(*jax.tree.map(_shape, args)))
        return call(lambda shape, *args: _like(fun(*args), shape, name), shape, *args)

    run.__name__ = run.__qualname__ = name = function_name(fun)
    function = Custom(run)
    function.origin = fun

    reverse = vjp if vjp is not None else _from_jvp(jvp)
    back = lambda p, u: _cotangents(reverse(p, u), p, f"`vjp` of {name}")

    def tangent(primals: PyTree, tangents: PyTree, *, y: PyTree) -> PyTree:
        if jvp is None:
            _refuse_complex(fun, (primals, y), "jvp")
        shape = jax.tree.map(_shape, y)

        def host(shape: Shapes, p: PyTree, t: PyTree) -> PyTree:
            product = jvp(p, t) if jvp else _from_vjp(back)(p, t, shape)
            return _like(product, shape, f"`jvp` of {name}")

        t = _filled(primals, tangents)
        return call(host, shape, primals, t, derived=jvp is None)

    def cotangent(primals: PyTree, u: PyTree, *, y: PyTree) -> PyTree:
        if vjp is None:
            _refuse_complex(fun, (primals, y), "vjp")
        shape = jax.tree.map(_shape, primals)
        rule = f"`vjp` of {name}"
        host = lambda shape, p, u: _cotangents(reverse(p, u), shape, rule)
        return call(host, shape, primals, _filled(y, u), derived=vjp is None)

    def second(primals: PyTree, tangents: PyTree, u: PyTree, *, y: PyTree) -> PyTree:
        if hvp is None:
            _refuse_complex(fun, (primals, y), "hvp")
        shape = jax.tree.map(_shape, primals)

        def host(shape: Shapes, p: PyTree, t: PyTree, u: PyTree) -> PyTree:
            if hvp is not None:
                return _cotangents(hvp(p, t, u), shape, f"`hvp` of {name}")
            given = vjp(p, u) if vjp is not None else jvp(p, t) if jvp else None
            return _difference(given, back, shape, p, t, u)

        given = primals, _filled(primals, tangents), _filled(y, u)
        return call(host, shape, *given, derived=hvp is None)

    if jvp is None and vjp is None:
        function.def_jvp(lambda *_: _refuse(fun))
        return function
    function.def_jvp(tangent)
    function.def_vjp(cotangent)
    function.def_hvp(second)
    # JAX cannot transpose a call of the host, so `Derivative` works with unit vectors.
    function.transposable = False
    if hvp is None:
        function.notes = ("a central difference of vjp",)
    return function


def _without_derivative(
    fun: HostFunction, last: Callable[..., PyTree]
) -> Callable[..., PyTree]:
    """Raise hotk's error for a further derivative, where JAX's is about callbacks."""
    function = jax.custom_jvp(last)
    function.defjvp(lambda *_: _refuse(fun))
    return function


def _refuse(fun: HostFunction) -> NoReturn:
    raise ModeError(
        message(
            f"rule.external({function_name(fun)})",
            f"there is no rule for a derivative of this order{function_place(fun)}.",
            expected="`jvp` or `vjp`, and at most the second derivative",
            got="a derivative beyond the rules that were given",
            fix="Give the rule, or take `jax.lax.stop_gradient` of the result.",
        )
    )


def _refuse_complex(fun: HostFunction, trees: PyTree, name: str) -> None:
    for leaf in jax.tree.leaves(trees):
        if jnp.iscomplexobj(leaf):
            raise DtypeError(
                message(
                    f"rule.external({function_name(fun)})",
                    f"there is no `{name}`, and none is derived for complex numbers.",
                    expected=f"a `{name}`, or real arguments and results",
                    got=describe(leaf),
                    fix=f"Give `{name}`.",
                )
            )


def _from_vjp(vjp: HostFunction) -> HostFunction:
    """Make a forward rule of a reverse rule: one call for each number in the result."""

    def jvp(primals: PyTree, tangents: PyTree, shape: Shapes) -> PyTree:
        def along(u: PyTree) -> float:
            return _inner(vjp(primals, u), tangents)

        return _over_units(along, shape)

    return jvp


def _from_jvp(jvp: HostFunction | None) -> HostFunction:
    """Make a reverse rule of a forward rule: one call for each number in the point."""

    def vjp(primals: PyTree, u: PyTree) -> PyTree:
        assert jvp is not None  # without any rule a derivative is refused before
        forward = jvp
        return _over_units(lambda t: _inner(forward(primals, t), u), primals)

    return vjp


def _difference(
    given: PyTree, vjp: HostFunction, shape: Shapes, p: PyTree, t: PyTree, u: PyTree
) -> PyTree:
    """Differentiate `vjp` along `t` by a central difference, in float64.

    The step is that of the dtype which the rule itself has returned in `given`: a
    simulator in float32 has its roundings, whatever dtype its arguments have.
    """
    wide = lambda a: np.asarray(a, np.float64) if _is_floating(a) else a
    p, t = jax.tree.map(wide, p), jax.tree.map(wide, t)
    # The step is measured against the numbers that move: one large number that does not
    # would make it so large that the difference is none of a derivative.
    both = zip(_floating(p), _floating(t), strict=True)
    pairs = [(a[d != 0], d[d != 0]) for a, d in both]
    # Each may be of a size of its own: none moves by more than its share.
    longest = [np.min(np.maximum(1, abs(a)) / abs(d)) for a, d in pairs if d.size]
    if not longest:
        return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shape)
    eps = max(float(jnp.finfo(a.dtype).eps) for a in _floating(given))
    h = eps ** (1 / 3) * float(min(longest))
    step = lambda sign: jax.tree.map(
        lambda a, d: a + sign * h * d if _is_floating(a) else a, p, t
    )
    ahead, behind = vjp(step(1), u), vjp(step(-1), u)
    slope = lambda a, b, s: (a - b) / (2 * h) if _is_floating(s) else np.zeros(s.shape)
    return jax.tree.map(
        lambda a, b, s: np.asarray(slope(a, b, s), s.dtype), ahead, behind, shape
    )


def _is_floating(a: np.typing.ArrayLike | jax.ShapeDtypeStruct) -> bool:
    # To NumPy bfloat16 is no floating number.
    return jnp.issubdtype(jnp.result_type(a), jnp.floating)


def _floating(tree: PyTree) -> list[np.ndarray]:
    return [np.asarray(a) for a in jax.tree.leaves(tree) if _is_floating(a)]


def _shape(leaf: object) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _numpy(*trees: PyTree) -> tuple[PyTree, ...]:
    return jax.tree.map(np.asarray, trees)


def _lead(arrays: PyTree, shapes: Shapes) -> tuple[int, ...]:
    """Return the axes that arrays have before those of their shapes."""
    pairs = zip(jax.tree.leaves(arrays), jax.tree.leaves(shapes), strict=True)
    return np.broadcast_shapes(*(a.shape[: a.ndim - len(s.shape)] for a, s in pairs))


def _behind(lead: tuple[int, ...], shapes: Shapes) -> Shapes:
    """Put axes before those of shapes."""
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((*lead, *s.shape), s.dtype), shapes
    )


def _for_each(
    host: HostFunction, lead: tuple[int, ...], shape: Shapes, own: Shapes, args: PyTree
) -> PyTree:
    """Call a derived rule for each element of a batch: its sums are of one element."""
    args = jax.tree.map(
        lambda a, s: np.broadcast_to(a, (*lead, *s.shape)), args, tuple(own)
    )
    result = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), _behind(lead, shape))
    for place in np.ndindex(*lead):
        made = host(shape, *jax.tree.map(lambda a, place=place: a[place], args))
        for whole, part in zip(
            jax.tree.leaves(result), jax.tree.leaves(made), strict=True
        ):
            whole[place] = part
    return result


def _like(result: PyTree, shape: Shapes, name: str) -> PyTree:
    """Give what the host returned the dtypes that were declared."""
    try:
        arrays = jax.tree.map(lambda s, a: np.asarray(a, s.dtype), shape, result)
    except (TypeError, ValueError) as error:
        raise _not_as_declared(result, shape, name) from error
    pairs = zip(jax.tree.leaves(arrays), jax.tree.leaves(shape), strict=True)
    if any(a.shape != s.shape for a, s in pairs):
        raise _not_as_declared(result, shape, name)
    return arrays


def _not_as_declared(result: PyTree, shape: Shapes, name: str) -> StructureError:
    return StructureError(
        message(
            f"rule.external: {name}",
            "the result has another structure or shape than was declared.",
            expected=describe_tree(shape),
            got=describe_tree(result),
            fix="Return what `result_shape` says; `vjp` and `hvp` return a tuple with "
            "one entry for each argument.",
        )
    )


def _cotangents(result: PyTree, shape: Shapes, name: str) -> PyTree:
    """Fill in zeros where a rule of the host returned `None`."""
    result = result if isinstance(result, tuple) else (result,)
    zeros = lambda s: np.zeros(s.shape, s.dtype)
    if len(result) == len(shape):
        result = tuple(
            jax.tree.map(zeros, s) if entry is None else entry
            for s, entry in zip(shape, result, strict=True)
        )
    return _like(result, shape, name)


def _filled(like: PyTree, tree: PyTree) -> PyTree:
    """Put zeros where a tangent is `None`."""
    leaves, structure = jax.tree.flatten(like)
    tangents = structure.flatten_up_to(tree)
    pairs = zip(leaves, tangents, strict=True)
    return structure.unflatten(jnp.zeros_like(a) if t is None else t for a, t in pairs)


def _inner(a: PyTree, b: PyTree) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return sum(np.sum(p * q) for p, q in pairs if _is_floating(p))


def _over_units(function: Callable[[PyTree], float], like: PyTree) -> PyTree:
    """Return the numbers that a linear function takes on the unit vectors of a tree."""
    leaves, structure = jax.tree.flatten(like)
    zeros = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    values = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
    for k, leaf in enumerate(leaves):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        for index in np.ndindex(*leaf.shape):
            unit = np.zeros(leaf.shape, leaf.dtype)
            unit[index] = 1
            moved = [*zeros[:k], unit, *zeros[k + 1 :]]
            values[k][index] = function(structure.unflatten(moved))
    return structure.unflatten(values)
