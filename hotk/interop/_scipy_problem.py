"""`scipy_problem`: a function as `scipy.optimize.minimize` wants it."""

import functools
from collections.abc import Callable
from typing import Any, final

import numpy as np
import scipy.optimize
from jaxtyping import Float

from hotk._core import function_name
from hotk.first import value_and_gradient
from hotk.second import hessian, hvp

from ._coordinates import Coordinates
from ._held import held
from ._layout import warn_of_low_precision
from ._points import Point, Points


_CALL = "scipy_problem(f, x0)"
# What each method takes besides values; one that is not here takes what it likes.
_HESSIAN = ("dogleg", "trust-exact")
_GRADIENT = ("cg", "bfgs", "l-bfgs-b", "tnc", "slsqp")
_NOTHING = ("nelder-mead", "powell", "cobyla", "cobyqa")


def scipy_problem(
    f: Callable[..., Any], x0: Any, *args: Any, has_aux: bool = False
) -> "ScipyProblem":
    r"""Return a function as callbacks for `scipy.optimize.minimize`.

    The callbacks compute $f$, $\nabla f$, $\nabla^2 f\,p$ and $\nabla^2 f$ at a flat
    vector $z$ in float64, which has the numbers of the tree `x0` in order; a complex
    leaf stands in it by its real parts, then its imaginary parts. What SciPy gives is
    copied, what it gets are new arrays of its own. Value and gradient at one point are
    one call, and each kind of callback is compiled once. The tolerances of SciPy are
    meant for float64: a variable of lower precision is taken as it is, with a
    `PrecisionWarning`.

    Args:
        f: Function `f(x, *args)` that returns one real floating-point number. It is
            held as it is now.
        x0: Where to begin: any pytree. Floating and complex leaves are variables;
            what else is in it passes through.
        *args: Further arguments of `f`, held fixed.
        has_aux: Whether `f` returns `(y, aux)`; see `ScipyProblem.aux`.

    Returns:
        A `ScipyProblem`.

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
class ScipyProblem:
    """A function at flat NumPy vectors; see `scipy_problem`.

    Attributes:
        n: The number of variables.
    """

    def __init__(
        self, f: Callable[..., Any], x0: Any, *args: Any, has_aux: bool = False
    ) -> None:
        """Hold `f` as it is now, and compile value and gradient."""
        self._name = function_name(f)
        self._space = Coordinates(_CALL, x0)
        self._points = Points(self._space)
        self._has_aux = has_aux
        self.n = self._space.layout.size
        self._like = self._space.point(self._space.start)
        embedded = self._space.embed(f, args)
        self._first = value_and_gradient.prepare(embedded, self._like, has_aux=has_aux)
        self._held = held(embedded, [self._first], self._like)
        warn_of_low_precision(_CALL, self._space.layout, level=4)

    @property
    def x0(self) -> Float[np.ndarray, "n"]:
        """Where to begin, as a new flat vector."""
        return self._space.start.copy()

    def unravel(self, z: Any) -> Any:
        """Return a flat vector as a tree like `x0`: JAX arrays in its dtypes."""
        return self._space.tree(self._space.vector("z", z))

    def fun(self, z: Any) -> float:
        """Return the value, as it is: NaN and infinities too."""
        return self._evaluated(self._points.at(z))[0]

    def jac(self, z: Any) -> Float[np.ndarray, "n"]:
        """Return the gradient, of the call that gave the value."""
        return self._evaluated(self._points.at(z))[1].copy()

    def aux(self, z: Any) -> Any:
        """Return what `f` returned besides its value; `None` without `has_aux`."""
        return self._evaluated(self._points.at(z))[2]

    def hessp(self, z: Any, p: Any) -> Float[np.ndarray, "n"]:
        """Return the Hessian times a vector."""
        point = self._points.at(z)
        direction = self._space.layout.split(self._space.vector("p", p))
        product = self._product(point.parts, direction)
        return self._space.layout.join(product[0] if self._has_aux else product)

    def hess(self, z: Any) -> Float[np.ndarray, "n n"]:
        """Return the Hessian, symmetric to the last bit.

        Raises:
            TooLargeError: If it would exceed `hotk.memory_budget()`.
        """
        blocks = self._hessian(self._points.at(z).parts)
        return self._space.layout.dense(blocks[0] if self._has_aux else blocks)

    def minimize(
        self,
        method: Any = "trust-ncg",
        *,
        tol: float | None = None,
        bounds: Any = None,
        constraints: Any = (),
        callback: Any = None,
        **options: Any,
    ) -> scipy.optimize.OptimizeResult:
        """Minimize by `scipy.optimize.minimize`, which gets the derivatives it can use.

        Args:
            method: One of SciPy's methods. `"dogleg"` and `"trust-exact"` get the dense
                Hessian, the other methods of second order its products.
            tol: The tolerance of the method.
            bounds: Bounds of the flat vector, as SciPy takes them.
            constraints: Constraints on the flat vector, as SciPy takes them.
            callback: Called after each iteration, as SciPy does.
            **options: Options of the method, such as `gtol` or `maxiter`.

        Returns:
            The result of SciPy, with one more entry: `tree`, the solution as a tree.
        """
        name = method.lower() if isinstance(method, str) else ""
        derivatives: dict[str, Any] = {}
        if name not in _NOTHING:
            derivatives["jac"] = self.jac
        if name in _HESSIAN:
            derivatives["hess"] = self.hess
        elif name not in (*_NOTHING, *_GRADIENT):
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

    def _evaluated(self, point: Point) -> tuple[float, Any, Any]:
        return point.get("first", self._evaluate)

    def _evaluate(self, parts: list[Any]) -> tuple[float, Any, Any]:
        y, gradient = self._first(parts)
        y, aux = y if self._has_aux else (y, None)
        return float(y), self._space.layout.join(gradient), aux

    @functools.cached_property
    def _product(self) -> Any:
        like, aux = self._like, self._has_aux
        direction = self._space.layout.split(self._space.start)
        return hvp.prepare(self._held, like, direction, has_aux=aux)

    @functools.cached_property
    def _hessian(self) -> Any:
        return hessian.prepare(self._held, self._like, has_aux=self._has_aux)
