"""Names that other libraries have for what hotk has: an error for one says ours."""

from typing import Final


# Of results: from SciPy, jaxopt, optimistix, lmfit, statsmodels and sklearn. The first
# that a class has is named.
_OURS: Final = {
    "fun": ("value",),
    "success": ("converged",),
    **dict.fromkeys(("nit", "n_iter", "num_steps", "iterations"), ("steps",)),
    **dict.fromkeys(("message", "status"), ("reason",)),
    **dict.fromkeys(("popt", "params", "best_values", "beta", "coef_"), ("x",)),
    **dict.fromkeys(("pcov", "covar", "cov", "cov_params"), ("covariance",)),
    **dict.fromkeys(
        ("stderr", "bse", "perr", "std"), ("standard_errors", "standard_error")
    ),
    **dict.fromkeys(("predict", "eval", "get_prediction"), ("band",)),
    **dict.fromkeys(("conf_int", "conf_interval"), ("interval",)),
    "rsquared": ("r_squared",),
    "resid": ("residuals",),
    **dict.fromkeys(("eigenvalues", "eigvals"), ("values",)),
    **dict.fromkeys(("eigenvectors", "eigvecs"), ("vectors",)),
}
# Of the package.
_ELSEWHERE: Final = {
    "grad": "hotk.gradient",
    "value_and_grad": "hotk.value_and_gradient",
    **dict.fromkeys(("jacfwd", "jacrev"), "hotk.jacobian"),
    "vhp": "hotk.hvp",
    "jet": "hotk.taylor",
    "minimize": "hotk.optim.minimize",
    **dict.fromkeys(("fit", "curve_fit"), "hotk.statistics.fit"),
    "least_squares": (
        "hotk.optim.minimize(hotk.curvature.LeastSquares(residuals), x0, "
        "hotk.optim.levenberg_marquardt())"
    ),
    "prepare": "hotk.hvp.prepare(f, x, v)",
    "laplace": "hotk.laplace_approximation",
    "check_grads": "hotk.testing.check",
}


def no_attribute(thing: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have."""
    cls = type(thing)
    text = f"'{cls.__name__}' object has no attribute {name!r}"
    has = {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}
    ours = next((other for other in _OURS.get(name, ()) if other in has), None)
    if ours is not None:
        text += f". Write `.{ours}`."
    return AttributeError(text, name=name, obj=thing)


def no_name(package: object, name: str) -> AttributeError:
    """Return the error for a name that the package does not have."""
    text = f"module 'hotk' has no attribute {name!r}"
    if name in _ELSEWHERE:
        text += f". Write `{_ELSEWHERE[name]}`."
    return AttributeError(text, name=name, obj=package)
