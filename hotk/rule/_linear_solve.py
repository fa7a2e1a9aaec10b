"""`linear_solve`: linear systems, differentiable to any order by any solver."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from hotk._capture import Closure
from hotk._core import (
    LARGEST_FACTOR,
    AbstractValue,
    Arrays,
    DtypeError,
    JaxprEqn,
    Leaf,
    ModeError,
    StructureError,
    TooLargeError,
    Types,
    describe_tree,
    differs_along,
    first_collective,
    has_types,
    jaxpr_as_fun,
    manual_axes,
    message,
    shared_as,
    source_line,
    varying_along,
)
from hotk._primitive import AbstractLinear, apply_linear, forward_only, shared_axes

from ._dense_factors import solve_dense


Product: TypeAlias = Callable[[PyTree], PyTree]
"""A linear map: from v to A v."""

LinearSolver: TypeAlias = Callable[[Product, PyTree], PyTree]
"""From a product and a right-hand side to the solution."""


def linear_solve(
    product: Product,
    b: PyTree,
    solver: LinearSolver | None = None,
    *,
    symmetric: bool = False,
) -> PyTree:
    r"""Solve the linear system $A x = b$, differentiable to any order.

    It can be differentiated by `b` and by what the product captures. The derivative is
    $A\,dx = db - dA\,x$, one more linear system with the same solver [1], and one with
    $A^T$ in reverse mode. Nothing is differentiated through the solver.

    Args:
        product: $v \mapsto A v$, linear.
        b: Right-hand side: a tree of floating or complex arrays.
        solver: `solver(product, b)`; it serves the transpose as well. Without it the
            matrix is made, by one product for each of n unknowns, and factorized, at a
            cost of $O(n^3)$.
        symmetric: Whether A is symmetric, so that the transpose is not derived.

    Returns:
        The solution, with the structure, shapes and dtypes of `b`. Without a solver it
        is NaN if the matrix is singular up to rounding.

    Raises:
        TypeError: If `product` is not a function.
        StructureError: If `product` or `solver` returns another structure or shape than
            that of `b`.
        DtypeError: If `b` holds integers, or `product` or `solver` returns another
            dtype.
        ModeError: If `product` adds over the devices of a `shard_map`, and the matrix
            or the transpose cannot be derived.
        TooLargeError: If `b` has more than 2048 numbers and there is no `solver`.

    Example:
        >>> f = lambda a: hotk.rule.linear_solve(lambda v: a * v, 3.0)
        >>> print(f"{hotk.second_derivative(f, 2.0):.2f}")
        0.75

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 15.
            SIAM.
    """
    if not callable(product):
        raise TypeError(_text("a function", product, "Write `lambda v: A @ v`."))
    b = jax.tree.map(jnp.asarray, b)
    for leaf in jax.tree.leaves(b):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            fix = "Convert `b`, such as by `1.0 *`."
            raise DtypeError(_text("floating-point unknowns", leaf, fix))
    # A map need not be linear over the complex numbers, as `v + conj(v)` is not.
    parts, whole = real_parts(b)
    leaves, tree = jax.tree.flatten(parts)
    if len(leaves) == 1:
        # One array stays as it is: a vector of its numbers could not keep its sharding.
        pack = lambda tree: jax.tree.leaves(tree)[0]
        unpack = lambda leaf: tree.unflatten([leaf])
    else:
        # `custom_linear_solve` fails where the tangents of some leaves are zero and
        # those of others are not. One vector has one tangent.
        with jax.numpy_dtype_promotion("standard"):
            _, unpack = ravel_pytree(parts)
        pack = _pack
    of_vector = lambda v: pack(real_parts(_checked(product(whole(unpack(v))), b))[0])

    def solve(product: Product, b: Array) -> Array:
        if solver is None:
            return _dense(product, b)
        like = whole(unpack(b))
        packed = lambda v: pack(real_parts(_checked(v, like))[0])
        return packed(solver(lambda v: whole(unpack(product(packed(v)))), like))

    # A symmetry of complex numbers is none of their real parts.
    symmetric = symmetric and parts is b
    return whole(
        unpack(_solved(of_vector, pack(parts), solve, solver is None, symmetric))
    )


def real_parts(tree: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """Return a tree of real arrays, complex ones as pairs of numbers, and the inverse.

    A tree without complex arrays is returned as it is.
    """
    leaves, structure = jax.tree.flatten(tree)
    pairs = [jnp.iscomplexobj(leaf) for leaf in leaves]
    if not any(pairs):
        return tree, lambda parts: parts

    def joined(parts: PyTree) -> PyTree:
        return structure.unflatten(
            jax.lax.complex(part[..., 0], part[..., 1]) if pair else part
            for part, pair in zip(structure.flatten_up_to(parts), pairs, strict=True)
        )

    split = [
        jnp.stack([jnp.real(leaf), jnp.imag(leaf)], axis=-1) if pair else leaf
        for leaf, pair in zip(leaves, pairs, strict=True)
    ]
    return structure.unflatten(split), joined


def _pack(tree: PyTree) -> Array:
    """Return the numbers of a tree as one vector, of the widest dtype."""
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(tree)[0]


def _checked(value: PyTree, b: PyTree) -> PyTree:
    """Return a vector of the product or a solver, if it is of the kind of `b`."""
    fix = "`b`, `product(v)` and what a `solver` returns are alike."
    if jax.tree.structure(value) != jax.tree.structure(b):
        raise StructureError(_text(describe_tree(b), value, fix))
    for own, other in zip(jax.tree.leaves(value), jax.tree.leaves(b), strict=True):
        if jnp.shape(own) != other.shape:
            raise StructureError(_text(describe_tree(b), value, fix))
        if jnp.result_type(own) != other.dtype:
            raise DtypeError(_text(describe_tree(b), value, fix))
    return value


def _text(expected: str, got: object, fix: str) -> str:
    return message(
        "rule.linear_solve(product, b)",
        "an argument has the wrong type.",
        expected=expected,
        got=describe_tree(got),
        fix=fix,
    )


@dataclasses.dataclass(frozen=True)
class _TypedSolve(AbstractLinear):
    """A linear solve inside of a `shard_map` that types what varies over devices.

    `jax.lax.custom_linear_solve` lets all that it reads vary alike, also unknowns that
    all devices hold alike where the product reads what they do not.

    The residuals are what the product captures, and then what the solver does, such as
    a preconditioner: a function that holds tracers must not be part of an equation.

    Attributes:
        product: From what the product captures and a vector to a vector.
        solver: From what it captures to the solver, of a product and a right-hand side.
        count: How many arrays the product captures.
        type: The type of the unknowns.
        transposed: Whether the transpose of the product is solved with.
    """

    product: Callable[[Arrays, Any], Any]
    solver: Callable[[Arrays], Callable[[Product, Any], Any]]
    count: int
    type: AbstractValue
    transposed: bool = False

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Solve."""
        solve = self.solver(residuals[self.count :])
        return [solve(lambda v: self._times(residuals, v), inputs[0])]

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Solve with the transpose."""
        return self._other().forward(residuals, cotangents)

    def derivative(
        self,
        transposed: bool,
        residuals: Arrays,
        tangents: list[Leaf | None],
        values: Arrays,
    ) -> Arrays:
        """Solve once more: A dx = -dA x."""
        own = self._other() if transposed else self
        [x] = apply_linear(own, residuals, values)
        moving = [i for i, t in enumerate(tangents) if t is not None]

        def product(moved: Arrays) -> Array:
            at = dict(zip(moving, moved, strict=True))
            return own._times([at.get(i, r) for i, r in enumerate(residuals)], x)

        point = [residuals[i] for i in moving]
        _, change = jax.jvp(product, (point,), ([tangents[i] for i in moving],))
        return apply_linear(own, residuals, [-change])

    def takes(self, residuals: Types) -> Types:
        """Return the type of the right-hand side."""
        del residuals
        return [self.type]

    gives = takes

    def _other(self) -> "_TypedSolve":
        return dataclasses.replace(self, transposed=not self.transposed)

    def _times(self, residuals: Arrays, v: Any) -> Any:
        product = lambda v: self.product(residuals[: self.count], v)
        v = shared_as(self.type, v)
        return (
            jax.linear_transpose(product, self.type)(v)[0]
            if self.transposed
            else product(v)
        )


def _solved(
    product: Product,
    b: Array,
    solve: Callable[[Product, Array], Array],
    dense: bool,
    symmetric: bool,
) -> Any:
    """Solve a system of one array.

    Args:
        product: The product.
        b: The right-hand side.
        solve: What solves with a product.
        dense: Whether it makes the matrix.
        symmetric: Whether the product is its own transpose.
    """
    axes = manual_axes()
    closed = jax.make_jaxpr(product)(b) if axes else None
    # Of unknowns that all devices hold alike a matrix is made by unit vectors that all
    # hold alike, and transposed as a matrix. JAX's transpose of a product that adds
    # over devices, where no types tell what they hold alike, is that of one device.
    transposed = solve
    if dense:
        transposed = lambda _, b: _dense(product, b, transposed=True)
    if closed is None:
        found = None
    else:
        alone = {*axes} - shared_axes(closed.jaxpr)
        found = first_collective(closed.jaxpr, [True], alone)
    if closed is not None and has_types(axes):
        split = Closure.of(solve)
        opaque = split.skeleton.opaque is not None
        solver = (lambda _: solve) if opaque else split.skeleton.function
        types = [jax.typeof(b), *closed.out_avals, *map(jax.typeof, split.leaves)]
        varying = [a for a in axes if any(differs_along(t, (a,)) for t in types)]
        if dense and found is not None and found[1] in varying:
            raise _across(*found, "of unknowns that differ from one to another")
        typed = lambda v: varying_along([v], varying)[0] if varying else v
        b = typed(b)
        program = jax.make_jaxpr(product)(b)
        run = lambda held, v: typed(jaxpr_as_fun(program.replace(consts=held))(v)[0])
        linear = _TypedSolve(run, solver, len(program.consts), jax.typeof(b))
        return apply_linear(linear, [*program.consts, *split.leaves], [b])[0]
    x = jax.lax.custom_linear_solve(
        product, b, solve, transpose_solve=transposed, symmetric=symmetric
    )
    if found is None or dense or symmetric:
        return x
    why = "and its transpose cannot be derived"
    return forward_only(lambda: _across(*found, why), x)


def _across(equation: JaxprEqn, axis: str, why: str) -> ModeError:
    return ModeError(
        message(
            "rule.linear_solve(product, b)",
            f"the product adds over the devices of the axis {axis!r}, {why}.",
            expected="unknowns that all devices hold alike, with `check_vma=True`",
            got=f"`{equation.primitive.name}` at {source_line(equation)}",
            fix="Leave out `check_vma=False`, and give a `solver` whose inner products "
            "add over the devices if each holds a part of the unknowns.",
        )
    )


def _dense(product: Product, b: Array, *, transposed: bool = False) -> Array:
    size = b.size
    if size > LARGEST_FACTOR:
        raise TooLargeError(
            message(
                "rule.root(residual, solve)",
                "its derivative would form the matrix of a linear system.",
                expected=f"at most {LARGEST_FACTOR} unknowns",
                got=f"{size}",
                fix="Give a `linear_solver(product, b)`, such as one that iterates.",
            )
        )
    columns = jax.vmap(lambda v: product(v.reshape(b.shape)).reshape(-1), out_axes=1)
    units = shared_as(jax.typeof(b), jnp.eye(size, dtype=b.dtype))
    matrix = columns(units)
    # JAX does not factorize matrices of 16 bits.
    narrow = jnp.finfo(b.dtype).bits < 32
    wide = jnp.float32 if narrow else b.dtype
    matrix = matrix.T if transposed else matrix
    solution = solve_dense(matrix.astype(wide), b.reshape(-1).astype(wide))
    return solution.astype(b.dtype).reshape(b.shape)
