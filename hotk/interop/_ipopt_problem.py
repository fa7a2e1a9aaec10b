"""`ipopt_problem`: a constrained problem with the callbacks of cyipopt."""

import functools
from collections.abc import Mapping
from typing import Any, final

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Integer, PyTree

from hotk._core import (
    Function,
    Leaf,
    Point,
    extra,
    names_ours,
)
from hotk._first import value_and_gradient, value_and_jacobian
from hotk._prepared import Prepared, check_bytes
from hotk._second import hessian
from hotk.sparse import sparse_hessian, sparse_jacobian

from ._coordinates import flat_bound
from ._evaluation import AbstractProblem, freeze
from ._layout import Layout, as_flat, check_real, warn_of_low_precision
from ._sparse_derivatives import Lagrangian, ValueTwice, in_lower_half


_CALL = "ipopt_problem(f, x0)"
# With fewer variables dense matrices are as fast.
_LARGE = 200
_ALTERNATIVE = "`scipy_problem` with the method `trust-constr`, which needs products"


@names_ours
def ipopt_problem(
    f: Function,
    x0: Point,
    *args: PyTree,
    constraints: Function | None = None,
    sparse: bool | None = None,
) -> "IpoptProblem":
    r"""Prepare a constrained problem and its derivatives for IPOPT.

    The problem is to minimize $f(x)$ where $c_l \le g(x) \le c_u$ and $l \le x \le
    u$. IPOPT gets exact derivatives: $\nabla f$, the Jacobian of $g$, and the lower
    triangle of the Hessian of $\sigma f + \lambda \cdot g$ [1]. From 200 variables on
    both are sparse, by `hotk.sparse_jacobian` and `hotk.sparse_hessian`, and cost a few
    evaluations; a dense Hessian costs about $n$ gradients of that sum. Vectors are flat
    and in float64, as those of `scipy_problem`: variables of lower precision keep
    their dtype, and a `PrecisionWarning` says so.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number. The
            values that it captures are those of this moment: later changes have no
            effect.
        x0: Starting point: any pytree. Floating and complex leaves are the variables;
            integers, strings and functions pass through.
        *args: Further arguments of `f` and of `constraints`, held fixed.
        constraints: Function `g(x, *args)` that returns a tree of real floating-point
            arrays; each number in them is one constraint.
        sparse: Whether IPOPT gets sparse derivatives; if left out, from 200 variables
            on.

    Returns:
        An `IpoptProblem`: call its `solve`, or pass it as `problem_obj` to
        `cyipopt.Problem`.

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

    References:
        [1] Wächter, Biegler (2006). On the implementation of an interior-point filter
            line-search algorithm for large-scale nonlinear programming. Mathematical
            Programming 106(1), 25-57. https://doi.org/10.1007/s10107-004-0559-y
    """
    return IpoptProblem(f, x0, *args, constraints=constraints, sparse=sparse)


