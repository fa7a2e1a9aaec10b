"""`Fit`: what a regression found, and how it shows."""

from typing import Any, Generic, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from hotk._core import (
    AbstractReport,
    Function,
    Scalar,
    Selection,
    V,
    Vector,
    describe,
    message,
    names_ours,
    nan_on_purpose,
)
from hotk.curvature import LeastSquares
from hotk.optim import Minimum, Stop

from ._interval import Interval, quantile, rows_of
from ._normal import NormalApproximation
from ._parameters import name_of
from ._profile import profile_intervals
from ._regression import Regression, as_data


# Correlations above this are told, and the largest of them alone.
_CORRELATED, _MOST_PAIRS = 0.9, 5


@final
class Fit(AbstractReport, Generic[V]):
    r"""What `hotk.statistics.fit` found. It shows as a table.

    In what follows $r_i$ are the m residuals in units of `sigma`, and n is the number
    of parameters.

    Attributes:
        x: The estimate, the whole point, with the structure of the start.
        minimum: What `hotk.optim.minimize` returned: steps, history, why it stopped.
        distribution: The normal distribution of the estimate, a
            `hotk.statistics.NormalApproximation`, with `sample` and `covariance_of`.
        residuals: $y - f(\hat p, x)$, an array like `y`, not divided by `sigma`.
        residual_std: $s = \sqrt{\sum_i r_i^2 / (m - n)}$, the standard deviation of the
            data in units of `sigma`. For a robust loss it is the median of $|r_i|$ over
            0.6745, which outliers do not enlarge.
        r_squared: One less the ratio of $\sum_i r_i^2$ to that of the best constant.
            NaN for a robust loss, as are `aic` and `bic`.
        aic: Akaike's criterion $m \log(\sum_i r_i^2 / m) + 2 n$, as lmfit has it. That
            of the normal likelihood has $m (1 + \log 2 \pi)$ more, as in statsmodels.
        bic: $m \log(\sum_i r_i^2 / m) + n \log m$.
        regression: The model with its data.
        dof: Degrees of freedom, m - n.
        absolute_sigma: Whether `sigma` were the standard deviations themselves.
    """

    x: V
    minimum: Minimum[V]
    distribution: NormalApproximation[V]
    residuals: Float[Array, "..."]
    residual_std: Scalar
    r_squared: Scalar
    aic: Scalar
    bic: Scalar
    regression: Regression
    dof: int = eqx.field(static=True)
    absolute_sigma: bool = eqx.field(static=True)

    @property
    def converged(self) -> Bool[Array, ""]:
        """Whether the minimization converged."""
        return self.minimum.converged

    @property
    def reason(self) -> Stop:
        """Why the minimization stopped."""
        return self.minimum.reason

    @property
    def covariance(self) -> Float[Array, "n n"]:
        """The covariance matrix, in the order of `distribution.index`."""
        return self.distribution.covariance

    @property
    def correlation(self) -> Float[Array, "n n"]:
        """The correlation matrix, in the order of `distribution.index`."""
        return self.distribution.correlation

    @property
    def standard_errors(self) -> V:
        """The standard errors: a tree like the parameters, NaN at a bound."""
        return self._within(self.distribution.standard_errors)

    @property
    def _degrees(self) -> int | None:
        return None if self.absolute_sigma else self.dof

    def interval(
        self, function: Function | None = None, *args: PyTree, level: float = 0.95
    ) -> Interval:
        """Compute intervals of the parameters, or of a function of them.

        They are by Student's t distribution with `dof` degrees of freedom, and by the
        normal one with `absolute_sigma=True`; a function is linearized. A parameter at
        its bound has none: NaN.

        Args:
            function: `function(parameters, *args)`, which returns a tree of real
                arrays. The parameters themselves if left out.
            *args: Further arguments of the function.
            level: The probability that an interval covers the truth.

        Returns:
            An `Interval`; see `NormalApproximation.interval`.
        """
        degrees = self._degrees
        found = self.distribution.interval(
            function, *args, level=level, degrees=degrees
        )
        if function is not None or self.minimum.active is None:
            return found
        get = lambda found: (found.standard_errors, found.lower, found.upper)
        return eqx.tree_at(get, found, tuple(map(self._within, get(found))))

    @names_ours
    def band(
        self,
        x: PyTree,
        level: float = 0.95,
        *,
        kind: Literal["confidence", "prediction"] = "confidence",
        sigma: ArrayLike | None = None,
    ) -> Interval:
        r"""Compute the band around the curve, by the delta method.

        At each point of `x` it is $f \pm t \sqrt{j^T \Sigma j}$ with the gradient j of
        the model by the parameters; for new data $s^2 \sigma^2$ is added to the
        variance, and $\sigma^2$ with `absolute_sigma=True`.

        Args:
            x: What the model takes besides the parameters, as in the fit.
            level: The probability that the interval at one point covers the truth.
            kind: `"confidence"` for the curve, or `"prediction"` for new data.
            sigma: The standard deviations of new data, as in the fit; if left out, the
                one that the fit was given, or 1.

        Returns:
            An `Interval`: value, standard errors, lower and upper limits, each an array
            like the value of the model.

        Raises:
            ValueError: If there is no such kind, or the fit was given a standard
                deviation for each of the data, and none is given here.
        """
        variance: Any = 0.0
        if kind not in ("confidence", "prediction"):
            raise ValueError(f"kind {kind!r} is not 'confidence' or 'prediction'.")
        if kind == "prediction":
            variance = self._noise(sigma) ** 2
        return self.distribution.predict(
            self.regression.model,
            as_data(x),
            noise_variance=variance,
            level=level,
            degrees=self._degrees,
        )

    @names_ours
    def profile(
        self,
        function: Function | None = None,
        *,
        part: Any = "",
        level: float = 0.95,
        max_refits: int = 40,
    ) -> Interval:
        r"""Compute profile intervals, which follow the curvature of the model.

        The limits are where the least sum of squares with one parameter held is $s^2
        t^2$ above the smallest, for the quantile t of `interval` [1]: those of an F
        test, which lmfit computes by `conf_interval` and R by `confint`. They may lie
        outside of bounds.

        Args:
            function: `function(parameters)`, a quantity to profile in place of the
                parameters.
            part: Which entries; see `hotk.statistics.profile_intervals`.
            level: The probability that an interval covers the truth.
            max_refits: The most fits for one limit.

        Returns:
            An `Interval`.

        Raises:
            ValueError: For a robust loss, whose rise has no such distribution, and if a
                parameter is at its bound.
            TypeError: If `function` is not a function.

        References:
            [1] Bates and Watts (1988). Nonlinear Regression Analysis and Its
                Applications. Wiley. Section 6.1.
        """
        if function is not None and not callable(function):
            raise TypeError(
                f"`profile(function)`: {describe(function)} is not a function. Write "
                f"`profile(part={function!r})` for a part of the parameters."
            )
        if self.regression.robust:
            raise ValueError(
                "`profile()`: profiles are those of least squares, and the loss is "
                f"{self.regression.loss_name!r}. Use `interval()`."
            )
        if names := self._at_bounds():
            raise ValueError(
                f"`profile()`: {', '.join(names)} at a bound, which a profile would "
                "leave. Use `interval()`, or hold it by `where=`."
            )
        wider = quantile(level, self._degrees) / quantile(level, None)
        s = 1.0 if self.absolute_sigma else float(self.residual_std)
        selected = self.distribution.selected
        found = profile_intervals(
            LeastSquares(self.regression.roots),
            self.x,
            function=function,
            part=part,
            level=level,
            scale=1 / (s * wider) ** 2,
            where=None if selected is None else Selection(selected),
            max_refits=max_refits,
        )
        errors = jax.tree.map(lambda a: a / wider, found.standard_errors)
        return eqx.tree_at(lambda found: found.standard_errors, found, errors)

    def _within(self, tree: Vector) -> Vector:
        """Replace by NaN what belongs to a parameter at its bound."""
        if self.minimum.active is None:
            return tree
        active = jax.tree.unflatten(
            jax.tree.structure(tree), jax.tree.leaves(self.minimum.active)
        )
        with nan_on_purpose():
            free = lambda a, i: jnp.where(i == 0, a, jnp.nan)
            return jax.tree.map(free, tree, active)

    def _at_bounds(self) -> list[str]:
        """Name the parameters that are at a bound."""
        if self.minimum.active is None:
            return []
        like = self.distribution.covariance_operator.like
        active = [np.ravel(a) for a in jax.tree.leaves(self.minimum.active)]
        places = np.flatnonzero(np.concatenate(active))
        return [name_of(like, int(i)) for i in places]

    def _noise(self, sigma: ArrayLike | None) -> Any:
        """Return the standard deviation of new data."""
        scale = 1.0 if self.absolute_sigma else self.residual_std
        of_fit = self.regression.sigma
        if sigma is None and of_fit is None:
            return scale
        if sigma is None and of_fit is not None and of_fit.ndim:
            raise ValueError(
                message(
                    "band(x, kind='prediction')",
                    "the data of the fit have different errors.",
                    expected="`sigma=`, the standard deviations of new data",
                    got="none",
                    fix="Give a number, or an array like the value of the model.",
                )
            )
        return scale * jnp.asarray(of_fit if sigma is None else sigma)

    # ----- How it shows

    def _first_lines(self) -> list[str]:
        if bool(self.converged):
            return []
        return [f"not converged: {self.reason}"]

    def _head(self) -> tuple[str, ...]:
        name, estimate, error, *limits = self.interval()._head()
        return name, estimate, error, "t", *limits

    def _rows(self) -> list[tuple[str, ...]]:
        found = self.interval()
        value, errors = (
            jax.tree.map(np.asarray, a) for a in (found.value, found.standard_errors)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            t = jax.tree.map(np.divide, value, errors)
        return rows_of(value, errors, t, found.lower, found.upper)

    def _lines(self) -> list[str]:
        numbers = f"{self.residuals.size} data, residual std {self.residual_std:.5g}"
        if not self.regression.robust:
            numbers += f", R2 {self.r_squared:.6g}"
            numbers += f", AIC {self.aic:.6g}, BIC {self.bic:.6g}"
        names = ", ".join(self._at_bounds())
        held = [f"at a bound, and held there: {names}"] if names else []
        stopped = f"{int(self.minimum.steps)} steps: {self.reason}"
        return [*self.interval()._lines(), numbers, *held, *self._correlated(), stopped]

    def _correlated(self) -> list[str]:
        """Name the pairs of parameters that are hardly told apart."""
        matrix = np.tril(np.asarray(self.correlation), -1)
        like = self.distribution.covariance_operator.like
        order = np.argsort(-np.abs(matrix), axis=None)[:_MOST_PAIRS]
        return [
            f"correlation {matrix[i, j]:.4f} of {name_of(like, int(j))} and "
            f"{name_of(like, int(i))}"
            for i, j in zip(*np.unravel_index(order, matrix.shape), strict=True)
            if abs(matrix[i, j]) > _CORRELATED
        ]
