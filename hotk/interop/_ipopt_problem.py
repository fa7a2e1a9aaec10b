"""`ipopt_problem`: a constrained problem with the callbacks of cyipopt."""

import functools
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer

from hotk._core import OutputError, describe_tree, extra, function_name, message
from hotk.first import value_and_gradient, value_and_jacobian
from hotk.prepared import check_bytes
from hotk.second import hessian

from ._coordinates import Coordinates, Embedded
from ._held import held
from ._layout import Layout, as_flat, warn_of_low_precision
from ._points import Points


_CALL = "ipopt_problem(f, x0)"
_INSTEAD = "`scipy_problem` with the method `trust-constr`, which needs products only"


@final
class Lagrangian(eqx.Module):
    r"""The function $\sigma f + \lambda \cdot g$.

    Attributes:
        func: The objective.
        constraints: The constraints, `None` if there are none.
    """

    func: Embedded
    constraints: Any

    def __call__(self, parts: list[Any], factor: Array, multipliers: list[Any]) -> Any:
        """Return the weighted sum."""
        y = self.func(parts)
        terms = [factor.astype(y.dtype) * y]
        if self.constraints is not None:
            leaves = jax.tree.leaves(self.constraints(parts))
            pairs = zip(multipliers, leaves, strict=True)
            terms += [jnp.sum(w.astype(g.dtype) * g) for w, g in pairs]
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*terms)
        return sum([term.astype(dtype) for term in terms], start=jnp.zeros((), dtype))


def ipopt_problem(
    f: Callable[..., Any],
    x0: Any,
    *args: Any,
    constraints: Callable[..., Any] | None = None,
) -> "IpoptProblem":
    r"""Return a constrained problem as callbacks for `cyipopt.Problem`.

    The problem is to minimize $f(x)$ where $c_l \le g(x) \le c_u$ and $l \le x \le
    u$. IPOPT gets exact derivatives: $\nabla f$, the Jacobian of $g$, and the lower
    triangle of the Hessian of $\sigma f + \lambda \cdot g$, both dense. Vectors are
    flat and in float64, as for `scipy_problem`: a variable of lower precision is taken
    as it is, with a `PrecisionWarning`.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number. It is
            held as it is now.
        x0: Where to begin: any pytree. Floating and complex leaves are variables;
            what else is in it passes through.
        *args: Further arguments of `f` and of `constraints`, held fixed.
        constraints: Function `g(x, *args)` that returns real floating-point arrays, in
            a tree; one number is one constraint.

    Returns:
        An `IpoptProblem`: give it as `problem_obj` to `cyipopt.Problem`, or call its
        `solve`.

    Raises:
        DtypeError: If nothing in `x0` can be differentiated.
        OutputError: If `f` returns anything but one real floating-point number, or
            `constraints` anything but real floating-point arrays.
        ModeError: If a function has no derivative.
        TooLargeError: If the Jacobian would exceed `hotk.memory_budget()`.

    Example:
        >>> from hotk.interop import ipopt_problem
        >>> with jax.enable_x64(True):
        ...     f = lambda x: x[0] * x[1] ** 2
        ...     g = lambda x: jnp.sum(x**2)
        ...     problem = ipopt_problem(f, jnp.array([1.0, 2.0]), constraints=g)
        ...     jacobian = problem.jacobian(problem.x0)
        ...     triangle = problem.hessian(problem.x0, np.array([3.0]), 1.0)
        >>> jacobian.tolist(), triangle.tolist()
        ([2.0, 4.0], [6.0, 4.0, 8.0])
        >>> [index.tolist() for index in problem.hessianstructure()]
        [[0, 1, 1], [0, 0, 1]]
    """
    return IpoptProblem(f, x0, *args, constraints=constraints)


