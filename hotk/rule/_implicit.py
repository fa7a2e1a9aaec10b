"""Solutions of equations, differentiated by the implicit function theorem."""

from collections.abc import Callable
from typing import overload

from hotk._core import Function, describe, message

from ._linear_solve import LinearSolver
from ._solution import ImplicitFunction


@overload
def root(
    residual: Function,
    solve: Function,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Function: ...


@overload
def root(
    residual: Function,
    solve: None = None,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Callable[[Function], Function]: ...


def root(
    residual: Function,
    solve: Function | None = None,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Function | Callable[[Function], Function]:
    r"""Make a root $r(x, \theta) = 0$ differentiable by $\theta$, to any order.

    Implicit differentiation: the value is the solver's, the derivatives are those of
    the solution, whatever the solver did. From $r(x(\theta), \theta) = 0$ follows
    $\partial_x r \; dx = -\partial_\theta r \; d\theta$: one linear system for each
    tangent [1], and its transpose in reverse mode. The solution is differentiated again
    by the same equation, so Hessians of functions that contain a solver are as exact as
    the solution is: an error e of the solver is one of order e in each derivative [2].

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
        A function `solution(x0, *theta)`, which returns what `solve` does. Its
        derivative by `x0` is zero.

    Raises:
        OutputError: If the residual has another structure or shape than the solution,
            or `solve` returns no pair with `has_aux=True`.
        TooLargeError: If it is differentiated, the solution has more than 2048 numbers
            and there is no `linear_solver`.
        TypeError: If `solve` is left out, and what is decorated is no function.

    Example:
        >>> @hotk.rule.root(lambda x, a: x**2 - a)
        ... def square_root(x0, a):
        ...     step = lambda i, x: (x + a / x) / 2
        ...     return jax.lax.fori_loop(0, 20, step, x0)
        >>> second = jax.grad(jax.grad(square_root, argnums=1), argnums=1)
        >>> print(f"{second(1.0, 4.0):.5f}")
        -0.03125

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 15.
            SIAM.
        [2] Blondel et al. (2022). Efficient and modular implicit differentiation.
            NeurIPS.
    """
    return _of_solver(residual, solve, linear_solver, has_aux, "root")


@overload
def minimum(
    objective: Function,
    solve: Function,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Function: ...


@overload
def minimum(
    objective: Function,
    solve: None = None,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Callable[[Function], Function]: ...


def minimum(
    objective: Function,
    solve: Function | None = None,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Function | Callable[[Function], Function]:
    r"""Make a minimum of $f(x, \theta)$ over $x$ differentiable by $\theta$.

    Implicit differentiation, to any order: the value is the solver's, the derivatives
    are those of the minimum. It is a root of the gradient, so $\nabla_x^2 f \; dx =
    -\partial_\theta \nabla_x f \; d\theta$: one linear system for each tangent [1],
    whose matrix is symmetric. The Hessian must not be singular at the minimum. The
    derivatives are as exact as the minimum is: an error e of the solver is one of
    order e in each of them.

    Args:
        objective: `objective(x, *theta)`, a real scalar, twice differentiable. Arrays
            that it captures are differentiated as well.
        solve: `solve(x0, *theta)`, which returns the minimum: any code that JAX can
            trace, loops included, or any Python at all where nothing is traced. It is
            not differentiated. Without it `minimum(objective)` is a decorator.
        linear_solver: `linear_solver(product, b)`, which returns the solution of
            `product(x) = b` for a symmetric product, as conjugate gradients do; a
            complex array stands in both as a pair of real ones. Without it the matrix
            is made, by one product for each number in `x`, and factorized.
        has_aux: Whether `solve` returns `(x, aux)`; `aux` has no derivative.

    Returns:
        A function `solution(x0, *theta)`, which returns what `solve` does. Its
        derivative by `x0` is zero.

    Raises:
        OutputError: If `solve` returns no pair with `has_aux=True`.
        TooLargeError: If it is differentiated, the minimum has more than 2048 numbers
            and there is no `linear_solver`.
        TypeError: If `solve` is left out, and what is decorated is no function.

    Example:
        >>> ridge = lambda w, c: jnp.sum((w - 1) ** 2) + c * jnp.sum(w**2)
        >>> solution = hotk.rule.minimum(ridge, lambda w0, c: jnp.ones(3) / (1 + c))
        >>> loss = lambda c: jnp.sum(solution(jnp.zeros(3), c))
        >>> print(f"{hotk.second_derivative(loss, 1.0):.3f}")
        0.750

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 15.
            SIAM.
    """
    return _of_solver(objective, solve, linear_solver, has_aux, "minimum")


@overload
def fixed_point(
    step: Function,
    solve: Function,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Function: ...


@overload
def fixed_point(
    step: Function,
    solve: None = None,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Callable[[Function], Function]: ...


def fixed_point(
    step: Function,
    solve: Function | None = None,
    *,
    linear_solver: LinearSolver | None = None,
    has_aux: bool = False,
) -> Function | Callable[[Function], Function]:
    r"""Make a fixed point $x = g(x, \theta)$ differentiable by $\theta$.

    Implicit differentiation, to any order: the value is the solver's, the derivatives
    are those of the fixed point. It is a root of $g(x, \theta) - x$, so
    $(I - \partial_x g)\,dx = \partial_\theta g\,d\theta$: one linear system for each
    tangent, and its transpose in reverse mode [1]. No step of the solver is stored.

    Args:
        step: `step(x, *theta)` with the structure and shapes of `x`. Arrays that it
            captures are differentiated as well.
        solve: `solve(x0, *theta)`, which returns the point: any code that JAX can
            trace, loops included, or any Python at all where nothing is traced. It is
            not differentiated. Without it `fixed_point(step)` is a decorator.
        linear_solver: `linear_solver(product, b)`, which returns the solution of
            `product(x) = b` and serves the transpose as well; a complex array stands
            in both as a pair of real ones. Without it the matrix is made, by one
            product for each number in `x`, and factorized.
        has_aux: Whether `solve` returns `(x, aux)`; `aux` has no derivative.

    Returns:
        A function `solution(x0, *theta)`, which returns what `solve` does. Its
        derivative by `x0` is zero.

    Raises:
        OutputError: If a step has another structure or shape than the point, or `solve`
            returns no pair with `has_aux=True`.
        TooLargeError: If it is differentiated, the point has more than 2048 numbers and
            there is no `linear_solver`.
        TypeError: If `solve` is left out, and what is decorated is no function.

    Example:
        >>> step = lambda x, a: (x + a / x) / 2
        >>> walk = lambda x0, a: jax.lax.fori_loop(0, 20, lambda i, x: step(x, a), x0)
        >>> square_root = hotk.rule.fixed_point(step, walk)
        >>> print(f"{hotk.second_derivative(lambda a: square_root(1.0, a), 4.0):.5f}")
        -0.03125

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 15.
            SIAM.
    """
    return _of_solver(step, solve, linear_solver, has_aux, "fixed point")


def _of_solver(
    equation: Function,
    solve: Function | None,
    linear_solver: LinearSolver | None,
    has_aux: bool,
    problem: str,
) -> Function | Callable[[Function], Function]:
    if solve is not None:
        return ImplicitFunction(equation, solve, linear_solver, has_aux, problem)

    def decorate(*solver: Function) -> Function:
        if len(solver) == 1 and callable(solver[0]):
            return _of_solver(equation, solver[0], linear_solver, has_aux, problem)
        name = problem.replace(" ", "_")
        raise TypeError(
            message(
                f"{name}(equation)(solve)",
                "the solver is missing.",
                expected="a function `solve(x0, *theta)`, which finds the solution",
                got=", ".join(map(describe, solver)),
                fix=f"Write `hotk.rule.{name}(equation, solve)(x0, *theta)`: the rule "
                "gives derivatives, and finds no solution by itself.",
            )
        )

    return decorate
