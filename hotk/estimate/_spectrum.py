"""The spectral density of a symmetric operator by stochastic Lanczos quadrature."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from hotk._core import AbstractReport
from hotk.prepared import jitted

from ._estimate import Estimate, averaged
from ._probes import checked
from ._quadrature import quadrature


@final
class Spectrum(AbstractReport):
    r"""The spectrum of a symmetric operator as several random starts saw it.

    Each start gives a rule of quadrature: $\mathrm{tr} f(A) / n$ is about
    $\sum_k w_k f(\theta_k)$. The mean over the starts is the estimate, and how much
    they differ gives its error. That error does not hold what too few steps leave out:
    the rule of `m` steps is exact for polynomials of degree `2 m - 1`. The share of an
    isolated eigenvalue is skewed from start to start: two errors of 30 starts cover it
    in about 87 % of all cases, instead of 95 %.

    Attributes:
        nodes: The Ritz values of each start, in ascending order.
        weights: Their weights, of sum one for each start.
        products: How many products with the operator it took.
        size: The dimension `n` of the space.
    """

    nodes: Float[Array, "samples steps"]
    weights: Float[Array, "samples steps"]
    products: Int[Array, ""]
    size: int = eqx.field(static=True)

    @property
    def smallest(self) -> Float[Array, ""]:
        """The smallest Ritz value: not below the smallest eigenvalue."""
        return jnp.min(self.nodes)

    @property
    def largest(self) -> Float[Array, ""]:
        """The largest Ritz value: not above the largest eigenvalue."""
        return jnp.max(self.nodes)

    def integrate(self, fun: Callable[[Any], Any]) -> Estimate:
        r"""Estimate $\mathrm{tr} f(A) = \sum_i f(\lambda_i)$.

        Args:
            fun: A function of an array, entry by entry, such as `jnp.exp`.

        Returns:
            An `Estimate` of the trace: the sum over all eigenvalues, not their mean.
        """
        return _total(self, fun(self.nodes))

    def density(self, grid: Any, width: Any) -> Estimate:
        r"""Estimate the density of eigenvalues, blurred by a normal distribution.

        It is $\frac{1}{n \sigma \sqrt{2 \pi}} \sum_i \exp(-(t - \lambda_i)^2 / 2
        \sigma^2)$, of integral one.

        Args:
            grid: Where: an array of numbers `t`.
            width: The standard deviation $\sigma$ of the blur.

        Returns:
            An `Estimate` with one value and one error for each number of the grid.
        """
        dtype = self.nodes.dtype
        return _density(self, jnp.asarray(grid, dtype), jnp.asarray(width, dtype))

    def cdf(self, grid: Any) -> Estimate:
        """Estimate the share of eigenvalues up to each number of a grid.

        Args:
            grid: An array of numbers.

        Returns:
            An `Estimate` with one value and one error for each number, from 0 to 1.
        """
        return _cdf(self, jnp.asarray(grid, self.nodes.dtype))

    def quantile(self, share: Any) -> Float[Array, "*shares"]:
        """Estimate the number that a share of the eigenvalues does not exceed.

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
        ]

    def __repr__(self) -> str:
        """Write size, range and cost in one line."""
        try:
            low, high = float(self.smallest), float(self.largest)
        except Exception:  # inside of a transformation there are no numbers yet
            return eqx.tree_pformat(self)
        what = f"n={self.size}, from {low:.6g} to {high:.6g}, {self.products} products"
        return f"Spectrum({what})"


def _sums(found: Spectrum, values: Any) -> Any:
    """Integrate by each rule; a node without weight has no say."""
    return jnp.sum(jnp.where(found.weights > 0, found.weights * values, 0), axis=1)


def _averaged(found: Spectrum, samples: Any) -> Estimate:
    mean = averaged(samples, 0, "lanczos quadrature")
    return Estimate(mean.value, mean.error, found.products, mean.method)


def _on(found: Spectrum, grid: Any, each: Callable[[Any], Any]) -> Estimate:
    samples = jax.vmap(lambda t: _sums(found, each(t)), out_axes=1)(grid.ravel())
    return _averaged(found, samples.reshape(-1, *grid.shape))


@jitted
def _total(found: Spectrum, values: Any) -> Estimate:
    scale = jnp.asarray(found.size, found.nodes.dtype)
    return _averaged(found, scale * _sums(found, values))


@jitted
def _density(found: Spectrum, grid: Any, width: Any) -> Estimate:
    peak = 1 / (width * jnp.asarray(2 * jnp.pi, width.dtype) ** 0.5)
    bell = lambda t: peak * jnp.exp(-(((t - found.nodes) / width) ** 2) / 2)
    return _on(found, grid, bell)


@jitted
def _cdf(found: Spectrum, grid: Any) -> Estimate:
    return _on(found, grid, lambda t: (found.nodes <= t).astype(grid.dtype))


@jitted
def _quantile(found: Spectrum, share: Any) -> Any:
    order = jnp.argsort(found.nodes.ravel())
    nodes, weights = found.nodes.ravel()[order], found.weights.ravel()[order]
    reached = jnp.cumsum(weights) / jnp.sum(weights)
    # what rounding takes from a sum of weights is no share
    share -= nodes.size * jnp.finfo(nodes.dtype).eps
    first = jnp.searchsorted(reached, jnp.maximum(share, jnp.min(weights)))
    return nodes[jnp.minimum(first, nodes.size - 1)]


def spectrum(
    operator: Any,
    key: Any,
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
    eigenvalues at the ends are found to all digits, the bulk as a density. It takes
    `samples * steps` products, or fewer where the Krylov spaces are exhausted.

    Args:
        operator: A symmetric operator.
        key: A random key.
        samples: How many random vectors.
        steps: How many products for each; no more than the dimension are made.
        block_size: How many vectors at once, with `steps + 1` vectors of memory each;
            as many as fit in 256 MiB, at least one, if left out.
        progress: Whether to show a bar. It needs `tqdm`, and each step is then a call
            of its own.

    Returns:
        A `Spectrum`: `nodes`, `weights`, and `.density`, `.cdf`, `.quantile`,
        `.integrate`.

    Raises:
        ImportError: If a bar is asked for and `tqdm` is not installed.
        StructureError: If the space has no dimension.
        TypeError: If the operator is not symmetric, or does not know its space, as the
            identity.
        ValueError: If there is no sample or no step, or a bar is asked for inside of a
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
    call = "spectrum(A, key)"
    counts = {"samples": samples, "steps": steps, "block_size": block_size}
    key = checked(call, operator, key, **counts)
    if not operator.symmetric:
        raise TypeError(
            f"`{call}`: the operator is not known to be symmetric: its eigenvalues may "
            "be complex."
        )
    steps = min(steps, operator.size)
    found = quadrature(operator, key, samples, steps, block_size, progress)
    return Spectrum(*found, operator.size)
