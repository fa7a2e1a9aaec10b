"""`scipy_residuals`: a vector function for SciPy's least squares and constraints."""

import functools
from collections.abc import Mapping
from typing import Any, Literal, final

import jax
import numpy as np
import numpy.typing as npt
import scipy.optimize
from jaxtyping import Float, PyTree

from hotk._core import Function, Leaf, Point, names_ours
from hotk._prepared import Prepared
from hotk.sparse import sparse_hessian, sparse_jacobian

from ._evaluation import AbstractProblem, freeze
from ._layout import Layout, as_flat, check_real, warn_of_low_precision
from ._sparse_derivatives import ValueTwice, WeightedSum, for_scipy


_CALL = "scipy_residuals(r, x0)"


@names_ours
def scipy_residuals(r: Function, x0: Point, *args: PyTree) -> "ScipyResiduals":
    r"""Prepare a vector function and its sparse derivatives for SciPy.

    `fun` and `jac` are what `scipy.optimize.least_squares` takes, and with `hess`
    what `scipy.optimize.NonlinearConstraint` takes for the method `trust-constr`. The
    Jacobian is sparse where the program shows that it is, by `hotk.sparse_jacobian`:
    without a pattern or finite differences. Vectors are flat and in float64, as those
    of `scipy_problem`. Values and Jacobian at one point cost one evaluation of both.

    Args:
        r: Function `r(x, *args)` that returns a tree of real floating-point arrays. The
            values that it captures are those of this moment.
        x0: Starting point: any pytree. Floating leaves are the variables.
        *args: Further arguments of `r`, held fixed.

    Returns:
        A `ScipyResiduals`: call its `solve`, or pass its methods to SciPy.

    Raises:
        DtypeError: If nothing in `x0` can be differentiated.
        OutputError: If `r` returns anything but floating-point arrays.
        ModeError: If `r` has no derivative.

    Example:
        >>> from hotk.interop import scipy_residuals
        >>> r = lambda x: {"chain": 10 * (x[1:] - x[:-1] ** 2), "ends": 1 - x[:-1]}
        >>> with jax.enable_x64(True):
        ...     problem = scipy_residuals(r, jnp.full(40, 0.5))
        ...     result = problem.solve(xtol=1e-12)
        ...     jacobian = problem.jac(problem.x0)
        >>> jacobian.nnz, result.tree.round(3).tolist() == [1.0] * 40
        (117, True)
    """
    return ScipyResiduals(r, x0, *args)


@final
class ScipyResiduals(AbstractProblem):
    """A vector function and its sparse derivatives at flat vectors, for SciPy.

    `scipy_residuals` makes one, and says what the callbacks compute.

    Attributes:
        n: The number of variables.
        m: The number of values.

    Args:
        r: Function `r(x, *args)` that returns a tree of real floating-point arrays.
        x0: Starting point: any pytree.
        *args: Further arguments of `r`, held fixed.

    Example:
        >>> from hotk.interop import ScipyResiduals
        >>> with jax.enable_x64(True):
        ...     problem = ScipyResiduals(lambda x: x[1:] * x[:-1], jnp.ones(30))
        ...     values, second = problem.fun(np.arange(30.0)), problem.hess(
        ...         np.ones(30), np.arange(29.0)
        ...     )
        >>> values[:3].tolist(), second[[2], [1]].tolist()
        ([0.0, 2.0, 6.0], [1.0])
    """

    def __init__(self, r: Function, x0: Point, *args: PyTree) -> None:
        """Prepare values and Jacobian; Hessians follow when one is asked for."""
        super().__init__(_CALL, r, x0)
        embedded = self._coordinates.embed(r, args)
        outputs = jax.tree.leaves(jax.eval_shape(embedded, self._like))
        check_real(_CALL, "r", outputs, "as two residuals")
        self._outputs = Layout(outputs)
        self.m = self._outputs.size
        self._jacobian = sparse_jacobian.prepare(
            ValueTwice(embedded), self._like, has_aux=True
        )
        self._function = freeze(embedded, [self._jacobian], self._like)
        warn_of_low_precision(_CALL, self._coordinates.layout)

    def fun(self, z: npt.ArrayLike) -> Float[np.ndarray, "m"]:
        """Return the values of the function, leaf after leaf.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The values, a new array.
        """
        return self._last.at(z).get("both", self._evaluate)[0].copy()

    def jac(self, z: npt.ArrayLike) -> Any:
        """Return the Jacobian, which was computed together with the values.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            A `scipy.sparse.csr_array` of shape `(m, n)`; a dense array if more than a
            tenth of all entries are in the pattern.
        """
        return self._last.at(z).get("both", self._evaluate)[1].copy()

    def hess(self, z: npt.ArrayLike, v: npt.ArrayLike) -> Any:
        r"""Return the Hessian of $v \cdot r$.

        Args:
            z: The point, of shape `(n,)`.
            v: The weights, of shape `(m,)`.

        Returns:
            A `scipy.sparse.csr_array`, or a dense array, as `jac` returns.
        """
        weights = self._outputs.split(as_flat(_CALL, "v", v, self.m))
        return for_scipy(self._hessian(self._last.at(z).parts, weights))

    def solve(
        self,
        method: Literal["trf", "dogbox", "lm"] = "trf",
        *,
        bounds: Any = (-np.inf, np.inf),
        options: Mapping[str, object] | None = None,
        **more: Any,
    ) -> scipy.optimize.OptimizeResult:
        """Minimize half the sum of squares with `scipy.optimize.least_squares`.

        Args:
            method: One of SciPy's methods. `"lm"` gets a dense Jacobian.
            bounds: Bounds of the flat vector, as SciPy takes them; or two trees like
                `x0`, with numbers or arrays.
            options: Further keywords of `least_squares` but `fun`, `x0` and `jac`, such
                as `loss` or `xtol`.
            **more: The same, by name.

        Returns:
            The result of SciPy, with one more entry: `tree`, the solution as a tree.

        Raises:
            TypeError: If something is given that the problem itself gives to SciPy.
        """
        bounds, given = self._given(bounds, options, more)
        dense = lambda a: a if isinstance(a, np.ndarray) else a.toarray()
        # SciPy's annotation names the strings that it takes alone
        jac: Any = (lambda z: dense(self.jac(z))) if method == "lm" else self.jac
        result = scipy.optimize.least_squares(
            self.fun, self.x0, jac=jac, method=method, bounds=bounds, **given
        )
        result["tree"] = self.unravel(result.x)
        return result

    def __repr__(self) -> str:
        """Show function and sizes."""
        return f"ScipyResiduals({self._name}, n={self.n}, m={self.m})"

    def _evaluate(self, parts: list[Leaf]) -> tuple[Float[np.ndarray, "m"], Any]:
        matrix, values = self._jacobian(parts)
        return self._outputs.join(jax.tree.leaves(values)), for_scipy(matrix)

    @functools.cached_property
    def _hessian(self) -> Prepared:
        weights = self._outputs.split(np.zeros(self.m))
        return sparse_hessian.prepare(WeightedSum(self._function), self._like, weights)
