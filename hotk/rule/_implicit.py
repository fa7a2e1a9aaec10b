"""Solutions of equations: value by any solver, derivatives by the implicit function."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from hotk._core import (
    DtypeError,
    OutputError,
    TooLargeError,
    describe_tree,
    function_name,
    message,
)
from hotk.primitive import with_forward_rules

from ._custom import custom
from ._disabled import is_disabled


_DENSE_LIMIT = 2048


def root(
    residual: Callable[..., Any],
    solve: Callable[..., Any] | None = None,
    *,
    linear_solver: Callable[..., Any] | None = None,
    has_aux: bool = False,
) -> Any:
    r"""Make a solver of $r(x, \theta) = 0$ differentiable by $\theta$, to any order.

    The value is the solver's. The derivatives are those of the solution, whatever the
    solver did: from $r(x(\theta), \theta) = 0$ follows
    $\partial_x r \; dx = -\partial_\theta r \; d\theta$, one linear system a tangent,
    and its transpose in reverse mode. The solution is differentiated again by the same
    equation, so Hessians of functions that contain a solver are exact as far as the
    solution is: an error e of the solver is one of order e in each derivative.

    Args:
        residual: `residual(x, *theta)` with the structure and shapes of `x`. Arrays
            that it captures are differentiated as well. Complex unknowns are two real
            ones each, so it need not be holomorphic.
        solve: `solve(x0, *theta)`, which returns the solution: any code that JAX can
            trace, loops included, or any Python at all where nothing is traced. It is
            not differentiated. Without it `root(residual)` is a decorator.
        linear_solver: `linear_solver(product, b)`, which returns the solution of
            `product(x) = b` and serves the transpose as well; a complex array stands
            in both as a pair of real ones. Without it the matrix is made, by one
            product for each number in `x`, and factorized.
        has_aux: Whether `solve` returns `(x, aux)`; `aux` has no derivative.

    Returns:
        A function `solution(x0, *theta)`; its derivative by `x0` is zero.

    Raises:
        OutputError: If the residual has another structure or shape than the solution.
        TooLargeError: If the solution has more than 2048 numbers and there is no
            `linear_solver`.

    Example:
        >>> @hotk.rule.root(lambda x, a: x**2 - a)
        ... def square_root(x0, a):
        ...     step = lambda i, x: (x + a / x) / 2
        ...     return jax.lax.fori_loop(0, 20, step, x0)
        >>> second = jax.grad(jax.grad(square_root, argnums=1), argnums=1)
        >>> print(f"{second(1.0, 4.0):.5f}")
        -0.03125

    References:
        Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 15. SIAM.
        Blondel et al. (2022). Efficient and modular implicit differentiation. NeurIPS.
    """
    if solve is None:
        return functools.partial(
            root, residual, linear_solver=linear_solver, has_aux=has_aux
        )
    return _Solution(residual, solve, linear_solver, has_aux, "root")


def minimum(
    objective: Callable[..., Any],
    solve: Callable[..., Any] | None = None,
    *,
    linear_solver: Callable[..., Any] | None = None,
    has_aux: bool = False,
) -> Any:
    r"""Make a minimizer of $f(x, \theta)$ over $x$ differentiable by $\theta$.

    As `root` with the gradient $\nabla_x f$ as residual, so
    $\nabla_x^2 f \; dx = -\partial_\theta \nabla_x f \; d\theta$. The Hessian must not
    be singular at the minimum.

    Args:
        objective: `objective(x, *theta)`, a real scalar, twice differentiable.
        solve: `solve(x0, *theta)`, which returns the minimum, or a decorator's target.
        linear_solver: As for `root`; the product is symmetric.
        has_aux: Whether `solve` returns `(x, aux)`; `aux` has no derivative.

    Returns:
        A function `solution(x0, *theta)`; its derivative by `x0` is zero.

    Example:
        >>> ridge = lambda w, c: jnp.sum((w - 1) ** 2) + c * jnp.sum(w**2)
        >>> solution = hotk.rule.minimum(ridge, lambda w0, c: jnp.ones(3) / (1 + c))
        >>> loss = lambda c: jnp.sum(solution(jnp.zeros(3), c))
        >>> print(f"{hotk.second_derivative(loss, 1.0):.3f}")
        0.750
    """
    if solve is None:
        return functools.partial(
            minimum, objective, linear_solver=linear_solver, has_aux=has_aux
        )
    return _Solution(objective, solve, linear_solver, has_aux, "minimum")


def fixed_point(
    step: Callable[..., Any],
    solve: Callable[..., Any] | None = None,
    *,
    linear_solver: Callable[..., Any] | None = None,
    has_aux: bool = False,
) -> Any:
    r"""Make a fixed point $x = g(x, \theta)$ differentiable by $\theta$.

    As `root` with the residual $g(x, \theta) - x$.

    Args:
        step: `step(x, *theta)` with the structure and shapes of `x`.
        solve: `solve(x0, *theta)`, which returns the point, or a decorator's target.
        linear_solver: As for `root`.
        has_aux: Whether `solve` returns `(x, aux)`; `aux` has no derivative.

    Returns:
        A function `solution(x0, *theta)`; its derivative by `x0` is zero.

    Example:
        >>> step = lambda x, a: (x + a / x) / 2
        >>> walk = lambda x0, a: jax.lax.fori_loop(0, 20, lambda i, x: step(x, a), x0)
        >>> square_root = hotk.rule.fixed_point(step, walk)
        >>> print(f"{hotk.second_derivative(lambda a: square_root(1.0, a), 4.0):.5f}")
        -0.03125
    """
    if solve is None:
        return functools.partial(
            fixed_point, step, linear_solver=linear_solver, has_aux=has_aux
        )
    return _Solution(step, solve, linear_solver, has_aux, "fixed point")


def linear_solve(
    product: Callable[[Any], Any],
    b: Any,
    solver: Callable[..., Any] | None = None,
    *,
    symmetric: bool = False,
) -> Any:
    r"""Solve $A x = b$, differentiable by `b` and by what the product captures.

    The derivative is $A\,dx = db - dA\,x$, solved by the same solver, and
    $A^T$ in reverse mode.

    Args:
        product: $v \mapsto A v$, linear.
        b: Right-hand side: a tree of floating arrays.
        solver: `solver(product, b)`; it serves the transpose as well. Without it the
            matrix is made and factorized.
        symmetric: Whether A is symmetric, so that the transpose is not derived.

    Returns:
        The solution, with the structure of `b`.

    Raises:
        TypeError: If `product` is no function.
        DtypeError: If `b` holds integers.
        TooLargeError: If `b` has more than 2048 numbers and there is no `solver`.

    Example:
        >>> f = lambda a: hotk.rule.linear_solve(lambda v: a * v, 3.0)
        >>> print(f"{hotk.second_derivative(f, 2.0):.2f}")
        0.75
    """
    solver = _dense if solver is None else solver
    if not callable(product):
        raise TypeError(_text("a function", product, "Write `lambda v: A @ v`."))
    b = jax.tree.map(jnp.asarray, b)
    leaves, tree = jax.tree.flatten(b)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            fix = "Convert `b`, such as by `1.0 *`."
            raise DtypeError(_text("floating-point unknowns", leaf, fix))
    if len(leaves) == 1:
        whole, parts = tree.unflatten, jax.tree.leaves
        pack = lambda tree: parts(tree)[0]
        unpack = lambda leaf: whole([leaf])
    else:  # JAX does not solve where the tangents of some leaves are zero
        with jax.numpy_dtype_promotion("standard"):
            _, unpack = ravel_pytree(b)
        pack = _pack

    def solve(product: Callable[[Any], Any], b: Any) -> Any:
        return pack(solver(lambda v: unpack(product(pack(v))), unpack(b)))

    return unpack(
        jax.lax.custom_linear_solve(
            lambda v: pack(product(unpack(v))),
            pack(b),
            solve,
            transpose_solve=solve,
            symmetric=symmetric,
        )
    )


def _pack(tree: Any) -> Any:
    """Return the numbers of a tree as one vector, of the widest dtype."""
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(tree)[0]


def _text(expected: str, got: Any, fix: str) -> str:
    return message(
        "rule.linear_solve(product, b)",
        "an argument is of another kind.",
        expected=expected,
        got=describe_tree(got),
        fix=fix,
    )


class _Solution(eqx.Module):
    """A solver of an equation: a function `solution(x0, *theta)`."""

    equation: Callable[..., Any]
    solve: Callable[..., Any]
    linear_solver: Callable[..., Any] | None
    has_aux: bool = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    @property
    def origin(self) -> Callable[..., Any]:
        """What `disabled` tells it by."""
        return self.solve

    @property
    def func(self) -> Callable[..., Any]:
        """What it is named after in messages, as a partial is."""
        return self.equation

    def __call__(self, x0: Any, *theta: Any) -> Any:
        if is_disabled(self):
            made = self._with_aux(x0, *theta)
            return made if self.has_aux else made[0]
        made = _solution(
            self.kind, self.equation, self._with_aux, self.linear_solver, x0, theta
        )
        return made if self.has_aux else made[0]

    def _with_aux(self, x0: Any, *theta: Any) -> Any:
        made = self.solve(x0, *theta)
        if not self.has_aux:
            return made, None
        if isinstance(made, tuple) and len(made) == 2:
            return made
        raise OutputError(
            message(
                f"{self.kind} of {function_name(self.equation)}",
                "with `has_aux=True` the solver returns two things.",
                expected="(x, aux)",
                got=describe_tree(made),
                fix="Return `x, aux`, or leave out `has_aux`.",
            )
        )

    def __repr__(self) -> str:
        return f"<{self.kind} of {function_name(self.equation)}>"


@custom
def _solution(
    kind: str, equation: Any, solve: Any, linear_solver: Any, x0: Any, theta: Any
) -> Any:
    del kind, equation, linear_solver
    return jax.tree.map(jnp.asarray, solve(x0, *theta))


@_solution.def_jvp
def _implicit(primals: Any, tangents: Any, *, y: Any) -> Any:
    kind, equation, _, linear_solver, _, theta = primals
    _, d_equation, *_, d_theta = tangents
    # No equation need be differentiable by a complex number: real parts are solved for.
    x, joined = _real_parts(y[0])

    def residual(x: Any, equation: Any, theta: Any) -> Any:
        if kind == "minimum":
            return jax.grad(lambda x: equation(joined(x), *theta))(x)
        made = equation(joined(x), *theta)
        _check_residual(kind, equation, made, joined(x))
        made, _ = _real_parts(made)
        if kind == "root":
            return made
        return jax.tree.map(jnp.subtract, made, x)

    whole = (equation, theta)
    moving, kept = eqx.partition(whole, eqx.is_inexact_array)
    _, product = jax.linearize(with_forward_rules(lambda x: residual(x, *whole)), x)
    _, change = jax.jvp(
        with_forward_rules(lambda moving: residual(x, *eqx.combine(moving, kept))),
        (moving,),
        ((d_equation, d_theta),),
    )
    minus = jax.tree.map(jnp.negative, change)
    found = linear_solve(product, minus, linear_solver, symmetric=kind == "minimum")
    return joined(found), None


def _real_parts(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return a tree with pairs of real arrays for complex ones, and the way back."""
    leaves, structure = jax.tree.flatten(tree)
    pairs = [jnp.iscomplexobj(leaf) for leaf in leaves]

    def joined(parts: Any) -> Any:
        made = structure.flatten_up_to(parts)
        return structure.unflatten(
            jax.lax.complex(*part) if pair else part
            for part, pair in zip(made, pairs, strict=True)
        )

    parts = [
        (jnp.real(leaf), jnp.imag(leaf)) if pair else leaf
        for leaf, pair in zip(leaves, pairs, strict=True)
    ]
    return structure.unflatten(parts), joined


