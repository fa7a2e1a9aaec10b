"""The spectral density of a symmetric operator by stochastic Lanczos quadrature."""

from collections.abc import Callable
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from hotk._core import (
    AbstractReport,
    RandomKey,
    StructureError,
    Tracer,
    describe,
    from_host,
    message,
    names_ours,
)
from hotk._prepared import jitted
from hotk.linop import (
    AbstractOperator,
    check_symmetric,
    small_matrix,
    spectrum_of,
)

from ._estimate import Estimate, averaged
from ._gauss import rules
from ._probes import check_arguments
from ._quadrature import Projected, projected


Numbers = float | Real[Array | np.ndarray, "..."]


@final
class Spectrum(AbstractReport):
    r"""The spectral density of a symmetric operator, estimated from random starts.

    Each start gives a rule of quadrature: $\mathrm{tr} f(A) / n$ is about
    $\sum_k w_k f(\theta_k)$. The mean over the starts is the estimate, and their spread
    gives the standard error. It does not contain the error of a finite number of steps:
    the rule of `m` steps is exact for polynomials of degree `2 m - 1`. The weight of an
    isolated eigenvalue has a skewed distribution over the starts: two standard errors
    of 30 starts cover it in about 87 % of all cases, instead of 95 %.

    It is a pytree of arrays, and prints as a table.

    Attributes:
        nodes: The Ritz values of each start, in ascending order.
        weights: Their weights, of sum one for each start.
        products: The number of products with the operator.
        size: The dimension `n` of the space.
        method: `"lanczos quadrature"`; `"exact"` if the nodes are all eigenvalues, of
            equal weights and the same in each row: all standard errors are zero then.

    Example:
        >>> f = lambda x: jnp.sum(jnp.arange(100.0) * x**2) / 2
        >>> H = hotk.HessianOperator(f, jnp.ones(100))
        >>> density = hotk.estimate.spectrum(H, jax.random.key(0), steps=30)
        >>> density.nodes.shape, round(density.cdf(99.5).value.item(), 3)
        ((10, 30), 1.0)
    """

    nodes: Float[Array, "samples steps"]
    weights: Float[Array, "samples steps"]
    products: Int[Array, ""]
    size: int = eqx.field(static=True)
    method: str = eqx.field(static=True, default="lanczos quadrature")

    @property
    def smallest(self) -> Float[Array, ""]:
        """The smallest Ritz value: an upper bound of the smallest eigenvalue."""
        return jnp.min(self.nodes)

    @property
    def largest(self) -> Float[Array, ""]:
        """The largest Ritz value: a lower bound of the largest eigenvalue."""
        return jnp.max(self.nodes)

    def integrate(
        self, fun: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    ) -> Estimate:
        r"""Estimate the trace of a function, $\mathrm{tr} f(A) = \sum_i f(\lambda_i)$.

        Args:
            fun: A function of an array, entry by entry, such as `jnp.exp`.

        Returns:
            An `Estimate` of the trace: the sum over all eigenvalues, not their mean.
        """
        return self.total(fun(self.nodes))

    def total(self, values: Float[Array, "samples steps"]) -> Estimate:
        r"""Estimate the trace of a function from its values at the nodes.

        Args:
            values: One for each node, in the shape of `nodes`.

        Returns:
            An `Estimate`, as of `integrate`.

        Raises:
            StructureError: If there is not one value for each node.
        """
        if np.shape(values) != self.nodes.shape:
            raise StructureError(
                message(
                    "spectrum.total(values)",
                    "there is not one value for each node.",
                    expected=f"an array of shape {self.nodes.shape}",
                    got=describe(values),
                    fix="Write `spectrum.integrate(f)` for a function `f`, or "
                    "`spectrum.total(f(spectrum.nodes))`.",
                )
            )
        return _total(self, values)

    def density(self, grid: Numbers, width: Numbers) -> Estimate:
        r"""Estimate the density of eigenvalues, smoothed by a normal distribution.

        It is $\frac{1}{n \sigma \sqrt{2 \pi}} \sum_i \exp(-(t - \lambda_i)^2 / 2
        \sigma^2)$, of integral one.

        Args:
            grid: The points `t`: an array of any shape.
            width: The standard deviation $\sigma$ of the normal distribution.

        Returns:
            An `Estimate` with one value and one error for each number of the grid.
        """
        dtype = self.nodes.dtype
        return _density(self, jnp.asarray(grid, dtype), jnp.asarray(width, dtype))

    def cdf(self, grid: Numbers) -> Estimate:
        """Estimate the cumulative distribution: the share of eigenvalues up to a point.

        Args:
            grid: The points: an array of any shape.

        Returns:
            An `Estimate` with one value and one error for each number, from 0 to 1.
        """
        return _cdf(self, jnp.asarray(grid, self.nodes.dtype))

    def quantile(self, share: Numbers) -> Float[Array, "*shares"]:
        """Estimate the quantile: the number that a share of eigenvalues is not above.

        Args:
            share: A number from 0 to 1, or an array of such.

        Returns:
            The smallest node at which the mean of the rules reaches the share.
        """
        return _quantile(self, jnp.asarray(share, self.nodes.dtype))

    def _rows(self) -> list[tuple[str, ...]]:
        samples, steps = self.nodes.shape
        return [
            ("dimension", str(self.size)),
            ("samples x steps", f"{samples} x {steps}"),
            ("smallest Ritz value", f"{float(self.smallest):.6g}"),
            ("largest Ritz value", f"{float(self.largest):.6g}"),
            ("median", f"{float(self.quantile(0.5)):.6g}"),
            ("products", str(self.products)),
            ("method", self.method),
        ]

    def __repr__(self) -> str:
        """Write size, range and cost in one line."""
        try:
            low, high = float(self.smallest), float(self.largest)
        except Exception:  # inside of a transformation there are no numbers yet
            return eqx.tree_pformat(self)
        what = f"n={self.size}, from {low:.6g} to {high:.6g}, {self.products} products"
        return f"Spectrum({what})"


