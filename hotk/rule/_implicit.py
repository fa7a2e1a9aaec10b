"""Solutions of equations: value by any solver, derivatives by the implicit function."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from hotk._core import (
    OutputError,
    TooLargeError,
    describe_tree,
    function_name,
    message,
)

from ._custom import custom


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
            that it captures are differentiated as well.
        solve: `solve(x0, *theta)`, which returns the solution: any code that JAX can
            trace, loops included, or any Python at all where nothing is traced. It is
            not differentiated. Without it `root(residual)` is a decorator.
        linear_solver: `linear_solver(product, b)`, which returns the solution of
            `product(x) = b` and serves the transpose as well. Without it the matrix is
            made, by one product for each number in `x`, and factorized.
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
        TooLargeError: If `b` has more than 2048 numbers and there is no `solver`.

    Example:
        >>> f = lambda a: hotk.rule.linear_solve(lambda v: a * v, 3.0)
        >>> print(f"{hotk.second_derivative(f, 2.0):.2f}")
        0.75
    """
    solver = _dense if solver is None else solver
    b = jax.tree.map(jnp.asarray, b)
    return jax.lax.custom_linear_solve(
        product, b, solver, transpose_solve=solver, symmetric=symmetric
    )


class _Solution(eqx.Module):
    """A solver of an equation: a function `solution(x0, *theta)`."""

    equation: Callable[..., Any]
    solve: Callable[..., Any]
    linear_solver: Callable[..., Any] | None
    has_aux: bool = eqx.field(static=True)
    kind: str = eqx.field(static=True)

    def __call__(self, x0: Any, *theta: Any) -> Any:
        made = _solution(
            self.kind, self.equation, self._with_aux, self.linear_solver, x0, theta
        )
        return made if self.has_aux else made[0]

    def _with_aux(self, x0: Any, *theta: Any) -> Any:
        made = self.solve(x0, *theta)
        return made if self.has_aux else (made, None)

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
    x, _ = y

    def residual(x: Any, equation: Any, theta: Any) -> Any:
        if kind == "minimum":
            return jax.grad(lambda x: equation(x, *theta))(x)
        made = equation(x, *theta)
        _check_residual(kind, equation, made, x)
        if kind == "root":
            return made
        return jax.tree.map(jnp.subtract, made, x)

    _, product = jax.linearize(lambda x: residual(x, equation, theta), x)
    _, change = eqx.filter_jvp(
        functools.partial(residual, x), (equation, theta), (d_equation, d_theta)
    )
    minus = jax.tree.map(jnp.negative, change)
    return linear_solve(
        product, minus, linear_solver, symmetric=kind == "minimum"
    ), None


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
    return unravel(
        jnp.linalg.solve(columns(jnp.eye(flat.size, dtype=flat.dtype)), flat)
    )