@final
class IpoptProblem(AbstractProblem):
    """A constrained problem and its derivatives at flat NumPy vectors, for cyipopt.

    `ipopt_problem` makes one, and says what the callbacks compute. Their names are
    those that `cyipopt.Problem` calls. They take a vector of shape `(n,)`, a list of
    numbers, or a column.

    Attributes:
        n: The number of variables.
        m: The number of constraints.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number.
        x0: Starting point: any pytree.
        *args: Further arguments of `f` and of `constraints`, held fixed.
        constraints: Function `g(x, *args)` that returns a tree of real floating-point
            arrays.
        sparse: Whether IPOPT gets sparse derivatives.

    Example:
        >>> from hotk.interop import IpoptProblem
        >>> with jax.enable_x64(True):
        ...     f, x0 = lambda x: jnp.sum(x**2), jnp.ones(2)
        ...     problem = IpoptProblem(f, x0, constraints=lambda x: x[0] - x[1])
        ...     gradient = problem.gradient([1.0, 2.0])
        ...     constraint = problem.constraints([1.0, 2.0])
        >>> problem, gradient.tolist(), constraint.tolist()
        (IpoptProblem(<lambda>, n=2, m=1), [2.0, 4.0], [-1.0])
    """

    def __init__(
        self,
        f: Function,
        x0: Point,
        *args: PyTree,
        constraints: Function | None = None,
        sparse: bool | None = None,
    ) -> None:
        """Prepare the first derivatives; the Hessian follows when it is asked for."""
        super().__init__(_CALL, f, x0)
        coordinates, like = self._coordinates, self._like
        self._sparse = coordinates.layout.size >= _LARGE if sparse is None else sparse
        objective = coordinates.embed(f, args)
        self._objective = value_and_gradient.prepare(objective, like)
        prepared, g, outputs = [self._objective], None, []
        self._output_tree = jax.tree.structure(())
        if constraints is not None:
            g = coordinates.embed(constraints, args)
            shapes = jax.eval_shape(g, like)
            outputs, self._output_tree = jax.tree.flatten(shapes)
            check_real(_CALL, "constraints", outputs, "as two constraints")
            self._constraints = (
                sparse_jacobian.prepare(ValueTwice(g), like, has_aux=True)
                if self._sparse
                else value_and_jacobian.prepare(g, like)
            )
            prepared.append(self._constraints)
        self._outputs = Layout(outputs)
        self.m = self._outputs.size
        self._lagrangian = freeze(
            Lagrangian(objective, g), prepared, like, *self._weights()
        )
        warn_of_low_precision(_CALL, coordinates.layout)

    def objective(self, z: npt.ArrayLike) -> float:
        """Return the value of the objective.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The value; NaN and infinities are returned, not raised.
        """
        return self._last.at(z).get("objective", self._evaluate_objective)[0]

    def gradient(self, z: npt.ArrayLike) -> Float[np.ndarray, "n"]:
        """Return the gradient of the objective, computed together with the value.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The gradient, a new array.
        """
        return self._last.at(z).get("objective", self._evaluate_objective)[1].copy()

    def constraints(self, z: npt.ArrayLike) -> Float[np.ndarray, "m"]:
        """Return the values of the constraints.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The values in the order of their tree, a new array.
        """
        return self._last.at(z).get("constraints", self._evaluate_constraints)[0].copy()

    def jacobian(self, z: npt.ArrayLike) -> Float[np.ndarray, "nonzeros"]:
        """Return the entries of the Jacobian of the constraints.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The entries in the order of `jacobianstructure`, a new array.
        """
        return self._last.at(z).get("constraints", self._evaluate_constraints)[1].copy()

    def jacobianstructure(self) -> tuple[Integer[np.ndarray, "nonzeros"], ...]:
        """Return which entries of the Jacobian are given, row by row; all if dense.

        Returns:
            Their row indices and their column indices.
        """
        if self._sparse and self.m:
            matrix, _ = self._constraints(self._like)
            return np.array(matrix.rows), np.array(matrix.cols)
        rows, columns = np.indices((self.m, self.n))
        return rows.ravel(), columns.ravel()

    def hessian(
        self, z: npt.ArrayLike, lagrange: npt.ArrayLike, obj_factor: float
    ) -> Float[np.ndarray, "nonzeros"]:
        r"""Return the lower triangle of the Hessian of $\sigma f + \lambda \cdot g$.

        Args:
            z: The point, of shape `(n,)`.
            lagrange: The multipliers $\lambda$ of the constraints, of shape `(m,)`.
            obj_factor: The factor $\sigma$ of the objective.

        Returns:
            The entries in the order of `hessianstructure`, a new array.

        Raises:
            TooLargeError: If the dense Hessian would exceed `hotk.memory_budget()`.
        """
        multipliers = as_flat(_CALL, "lagrange", lagrange, self.m)
        weights = self._weights(obj_factor, multipliers)
        if self._sparse:
            matrix = self._hessian(self._last.at(z).parts, *weights)
            return np.asarray(matrix.values, np.float64)[in_lower_half(matrix)]
        blocks = self._hessian(self._last.at(z).parts, *weights)
        return self._coordinates.layout.dense(blocks)[self.hessianstructure()]

    def hessianstructure(self) -> tuple[Integer[np.ndarray, "nonzeros"], ...]:
        """Return which entries of the Hessian are given, of its lower triangle.

        Returns:
            Their row indices and their column indices, row by row.

        Raises:
            TooLargeError: If the dense Hessian would exceed `hotk.memory_budget()`.
        """
        if self._sparse:
            matrix = self._hessian(self._like, *self._weights())
            lower = in_lower_half(matrix)
            return matrix.rows[lower], matrix.cols[lower]
        # cyipopt asks for the structure first: what cannot fit raises before IPOPT runs
        # (`test_a_dense_hessian_that_cannot_fit_is_refused_at_once`).
        bytes_needed = 8 * self.n**2
        check_bytes(f"{_CALL}.hessianstructure()", self.n, bytes_needed, _ALTERNATIVE)
        return np.tril_indices(self.n)

    def solve(
        self,
        *,
        lb: PyTree = None,
        ub: PyTree = None,
        cl: PyTree = None,
        cu: PyTree = None,
        warm_start: Mapping[str, Any] | None = None,
        **options: str | float,
    ) -> tuple[Point, dict[str, Any]]:
        """Solve the problem with IPOPT.

        Args:
            lb: Lower bounds of the variables: one number for all; a tree like `x0` with
                an array, a number or `None` for each leaf; or a flat vector of shape
                `(n,)`. Without them the variables are free.
            ub: Upper bounds of the variables.
            cl: Lower bounds of the constraints: one number, a tree like what
                `constraints` returns, or a flat vector of shape `(m,)`. Without `cl`
                and `cu` all constraints are equations $g(x) = 0$. Where both are the
                same, the constraint is an equation.
            cu: Upper bounds of the constraints.
            warm_start: What a run before has returned besides the solution: IPOPT
                starts at its solution and multipliers, with its option
                `warm_start_init_point`. A smaller `mu_init` then saves steps.
            **options: Options of IPOPT, such as `tol` or `print_level`.

        Returns:
            The solution as a tree, and the dictionary in which cyipopt reports on it,
            with `status` and `status_msg`. Three entries are added: `values`, the
            constraints as a tree; `multipliers`, a tree like it; and
            `bound_multipliers`, two trees like `x0` for `lb` and `ub`.

        Raises:
            ImportError: If cyipopt is not installed.
            StructureError: If a bound is not a number, a tree of this structure or an
                vector of this size.
        """
        cyipopt = extra("cyipopt")
        if cl is None and cu is None:
            cl = cu = 0.0
        call = f"{_CALL}.solve(lb, ub, cl, cu)"
        x, flat = self._coordinates.tree(self.x0), self._coordinates.flat_like
        bounds: dict[str, Any] = {}
        for name, side, missing in (("lb", lb, -np.inf), ("ub", ub, np.inf)):
            bounds[name] = flat_bound(call, name, side, missing, x, flat, self.n)
        g, flat = self._output_shapes(), self._flat_outputs
        for name, side, missing in (("cl", cl, -np.inf), ("cu", cu, np.inf)):
            bounds[name] = flat_bound(call, name, side, missing, g, flat, self.m)
        problem = cyipopt.Problem(n=self.n, m=self.m, problem_obj=self, **bounds)
        start, z = {}, self.x0
        if warm_start is not None:
            options = {"warm_start_init_point": "yes", **options}
            z = np.array(warm_start["x"], np.float64)
            names = {"lagrange": "mult_g", "zl": "mult_x_L", "zu": "mult_x_U"}
            start = {ours: warm_start[theirs] for ours, theirs in names.items()}
        for name, value in options.items():
            problem.add_option(name, value)
        z, info = problem.solve(z, **start)
        for name, theirs in (("values", "g"), ("multipliers", "mult_g")):
            arrays = self._outputs.split(np.asarray(info[theirs]))
            info[name] = self._output_tree.unflatten(arrays)
        sides = info["mult_x_L"], info["mult_x_U"]
        info["bound_multipliers"] = tuple(map(self._coordinates.tree, sides))
        return self.unravel(z), info

    def _output_shapes(self) -> PyTree:
        """Return the shapes of the constraints, as a tree."""
        parts = self._outputs.parts
        shapes = [jax.ShapeDtypeStruct(part.shape, part.dtype) for part in parts]
        return self._output_tree.unflatten(shapes)

    def _flat_outputs(self, like: PyTree, tree: PyTree) -> Float[np.ndarray, "m"]:
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True)
        return self._outputs.join(np.broadcast_to(b, a.shape) for b, a in pairs)

    def __repr__(self) -> str:
        """Show function and sizes."""
        return f"IpoptProblem({self._name}, n={self.n}, m={self.m})"

    def _evaluate_objective(
        self, parts: list[Leaf]
    ) -> tuple[float, Float[np.ndarray, "n"]]:
        y, gradient = self._objective(parts)
        return float(y), self._coordinates.layout.join(gradient)

    def _evaluate_constraints(
        self, parts: list[Leaf]
    ) -> tuple[Float[np.ndarray, "m"], Float[np.ndarray, "nonzeros"]]:
        # cyipopt asks for both even if there are no constraints.
        if not self.m:
            return np.zeros(0), np.zeros(0)
        if self._sparse:
            matrix, values = self._constraints(parts)
            joined = self._outputs.join(jax.tree.leaves(values))
            return joined, np.asarray(matrix.values, np.float64)
        values, blocks = self._constraints(parts)
        # One list of blocks for each array of constraints: the output's structure
        # stands outside, that of the variables inside.
        lines = jax.tree.structure(values).flatten_up_to(blocks)
        join = self._coordinates.layout.join
        rows = [join(line).reshape(-1, self.n) for line in lines]
        joined = self._outputs.join(jax.tree.leaves(values))
        return joined, np.concatenate(rows).ravel()

    def _weights(
        self, factor: float = 1.0, multipliers: Float[np.ndarray, "m"] | None = None
    ) -> tuple[Float[np.ndarray, ""], list[Array | np.ndarray]]:
        flat = np.zeros(self.m) if multipliers is None else multipliers
        # An array, as a Python number would be a constant of the program: IPOPT
        # changes it (`test_one_compile_a_callback`).
        dtype = jax.dtypes.canonicalize_dtype(np.float64)
        return np.array(factor, dtype), self._outputs.split(flat)

    # Prepared at first use: with `hessian_approximation` IPOPT never asks for it.
    @functools.cached_property
    def _hessian(self) -> Prepared:
        of = sparse_hessian if self._sparse else hessian
        return of.prepare(self._lagrangian, self._like, *self._weights())
