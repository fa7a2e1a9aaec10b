"""`fit`: a regression in one call."""

import warnings
from collections.abc import Callable
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeAlias,
    cast,
    overload,
)

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path
from jaxtyping import Array, ArrayLike, PyTree

from hotk._core import (
    DtypeError,
    Function,
    Name,
    NotStationaryWarning,
    Numeric,
    Point,
    RealNumber,
    Tree,
    Where,
    X,
    describe,
    in_trace,
    leaf_name,
    manual_axes,
    map_free,
    message,
    names_ours,
    nothing_inexact,
    selection,
    split_point,
)
from hotk._prepared import user_level
from hotk.curvature import LeastSquares
from hotk.optim import Minimum, levenberg_marquardt, minimize

from ._at_solution import fitted
from ._data import refuse_entries, refuse_units, regression_of
from ._fitted import Fit
from ._parameters import refuse_complex, refuse_parts_of_devices
from ._regression import CALL, Loss, Regression


P = ParamSpec("P")
_F: TypeAlias = Callable[..., Any]


class _Fit(Protocol[P]):
    """`fit` as type checkers see it: the estimate is like the start.

    Numbers become arrays, alone and in a dictionary or a list. The overload for trees
    of trees leaves `dict[str, Any]` what it is.
    """

    @overload
    def __call__(
        self,
        model: _F,
        x: PyTree,
        y: ArrayLike,
        p0: ArrayLike,
        *args: P.args,
        **keywords: P.kwargs,
    ) -> Fit[Array]: ...
    @overload
    def __call__(
        self,
        model: _F,
        x: PyTree,
        y: ArrayLike,
        p0: dict[Name, Tree],
        *args: P.args,
        **keywords: P.kwargs,
    ) -> Fit[dict[Name, Tree]]: ...
    @overload
    def __call__(
        self,
        model: _F,
        x: PyTree,
        y: ArrayLike,
        p0: dict[Name, Numeric],
        *args: P.args,
        **keywords: P.kwargs,
    ) -> Fit[dict[Name, Array]]: ...
    @overload
    def __call__(
        self,
        model: _F,
        x: PyTree,
        y: ArrayLike,
        p0: list[Numeric],
        *args: P.args,
        **keywords: P.kwargs,
    ) -> Fit[list[Array]]: ...
    @overload
    def __call__(
        self,
        model: _F,
        x: PyTree,
        y: ArrayLike,
        p0: X,
        *args: P.args,
        **keywords: P.kwargs,
    ) -> Fit[X]: ...


def _like_start(
    function: Callable[Concatenate[_F, PyTree, ArrayLike, Point, P], Fit],
) -> _Fit[P]:
    return cast("_Fit[P]", function)


