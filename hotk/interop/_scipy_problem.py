"""`scipy_problem`: a function as `scipy.optimize.minimize` wants it."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.optimize
from jaxtyping import Float, PyTree

from hotk._core import Function, Leaf, Point, names_ours
from hotk._first import value_and_gradient
from hotk._prepared import Prepared
from hotk._second import hessian, hvp
from hotk.sparse import hessian_if_sparse, sparse_hessian

from ._evaluation import AbstractProblem, freeze
from ._layout import warn_of_low_precision
from ._sparse_derivatives import for_scipy


_CALL = "scipy_problem(f, x0)"
# What SciPy's methods take besides values. It warns of what a method does not use. A
# method that is not listed, as one of the user, gets the gradient and the product.
_DENSE_HESSIAN = ("dogleg", "trust-exact")
_GRADIENT_ONLY = ("cg", "bfgs", "l-bfgs-b", "tnc", "slsqp")
# With fewer variables products are as fast as a sparse matrix.
_LARGE = 2000
_VALUES_ONLY = ("nelder-mead", "powell", "cobyla", "cobyqa")

Bounds: TypeAlias = (
    scipy.optimize.Bounds | Sequence[Sequence[float | None]] | tuple[PyTree, PyTree]
)
Constraint: TypeAlias = (
    scipy.optimize.LinearConstraint
    | scipy.optimize.NonlinearConstraint
    | Mapping[str, object]
)
Values: TypeAlias = tuple[float, Float[np.ndarray, "n"], PyTree]


@names_ours
def scipy_problem(
    f: Function, x0: Point, *args: PyTree, has_aux: bool = False
) -> "ScipyProblem":
    r"""Prepare a function and its derivatives for `scipy.optimize.minimize`.

    The callbacks compute $f$, $\nabla f$, $\nabla^2 f\,p$ and $\nabla^2 f$ at a flat
    vector $z$ in float64, which has the numbers of the tree `x0` in order; a complex
    leaf has its real parts first, then its imaginary parts. Vectors from SciPy are
    copied, and results are new arrays. Value and gradient at one point cost one
    evaluation of both, a product about two gradients, and a dense Hessian about $n$
    products at most. Each kind of callback is compiled once.

    SciPy's tolerances are made for float64. Variables of lower precision keep their
    dtype, and a `PrecisionWarning` says so.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number. The
            values that it captures are those of this moment: later changes have no
            effect.
        x0: Starting point: any pytree. Floating and complex leaves are the variables;
            integers, strings and functions pass through.
        *args: Further arguments of `f`, held fixed.
        has_aux: Whether `f` returns `(y, aux)`; see `ScipyProblem.aux`.

    Returns:
        A `ScipyProblem`: call its `minimize`, or pass its methods to SciPy.

    Raises:
        DtypeError: If nothing in `x0` can be differentiated.
        OutputError: If `f` returns anything but one real floating-point number.
        ModeError: If `f` has no derivative.

    Example:
        >>> from hotk.interop import scipy_problem
        >>> f = lambda x: jnp.sum((x["a"] - 3.0) ** 4) + x["b"] ** 2
        >>> with jax.enable_x64(True):
        ...     x0 = {"a": jnp.zeros(2), "b": jnp.array(1.0)}
        ...     problem = scipy_problem(f, x0)
        ...     result = problem.minimize("trust-ncg", gtol=1e-12)
        >>> result.success, result.tree["a"].round(3).tolist()
        (True, [3.0, 3.0])
        >>> problem.x0.tolist()
        [0.0, 0.0, 1.0]
    """
    return ScipyProblem(f, x0, *args, has_aux=has_aux)


@final
class ScipyProblem(AbstractProblem):
    """A function and its derivatives at flat NumPy vectors, as callbacks for SciPy.

    `scipy_problem` makes one, and says what the callbacks compute. They take a vector
    of shape `(n,)`, a list of numbers, or a column.

    Attributes:
        n: The number of variables.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number.
        x0: Starting point: any pytree.
        *args: Further arguments of `f`, held fixed.
        has_aux: Whether `f` returns `(y, aux)`.

    Example:
        >>> from hotk.interop import ScipyProblem
        >>> with jax.enable_x64(True):
        ...     problem = ScipyProblem(lambda x: jnp.sum(x**3), jnp.array([1.0, 2.0]))
        ...     y, gradient = problem.fun([1.0, 2.0]), problem.jac([1.0, 2.0])
        ...     product = problem.hessp([1.0, 2.0], [1.0, 0.0])
        >>> y, gradient.tolist(), product.tolist()
        (9.0, [3.0, 12.0], [6.0, 0.0])
    """

    def __init__(
        self, f: Function, x0: Point, *args: PyTree, has_aux: bool = False
    ) -> None:
        """Prepare value and gradient; the Hessian follows when it is asked for."""
        super().__init__(_CALL, f, x0)
        self._has_aux = has_aux
        embedded = self._coordinates.embed(f, args)
        self._value_and_gradient = value_and_gradient.prepare(
            embedded, self._like, has_aux=has_aux
        )
        self._function = freeze(embedded, [self._value_and_gradient], self._like)
        warn_of_low_precision(_CALL, self._coordinates.layout)

    def fun(self, z: npt.ArrayLike) -> float:
        """Return the value of the function.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The value. NaN and infinities are returned, not raised: SciPy's line
            searches step back from them.
        """
        return self._values_at(z)[0]

    def jac(self, z: npt.ArrayLike) -> Float[np.ndarray, "n"]:
        """Return the gradient, which was computed together with the value.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The gradient, a new array.
        """
        return self._values_at(z)[1].copy()

    def aux(self, z: npt.ArrayLike) -> PyTree:
        """Return the auxiliary output of the function.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            What the function returned besides its value; `None` without `has_aux`.
        """
        return self._values_at(z)[2]

    def hessp(self, z: npt.ArrayLike, p: npt.ArrayLike) -> Float[np.ndarray, "n"]:
        """Return the Hessian-vector product.

        Args:
            z: The point, of shape `(n,)`.
            p: The direction, of shape `(n,)`.

        Returns:
            The Hessian at `z` times `p`, a new array.
        """
        point = self._last.at(z)
        direction = self._coordinates.layout.split(self._coordinates.vector("p", p))
        product = self._hvp(point.parts, direction)
        return self._coordinates.layout.join(product[0] if self._has_aux else product)

    def hess(self, z: npt.ArrayLike) -> Float[np.ndarray, "n n"]:
        """Return the dense Hessian.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            The Hessian, a new array, symmetric to the last bit.

        Raises:
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        blocks = self._hessian(self._last.at(z).parts)
        return self._coordinates.layout.dense(blocks[0] if self._has_aux else blocks)

    def sparse_hess(self, z: npt.ArrayLike) -> Any:
        """Return the Hessian as a sparse matrix, as `trust-constr` takes it for `hess`.

        Args:
            z: The point, of shape `(n,)`.

        Returns:
            A `scipy.sparse.csr_array`, by `hotk.sparse_hessian`; a dense array if more
            than a tenth of all entries are in the pattern.

        Raises:
            TooLargeError: If it is dense and would exceed `hotk.memory_budget()`.
        """
        matrix = self._sparse_hessian(self._last.at(z).parts)
        return for_scipy(matrix[0] if self._has_aux else matrix)

    def minimize(
        self,
        method: str | Callable[..., object] = "trust-ncg",
        *,
        tol: float | None = None,
        bounds: Bounds | None = None,
        constraints: Constraint | Sequence[Constraint] = (),
        callback: Callable[..., object] | None = None,
        options: Mapping[str, object] | None = None,
        **more: object,
    ) -> scipy.optimize.OptimizeResult:
        """Minimize the function with `scipy.optimize.minimize`.

        A method gets the derivatives that it uses.

        Args:
            method: One of SciPy's methods, or a function, as SciPy takes it.
                `"dogleg"` and `"trust-exact"` get the dense Hessian, the other methods
                of second order its products. From 2000 variables on
                `"trust-constr"` gets a sparse Hessian if the program shows one.
            tol: The tolerance of the method.
            bounds: Bounds of the flat vector, as SciPy takes them; or a tuple of two
                trees like `x0`, the lower and the upper bounds, with numbers or arrays.
            constraints: Constraints on the flat vector, as SciPy takes them.
            callback: Called after each iteration, as SciPy does.
            options: Options of the method, such as `gtol` or `maxiter`.
            **more: Further options, by name.

        Returns:
            The result of SciPy, with one more entry: `tree`, the solution as a tree.

        Raises:
            TypeError: If something is given that the problem itself gives to SciPy.
            TooLargeError: If the method needs a dense Hessian that would exceed
                `hotk.memory_budget()`.
        """
        bounds, options = self._given(bounds, options, more)
        name = method.lower() if isinstance(method, str) else ""
        derivatives: dict[str, Callable[..., Any]] = {}
        if name not in _VALUES_ONLY:
            derivatives["jac"] = self.jac
        if name in _DENSE_HESSIAN:
            derivatives["hess"] = self.hess
        elif name == "trust-constr" and self._is_sparse:
            derivatives["hess"] = self.sparse_hess
        elif name not in (*_VALUES_ONLY, *_GRADIENT_ONLY):
            derivatives["hessp"] = self.hessp
        result = scipy.optimize.minimize(
            self.fun,
            self.x0,
            method=method,
            tol=tol,
            bounds=bounds,
            constraints=constraints,
            callback=callback,
            options=options,
            **derivatives,
        )
        result["tree"] = self.unravel(result.x)
        return result

    def __repr__(self) -> str:
        """Show function and size."""
        return f"ScipyProblem({self._name}, n={self.n})"

    def _values_at(self, z: npt.ArrayLike) -> Values:
        return self._last.at(z).get("values", self._evaluate)

    def _evaluate(self, parts: list[Leaf]) -> Values:
        y, gradient = self._value_and_gradient(parts)
        y, aux = y if self._has_aux else (y, None)
        return float(y), self._coordinates.layout.join(gradient), aux

    @functools.cached_property
    def _is_sparse(self) -> bool:
        """Whether the Hessian of many variables is sparse; it is asked once."""
        if self.n < _LARGE:
            return False
        f = self._function
        value = (lambda parts: f(parts)[0]) if self._has_aux else f
        return hessian_if_sparse(value, self._last.at(self.x0).parts) is not None

    # Prepared at first use: most methods need one of the three, some none.
    @functools.cached_property
    def _hvp(self) -> Prepared:
        like, aux = self._like, self._has_aux
        direction = self._coordinates.layout.split(self._coordinates.start)
        return hvp.prepare(self._function, like, direction, has_aux=aux)

    @functools.cached_property
    def _hessian(self) -> Prepared:
        return hessian.prepare(self._function, self._like, has_aux=self._has_aux)

    @functools.cached_property
    def _sparse_hessian(self) -> Prepared:
        return sparse_hessian.prepare(self._function, self._like, has_aux=self._has_aux)