@final
class IpoptProblem:
    """A constrained problem at flat NumPy vectors; see `ipopt_problem`.

    Attributes:
        n: The number of variables.
        m: The number of constraints.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        x0: Any,
        *args: Any,
        constraints: Callable[..., Any] | None = None,
    ) -> None:
        """Hold the functions as they are now, and compile their first derivatives."""
        self._name = function_name(f)
        self._space = space = Coordinates(_CALL, x0)
        self._points = Points(space)
        self._like = like = space.point(space.start)
        objective = space.embed(f, args)
        self._objective = value_and_gradient.prepare(objective, like)
        known, g, rows = [self._objective], None, []
        if constraints is not None:
            g = space.embed(constraints, args)
            rows = jax.tree.leaves(jax.eval_shape(g, like))
            _check_rows(rows)
            self._constraints = value_and_jacobian.prepare(g, like)
            known.append(self._constraints)
        self._rows = Layout(rows)
        self.n, self.m = space.layout.size, self._rows.size
        self._held = held(Lagrangian(objective, g), known, like, *self._weights())
        warn_of_low_precision(_CALL, space.layout, level=4)

    @property
    def x0(self) -> Float[np.ndarray, "n"]:
        """Where to begin, as a new flat vector."""
        return self._space.start.copy()

    def unravel(self, z: Any) -> Any:
        """Return a flat vector as a tree like `x0`: JAX arrays in its dtypes."""
        return self._space.tree(self._space.vector("z", z))

    def objective(self, z: Any) -> float:
        """Return the value of the objective."""
        return self._points.at(z).get("objective", self._value)[0]

    def gradient(self, z: Any) -> Float[np.ndarray, "n"]:
        """Return the gradient of the objective."""
        return self._points.at(z).get("objective", self._value)[1].copy()

    def constraints(self, z: Any) -> Float[np.ndarray, "m"]:
        """Return the constraints, in the order of their tree."""
        return self._points.at(z).get("constraints", self._values)[0].copy()

    def jacobian(self, z: Any) -> Float[np.ndarray, "nonzeros"]:
        """Return the entries of the Jacobian at the places of `jacobianstructure`."""
        return self._points.at(z).get("constraints", self._values)[1].copy()

    def jacobianstructure(self) -> tuple[Integer[np.ndarray, "nonzeros"], ...]:
        """Return rows and columns: all of them, row by row."""
        rows, columns = np.indices((self.m, self.n))
        return rows.ravel(), columns.ravel()

    def hessian(
        self, z: Any, lagrange: Any, obj_factor: float
    ) -> Float[np.ndarray, "nonzeros"]:
        """Return the entries of the Lagrangian's Hessian, of the lower triangle.

        Args:
            z: The point.
            lagrange: The multipliers of the constraints.
            obj_factor: The factor of the objective.

        Raises:
            TooLargeError: If the dense Hessian would exceed `hotk.memory_budget()`.
        """
        multipliers = as_flat(_CALL, "lagrange", lagrange, self.m)
        weights = self._weights(obj_factor, multipliers)
        blocks = self._hessian(self._points.at(z).parts, *weights)
        return self._space.layout.dense(blocks)[self.hessianstructure()]

    def hessianstructure(self) -> tuple[Integer[np.ndarray, "nonzeros"], ...]:
        """Return rows and columns of the lower triangle, row by row.

        Raises:
            TooLargeError: If the dense Hessian would exceed `hotk.memory_budget()`.
        """
        check_bytes(f"{_CALL}.hessianstructure()", self.n, 8 * self.n**2, _INSTEAD)
        return np.tril_indices(self.n)

    def solve(
        self,
        *,
        lb: Any = None,
        ub: Any = None,
        cl: Any = None,
        cu: Any = None,
        **options: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Solve the problem with IPOPT.

        Args:
            lb: Lower bounds of the flat vector; one number is for all.
            ub: Upper bounds of the flat vector.
            cl: Lower bounds of the constraints. Where both are left out, the
                constraints are to be zero.
            cu: Upper bounds of the constraints.
            **options: Options of IPOPT, such as `tol` or `print_level`.

        Returns:
            The solution as a tree, and what cyipopt says about it.

        Raises:
            ImportError: If cyipopt is not installed.
        """
        cyipopt = extra("cyipopt")
        if cl is None and cu is None:
            cl = cu = 0.0
        problem = cyipopt.Problem(
            n=self.n,
            m=self.m,
            problem_obj=self,
            lb=_bounds(lb, self.n),
            ub=_bounds(ub, self.n),
            cl=_bounds(cl, self.m),
            cu=_bounds(cu, self.m),
        )
        for name, value in options.items():
            problem.add_option(name, value)
        z, info = problem.solve(self.x0)
        return self.unravel(z), info

    def __repr__(self) -> str:
        """Show function and sizes."""
        return f"IpoptProblem({self._name}, n={self.n}, m={self.m})"

    def _value(self, parts: list[Any]) -> tuple[float, Any]:
        y, gradient = self._objective(parts)
        return float(y), self._space.layout.join(gradient)

    def _values(self, parts: list[Any]) -> tuple[Any, Any]:
        if not self.m:
            return np.zeros(0), np.zeros(0)
        values, blocks = self._constraints(parts)
        lines = jax.tree.structure(values).flatten_up_to(blocks)
        rows = [self._space.layout.join(line).reshape(-1, self.n) for line in lines]
        return self._rows.join(jax.tree.leaves(values)), np.concatenate(rows).ravel()

    def _weights(self, factor: float = 1.0, multipliers: Any = None) -> Any:
        flat = np.zeros(self.m) if multipliers is None else multipliers
        dtype = jax.dtypes.canonicalize_dtype(np.float64)
        return np.array(factor, dtype), self._rows.split(flat)

    @functools.cached_property
    def _hessian(self) -> Any:
        return hessian.prepare(self._held, self._like, *self._weights())


def _check_rows(rows: list[Any]) -> None:
    for leaf in rows:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise OutputError(
                message(
                    _CALL,
                    "`constraints` returns something else than real numbers.",
                    expected="real floating-point arrays",
                    got=describe_tree(rows),
                    fix="Return the parts of a complex number as two constraints.",
                )
            )


def _bounds(value: Any, count: int) -> Any:
    """Return a bound for each number; cyipopt knows what none is."""
    if value is None:
        return None
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)).copy()
