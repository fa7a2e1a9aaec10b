"""`NormalApproximation`: estimates with a covariance, and what follows from it."""

import math
from typing import Any, Generic, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from hotk._core import (
    AbstractReport,
    Function,
    RandomKey,
    RealNumber,
    Scalar,
    Selection,
    Tracer,
    V,
    Vector,
    describe,
    manual_axes,
    message,
    names_ours,
    split_point,
)
from hotk._dense import name_of
from hotk._first import value_and_jacobian
from hotk.linop import Index, space

from ._covariance import AbstractCovariance, lengths
from ._interval import Interval, around
from ._parameters import jacobian_rows, own_copy_of_devices, refuse_complex


# In standard errors. An interval that is off by a twentieth of its error covers the
# truth as often as it says, to three digits.
SMALL_SHIFT = 0.05


@final
class NormalApproximation(AbstractReport, Generic[V]):
    r"""A normal distribution $N(\hat\theta, \Sigma)$ of parameters around an estimate.

    It is what `hotk.laplace_approximation` and `hotk.statistics.sandwich` return: the
    posterior, or the distribution of the estimate. It is a pytree, and shows as a table
    of estimates, standard errors and intervals, entry by entry.

    Attributes:
        mode: The estimate, the whole point.
        covariance_operator: The covariance $\Sigma$ as an operator: `@`, `diagonal()`,
            `block("w", "b")`, `restrict("w")`.
        potential: The potential at the mode, times `scale`.
        shift: How far the minimum of the quadratic lies from the mode, entry by entry,
            in standard errors: zero at an exact minimum.
        selected: For each leaf of the mode whether it is a parameter; `None` for all
            that are floating.
        method: How the covariance was found.

    Example:
        >>> nll = lambda p: (p["a"] - 1) ** 2 / 8 + (p["b"] - 3) ** 2 / 2
        >>> mode = {"a": jnp.array(1.0), "b": jnp.array(3.0)}
        >>> print(hotk.laplace_approximation(nll, mode))
           estimate  std. error  2.5 %    97.5 %
        -  --------  ----------  -------  ------
        a  1         2           -2.9199  4.9199
        b  3         1           1.04     4.96
        95 % intervals, inverse Hessian (full)
        log evidence 2.531, n = 2
    """

    mode: V
    covariance_operator: AbstractCovariance
    potential: Scalar
    shift: Vector
    selected: tuple[bool, ...] | None = eqx.field(static=True)
    method: str = eqx.field(static=True)

    # ----- Numbers

    @property
    def _parameters(self) -> Vector:
        return jax.tree.map(jnp.asarray, split_point(self.mode, self.selected)[0])

    @property
    def covariance(self) -> Float[Array, "n n"]:
        """The covariance matrix, in the order of `index`."""
        return self.covariance_operator.matrix()

    @property
    def correlation(self) -> Float[Array, "n n"]:
        """The correlation matrix, in the order of `index`; NaN where one is held."""
        return self.covariance_operator.correlation()

    @property
    def standard_errors(self) -> V:
        """The standard errors: a tree like the parameters."""
        covariance = self.covariance_operator
        return space.unflattened(covariance.errors(), covariance.like)

    @property
    def index(self) -> Index:
        """The rows of each parameter in the covariance: `fit.index["w"]`."""
        return self.covariance_operator.index

    @property
    def log_evidence(self) -> Scalar:
        r"""The logarithm of the evidence, by Laplace's approximation.

        $-f(\hat\theta) + \frac n2 \log 2\pi + \frac12 \log\det\Sigma$ for the potential
        f. It is an evidence only if the potential is the negative logarithm of the
        joint density of data and parameters with all its constants, those of the prior
        included.
        """
        n = self.covariance_operator.size
        half = self.covariance_operator.log_determinant / 2
        return half - self.potential + n / 2 * math.log(2 * math.pi)

    @property
    def largest_shift(self) -> Scalar:
        """The largest of the shifts, in standard errors; see `shift`."""
        sizes = [jnp.max(jnp.abs(a), initial=0) for a in jax.tree.leaves(self.shift)]
        return jnp.max(jnp.stack([a.astype(sizes[0].dtype) for a in sizes]))

    @property
    def stationary(self) -> Bool[Array, ""]:
        """Whether all shifts are below a twentieth of a standard error."""
        return self.largest_shift <= SMALL_SHIFT

    # ----- What follows

    @names_ours
    def sample(self, key: RandomKey, shape: int | tuple[int, ...] = ()) -> V:
        """Draw parameters.

        Args:
            key: A random key.
            shape: The number of draws, or a shape of them.

        Returns:
            A tree like the parameters with these axes in front of each leaf, for
            `jax.vmap`; `None` in place of leaves that are no parameters.

        Example:
            >>> fit = hotk.laplace_approximation(lambda x: x @ x, jnp.zeros(2))
            >>> fit.sample(jax.random.key(0), 1000).shape
            (1000, 2)
        """
        shape = tuple(np.atleast_1d(shape).tolist())
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"`sample(key, shape)`: shape {shape} has no draws.")
        covariance = self.covariance_operator
        dtype = space.wide(covariance.dtype)
        count = math.prod(shape)
        noise = jax.random.normal(key, (count, covariance.noise_size), dtype)
        steps = covariance.root(noise.astype(covariance.dtype))
        drawn = jax.vmap(lambda s: space.unflattened(s, covariance.like))(steps)
        moved = lambda a, b: (a[None] + b).reshape(*shape, *a.shape)
        return jax.tree.map(moved, self._parameters, drawn)

    @names_ours
    def interval(
        self,
        function: Function | None = None,
        *args: PyTree,
        level: float = 0.95,
        degrees: float | None = None,
    ) -> Interval:
        r"""Compute intervals of a function of the parameters by the delta method.

        The function is linearized at the mode: with its Jacobian J the variances are
        the diagonal of $J \Sigma J^T$, which is exact for a linear function.

        Args:
            function: `function(parameters, *args)`, which returns a tree of real
                arrays. The parameters themselves if left out.
            *args: Further arguments of the function.
            level: The probability that an interval covers the truth.
            degrees: The degrees of freedom of Student's t distribution, such as
                `N - n`; the normal distribution if left out.

        Returns:
            An `Interval`: value, standard errors, lower and upper limits, each a tree
            like the value of the function.

        Raises:
            ValueError: If `level` is not between 0 and 1.
            DtypeError: If the function returns complex numbers.

        Example:
            >>> nll = lambda p: jnp.sum((p - 1) ** 2) / 2
            >>> fit = hotk.laplace_approximation(nll, jnp.ones(2))
            >>> found = fit.interval(lambda p: p[0] + p[1])
            >>> found.value.item(), round(found.standard_errors.item(), 4)
            (2.0, 1.4142)
        """
        if function is None:
            value, errors = self._parameters, self.standard_errors
            return around(value, errors, level, degrees, self.method)
        value, roots = self._pushed(function, args)
        errors = jax.tree.map(lengths, roots)
        method = f"delta method, {self.method}"
        return around(value, errors, level, degrees, method)

    def covariance_of(self, function: Function, *args: PyTree) -> Float[Array, "m m"]:
        r"""Return the covariance $J \Sigma J^T$ of all values of a function.

        Args:
            function: `function(parameters, *args)`, which returns a tree of real
                arrays.
            *args: Further arguments of the function.

        Returns:
            The matrix, in the order in which the leaves of the value stand, each of
            them flat.

        Raises:
            DtypeError: If the function returns complex numbers.
        """
        _, roots = self._pushed(function, args)
        flat = [r.reshape(-1, r.shape[-1]) for r in jax.tree.leaves(roots)]
        rows = jnp.concatenate(flat)
        return jnp.matmul(rows, rows.T, precision="highest")

    @names_ours
    def predict(
        self,
        model: Function,
        *inputs: PyTree,
        noise_variance: RealNumber = 0.0,
        level: float = 0.95,
        degrees: float | None = None,
    ) -> Interval:
        r"""Predict outputs of a model, with intervals, by its linearization.

        The outputs of $f(\hat\theta) + J (\theta - \hat\theta)$ for a normal
        $\theta$: the mean is the output at the mode, the variance the diagonal of $J
        \Sigma J^T$.

        Args:
            model: `model(parameters, *inputs)`, which returns a tree of real arrays.
            *inputs: Further arguments of the model.
            noise_variance: The variance of an observation around the output, which is
                added: the intervals are then those of new observations.
            level: The probability that an interval covers the truth.
            degrees: The degrees of freedom of Student's t distribution; the normal
                distribution if left out.

        Returns:
            An `Interval`, each field of it a tree like the outputs.

        Raises:
            DtypeError: If the function returns complex numbers.

        Example:
            >>> line = lambda p, t: p[0] + p[1] * t
            >>> t, y = jnp.arange(4.0), jnp.array([1.0, 3.0, 5.0, 7.0])
            >>> nll = lambda p: jnp.sum((line(p, t) - y) ** 2) / 2
            >>> fit = hotk.laplace_approximation(nll, jnp.array([1.0, 2.0]))
            >>> fit.predict(line, jnp.array([1.5, 10.0])).standard_errors.round(3)
            Array([0.5  , 3.834], dtype=float32)
        """
        value, roots = self._pushed(model, inputs)
        total = lambda r: lengths(r) ** 2 + jnp.asarray(noise_variance, r.dtype)
        of_new = lambda r: jnp.sqrt(total(r))
        noisy = isinstance(noise_variance, Tracer) or np.any(noise_variance)
        errors = jax.tree.map(of_new if noisy else lengths, roots)
        method = f"linearized model, {self.method}"
        return around(value, errors, level, degrees, method)

    def _pushed(self, function: Function, args: tuple[PyTree, ...]) -> Any:
        """Return the value of a function, and its Jacobian times the root."""
        if not callable(function):
            raise TypeError(
                message(
                    "interval(function, *args)",
                    "the first argument is a function of the parameters.",
                    expected="a callable",
                    got=describe(function),
                    fix="`level` and `degrees` are keywords, as in "
                    "`fit.interval(level=0.9)`.",
                )
            )
        where = None if self.selected is None else Selection(self.selected)
        mode = self.mode
        if manual_axes():
            mode = own_copy_of_devices(function(mode, *args), mode)
        value, jacobian = value_and_jacobian(function, mode, *args, where=where)
        refuse_complex("interval(function, *args)", value, "values of the function")
        covariance = self.covariance_operator

        def one(y: Array, rows: Array) -> Array:
            rows = covariance.root_transposed(rows.astype(covariance.dtype))
            return rows.reshape(*y.shape, rows.shape[-1])

        outputs = jax.tree.structure(value)
        rows = jacobian_rows(value, jacobian, covariance.like)
        pairs = zip(jax.tree.leaves(value), rows, strict=True)
        return value, outputs.unflatten([one(y, r) for y, r in pairs])

    # ----- How it shows

    def _head(self) -> tuple[str, ...]:
        return self.interval()._head()

    def _rows(self) -> list[tuple[str, ...]]:
        return self.interval()._rows()

    def _lines(self) -> list[str]:
        lines = self.interval()._lines()
        evidence, n = self.log_evidence, self.covariance_operator.size
        what = f"log evidence {float(evidence):.4g}, n = {n}"
        if "sandwich" in self.method:
            what = f"n = {n}"
        lines.append(what)
        if not bool(self.stationary):
            lines.append(shift_text(self.shift, self.covariance_operator.like))
        return lines


def shift_text(shift: Vector, like: Vector) -> str:
    """Say how far the mode is from a minimum."""
    sizes = np.abs(np.asarray(space.flattened(shift)))
    worst = int(np.argmax(sizes))
    where = name_of(like, int(worst))
    return (
        f"the mode is not a minimum: the quadratic there has its minimum "
        f"{sizes[worst]:.2g} standard errors away in {where}"
    )