def _check_residual(kind: str, equation: Any, made: Any, x: Any) -> None:
    shapes = [[jnp.shape(leaf) for leaf in jax.tree.leaves(t)] for t in (made, x)]
    if jax.tree.structure(made) == jax.tree.structure(x) and shapes[0] == shapes[1]:
        return
    raise OutputError(
        message(
            f"{kind} of {function_name(equation)}",
            "the equation has another structure or shape than the solution.",
            expected=describe_tree(x),
            got=describe_tree(made),
            fix="Return one equation for each unknown.",
        )
    )


def _dense(product: Callable[[Any], Any], b: Any) -> Any:
    flat, unravel = ravel_pytree(b)
    if flat.size > _DENSE_LIMIT:
        raise TooLargeError(
            message(
                "rule.root(residual, solve)",
                "its derivative would make a matrix of the linear system.",
                expected=f"at most {_DENSE_LIMIT} unknowns",
                got=f"{flat.size}",
                fix="Give a `linear_solver(product, b)`, such as one that iterates.",
            )
        )
    columns = jax.vmap(lambda v: ravel_pytree(product(unravel(v)))[0], out_axes=1)
    matrix = columns(jnp.eye(flat.size, dtype=flat.dtype))
    narrow = jnp.finfo(flat.dtype).bits < 32  # which JAX does not factorize
    wide = jnp.float32 if narrow else flat.dtype
    found = jnp.linalg.solve(matrix.astype(wide), flat.astype(wide))
    return unravel(found.astype(flat.dtype))