@_like_start
@names_ours
def fit(
    model: Function,
    x: PyTree,
    y: ArrayLike,
    p0: Point,
    *,
    sigma: ArrayLike | None = None,
    absolute_sigma: bool = False,
    loss: Loss = "linear",
    f_scale: RealNumber = 1.0,
    bounds: tuple[PyTree, PyTree] | None = None,
    max_steps: int = 1000,
    where: Where = None,
) -> Fit:
    r"""Fit a model to data: estimates, standard errors, intervals, bands.

    Minimizes $\frac12 \sum_i C^2 \rho(r_i^2 / C^2)$ with the residuals $r_i = (f(p,
    x)_i - y_i) / \sigma_i$ by `hotk.optim.levenberg_marquardt`. The losses $\rho$ and
    their scale C are those of `scipy.optimize.least_squares`; for `"linear"` it is half
    the sum of squares.

    The covariance of the estimate is $s^2 (J^T J)^{-1}$ with the Jacobian J of the
    residuals, by its QR factorization: $J^T J$ is never formed. For m data and n
    parameters $s^2 = \sum_i r_i^2 / (m - n)$, or 1 with `absolute_sigma=True`, both as
    in `scipy.optimize.curve_fit`. For a robust loss with $\psi(u)$, the derivative of
    $\rho(u^2) / 2$ at $u = r / C$, it is Huber's [1] (7.6.9), with means and the
    variance over the data:
    $$s^2 = C^2 K^2 \frac{\sum_i \psi(u_i)^2 / (m - n)}{\overline{\psi'}^2}, \qquad
    K = 1 + \frac nm \frac{\mathrm{var}\,\psi'}{\overline{\psi'}^2}.$$

    Args:
        model: `model(p, x)`, which returns an array like `y`, for all of `x` at once.
        x: What the model takes besides the parameters: an array, or any tree.
        y: The data: an array of any shape, of finite real numbers.
        p0: The start: any pytree. Its floating leaves are fitted; numbers of Python may
            be integers.
        sigma: The standard deviations of `y`: a number, an array like `y`, or the
            covariance matrix of the flat `y`. Only their ratios matter, unless
            `absolute_sigma` is true.
        absolute_sigma: Whether `sigma` are the standard deviations themselves, so that
            the residuals do not change the covariance.
        loss: `"linear"`, `"soft_l1"`, `"huber"`, `"cauchy"` or `"arctan"`.
        f_scale: C, the residual where a robust loss begins to differ from a square, in
            units of `sigma`.
        bounds: A pair of lower and upper bounds, each a number, `None`, or a tree like
            `p0`; see `hotk.optim.minimize`. A parameter at its bound at the end is held
            there, for the errors of the others, and has no standard error (NaN).
        max_steps: The most steps.
        where: Which leaves of `p0` to fit; see `hotk.Where`. The others stay.

    Returns:
        A `hotk.statistics.Fit`, which shows as a table. `x`, and what follows from it,
        is differentiable by `y`, `sigma`, `x` and what the model captures, as for
        `hotk.optim.minimize`. Inside of a transformation such as `eqx.filter_vmap`, no
        data are refused, and a covariance that does not exist is NaN. A
        `hotk.NotStationaryWarning` is issued if it did not converge.

    Raises:
        NotPositiveDefiniteError: If the data do not determine all parameters. The
            message and `direction` of the error give the combination.
        StructureError: If the model does not return an array like `y`, or `sigma` has
            another shape.
        DtypeError: If a parameter or `y` is complex, an array of `p0` has integers, or
            nothing in it can be fitted.
        TypeError: If `model` is not a function.
        ValueError: If `p0` is outside of the bounds, or a lower one is above its upper
            one; if `x` has NaN, or `y` what is not finite, or the model at `p0`; if
            `sigma` is not positive; if there are too few data; if there is no such
            loss, or `absolute_sigma` is given for a robust one.

    Example:
        >>> x = jnp.linspace(0.0, 3.0, 20)
        >>> y = 2.5 * jnp.exp(-1.3 * x) + 0.1 * jnp.sin(20 * x)
        >>> model = lambda p, x: p["a"] * jnp.exp(-p["b"] * x)
        >>> found = hotk.statistics.fit(model, x, y, {"a": 1.0, "b": 1.0})
        >>> print(f"{found.x['b']:.2f} +- {found.standard_errors['b']:.2f}")
        1.30 +- 0.01
        >>> band = found.band(jnp.array([1.0, 2.0]), kind="prediction")
        >>> print(np.round(band.lower, 1))
        [0.6 0.1]

    References:
        [1] Huber (1981). Robust Statistics. Wiley. Section 7.6.
    """
    regression = regression_of(model, x, y, sigma, loss, f_scale, absolute_sigma)
    p0 = _start(p0, where)
    selected = selection(CALL, p0, where)
    moving = split_point(p0, selected)[0]
    if not jax.tree.leaves(moving):
        raise nothing_inexact(CALL, p0, name="p0", selected=selected)
    refuse_complex(CALL, moving)
    m = regression.y.size
    n = sum(np.size(leaf) for leaf in jax.tree.leaves(moving))
    _refuse_few(m, n, absolute_sigma)
    if manual_axes():
        data = eqx.filter((regression.x, regression.y, regression.sigma), eqx.is_array)
        refuse_parts_of_devices(CALL, data, moving, "data")
    refuse_units(regression)
    found = minimize(
        LeastSquares(regression.roots),
        p0,
        levenberg_marquardt(),
        max_steps=max_steps,
        bounds=bounds,
        where=where,
    )
    if not in_trace():
        _refuse_start(regression, p0, found)
    result = fitted(regression, found, selected, absolute_sigma)
    if not in_trace() and not bool(found.converged):
        text = f"`{CALL}`: the fit did not converge: {found.reason}. Its standard "
        text += "errors mean little. Start nearer, or give a larger `max_steps`."
        warnings.warn(text, NotStationaryWarning, user_level())
    return result


def _start(p0: Point, where: Where) -> Point:
    """Let integers of Python be floating; refuse arrays of integers."""
    is_integer = lambda a: isinstance(a, int) and not isinstance(a, bool)
    p0 = map_free(lambda a: float(a) if is_integer(a) else a, p0)
    for path, leaf in tree_flatten_with_path(p0)[0] if where is None else ():
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jnp.integer):
            name = leaf_name("p0", path)
            raise DtypeError(
                message(
                    CALL,
                    f"`{name}` has integers, which would not be fitted.",
                    expected="floating arrays",
                    got=describe(leaf),
                    fix=f"Convert it, `{name}.astype(float)`; or say by `where=` what "
                    "is fitted.",
                )
            )
    return p0


def _refuse_few(m: int, n: int, absolute_sigma: bool) -> None:
    if m > n or (m == n and absolute_sigma):
        return
    least = "as many data as parameters, at least"
    if not absolute_sigma:
        least = "more data than parameters: the rest tells the size of the errors"
    raise ValueError(
        message(
            CALL,
            "there are too few data.",
            expected=least,
            got=f"{m} numbers in `y`, and {n} parameters",
            fix="Hold parameters by `where=`"
            + (", or give `sigma` and `absolute_sigma=True`." if m == n else "."),
        )
    )


def _refuse_start(regression: Regression, p0: Point, found: Minimum) -> None:
    if np.isfinite(np.asarray(found.history)[0]):
        return
    output = regression.difference(p0) + regression.y
    wrong = lambda a: ~np.isfinite(a)
    fix = "Start elsewhere: `hotk.locate_nan` says where in the model it arises."
    refuse_entries("model(p0, x)", output, wrong, "finite numbers", fix)
    raise ValueError(
        f"`{CALL}`: the sum of squares at `p0` is beyond the largest number: start "
        "nearer."
    )