def _exact(values: Float[Array, " n"], samples: int) -> Spectrum:
    n = len(values)
    if isinstance(values, Tracer):
        nodes = jnp.tile(values, (samples, 1))
    else:
        nodes = from_host(np.tile(np.asarray(values), (samples, 1)))
    weights = from_host(np.full((samples, n), 1 / n, values.dtype))
    return Spectrum(nodes, weights, from_host(n, np.int32), n, "exact")


def _integrals(
    spectrum: Spectrum, values: Float[Array, "samples steps"]
) -> Float[Array, " samples"]:
    """Integrate by each rule.

    A node of weight zero does not count, whatever the function is there: beyond an
    exhausted Krylov space it may be infinite, and 0 times infinity is NaN.
    """
    weights = spectrum.weights
    return jnp.sum(jnp.where(weights > 0, weights * values, 0), axis=1)


def _averaged(spectrum: Spectrum, samples: Float[Array, "samples *shape"]) -> Estimate:
    estimate = averaged(samples, spectrum.products, spectrum.method)
    if spectrum.method != "exact":
        return estimate
    nothing = jnp.zeros_like(estimate.error)
    return Estimate(estimate.value, nothing, estimate.products, spectrum.method)


def _on_grid(
    spectrum: Spectrum,
    grid: Float[Array, "*shape"],
    kernel: Callable[[Float[Array, ""]], Float[Array, "samples steps"]],
) -> Estimate:
    at = lambda t: _integrals(spectrum, kernel(t))
    samples = jax.vmap(at, out_axes=1)(grid.ravel())
    return _averaged(spectrum, samples.reshape(-1, *grid.shape))


@jitted(quickly="if small")
def trace_of(spectrum: Spectrum, samples: Float[Array, " samples"]) -> Estimate:
    """Estimate a trace from the form of each start."""
    scale = jnp.asarray(spectrum.size, spectrum.nodes.dtype)
    return _averaged(spectrum, scale * samples)


@jitted(quickly="if small")
def _total(spectrum: Spectrum, values: Float[Array, "samples steps"]) -> Estimate:
    return trace_of(spectrum, _integrals(spectrum, values))


@jitted(quickly="if small")
def _density(
    spectrum: Spectrum, grid: Float[Array, "*shape"], width: Float[Array, ""]
) -> Estimate:
    peak = 1 / (width * jnp.asarray(2 * jnp.pi, width.dtype) ** 0.5)
    kernel = lambda t: peak * jnp.exp(-(((t - spectrum.nodes) / width) ** 2) / 2)
    return _on_grid(spectrum, grid, kernel)


@jitted(quickly="if small")
def _cdf(spectrum: Spectrum, grid: Float[Array, "*shape"]) -> Estimate:
    kernel = lambda t: (spectrum.nodes <= t).astype(grid.dtype)
    return _on_grid(spectrum, grid, kernel)


@jitted(quickly="if small")
def _quantile(
    spectrum: Spectrum, share: Float[Array, "*shares"]
) -> Float[Array, "*shares"]:
    order = jnp.argsort(spectrum.nodes.ravel())
    nodes, weights = spectrum.nodes.ravel()[order], spectrum.weights.ravel()[order]
    cumulative = jnp.cumsum(weights) / jnp.sum(weights)
    # a sum of n weights is too small by up to n roundings: without this the quantile of
    # a share that is reached exactly would be one node higher
    share -= nodes.size * jnp.finfo(nodes.dtype).eps
    # of the share 0, the first node that has a weight
    number = jnp.searchsorted(cumulative, jnp.maximum(share, jnp.min(weights)))
    return nodes[jnp.minimum(number, nodes.size - 1)]


@names_ours
def spectrum(
    operator: AbstractOperator,
    key: RandomKey,
    *,
    samples: int = 10,
    steps: int = 50,
    block_size: int | None = None,
    progress: bool = False,
) -> Spectrum:
    r"""Estimate the spectrum of a symmetric operator by stochastic Lanczos quadrature.

    From each of several random vectors `v`, uniform on the sphere, the Lanczos
    iteration with full re-orthogonalization gives a rule of quadrature for
    $v^T f(A) v$, whose mean over `v` is $\mathrm{tr} f(A) / n$ [1]. Isolated
    eigenvalues at the ends converge to all digits, the others to a density. It takes
    `samples * steps` products, or fewer where the Krylov spaces are exhausted. Where
    the space has no more than `steps` dimensions, and no more than 128, it is exact:
    the eigenvalues of the matrix, from `n` products. Inside of `shard_map`, and inside
    of other transformations for data on the host, it is always an estimate.

    Derivatives, in both modes, are those of the eigenvalues, or of the estimate with
    its random vectors held fixed; where rounding repeats a node, those of its whole
    weight. Reverse mode keeps the basis of each step, for a block of vectors at once.

    Args:
        operator: A symmetric operator.
        key: A random key.
        samples: The number of random vectors.
        steps: The number of products for each, at most the dimension of the space.
        block_size: The number of vectors at once, which take the memory of `steps + 1`
            vectors each; if left out, as many as fit in 256 MiB, at least one.
        progress: Whether to show a progress bar. It needs `tqdm`, and each step is then
            a call of its own.

    Returns:
        A `Spectrum`: `nodes`, `weights`, and `.density`, `.cdf`, `.quantile`,
        `.integrate`.

    Raises:
        ImportError: If `progress=True` and `tqdm` is not installed.
        StructureError: If the space has no dimension.
        TypeError: If the operator is not symmetric, or acts on any space, as the
            identity does.
        ValueError: If a count is not positive, or `progress=True` inside of a
            transformation.

    Example:
        >>> f = lambda x: jnp.sum(jnp.arange(100.0) * x**2) / 2
        >>> H = hotk.HessianOperator(f, jnp.ones(100))
        >>> found = hotk.estimate.spectrum(H, jax.random.key(0), steps=30)
        >>> band = found.density(jnp.array([50.0, 150.0]), width=5.0)
        >>> inside, outside = band.value
        >>> bool(abs(inside - 0.01) < 3 * band.error[0]), bool(outside < 1e-9)
        (True, True)

    References:
        [1] Ubaru, Chen and Saad (2017). Fast estimation of tr(f(A)) via stochastic
            Lanczos quadrature. SIAM J. Matrix Anal. Appl. 38(4), 1075-1099.
            Algorithm 1. https://doi.org/10.1137/16M1104974
    """
    return measured(operator, key, samples, steps, block_size, progress)[0]


def measured(
    operator: AbstractOperator,
    key: RandomKey,
    samples: int,
    steps: int,
    block_size: int | None,
    progress: bool,
) -> tuple[Spectrum, Projected | Float[Array, "n n"] | None]:
    """Return a spectrum, and what it was computed from inside of a transformation.

    These are the projected matrices, or the matrix if the spectrum is exact.
    """
    call = "spectrum(A, key)"
    key = check_arguments(call, operator, key)
    check_symmetric(call, operator)
    if operator.size <= steps and not progress:
        # n products at most, and a probe alone would take as many
        values = spectrum_of(operator, over_data=True)
        if values is not None:
            return _exact(values, samples), None
        matrix = small_matrix(operator)
        if matrix is not None:
            return _exact(jnp.linalg.eigvalsh(matrix), samples), matrix
    steps = min(steps, operator.size)
    found = projected(operator, key, samples, steps, block_size, progress)
    nodes, weights = rules(found)
    return Spectrum(nodes, weights, found.products, operator.size), found
