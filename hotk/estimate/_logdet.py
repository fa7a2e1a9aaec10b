"""The logarithm of a determinant by stochastic Lanczos quadrature."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from hotk._core import (
    NotPositiveDefiniteError,
    RandomKey,
    Scalar,
    Tracer,
    from_host,
    message,
    names_ours,
    not_finite,
)
from hotk.linop import AbstractOperator

from ._estimate import Estimate
from ._gauss import logarithms
from ._quadrature import Projected
from ._spectrum import Spectrum, measured, trace_of


@names_ours
def logdet(
    operator: AbstractOperator,
    key: RandomKey,
    *,
    samples: int = 10,
    steps: int = 50,
    block_size: int | None = None,
    progress: bool = False,
) -> Estimate:
    r"""Estimate $\log \det A = \mathrm{tr} \log A$ of a positive definite operator.

    It is the integral of the logarithm over `hotk.estimate.spectrum` [1]. The standard
    error is that of the random vectors. It does not contain the error of a finite
    number `m` of steps, which falls as
    $((\sqrt\kappa - 1) / (\sqrt\kappa + 1))^{2 m}$ for the condition number $\kappa$.

    Args:
        operator: A symmetric, positive definite operator.
        key: A random key.
        samples: The number of random vectors.
        steps: The number of products for each.
        block_size: The number of vectors at once; see `spectrum`.
        progress: Whether to show a progress bar; see `spectrum`.

    Returns:
        An `Estimate` of the natural logarithm; exact, with an error of zero, where
            `spectrum` is, with the derivatives of the determinant.

    Raises:
        NotPositiveDefiniteError: If a Ritz value is not positive by more than rounding,
            with the smallest one as `.smallest`: the operator is then not positive
            definite. If it does not raise, that is no proof that the operator is.
            Inside of a transformation no error is possible: value and error are NaN.
        StructureError: If the space has no dimension.
        TypeError: If the operator is not symmetric, or acts on any space, as the
            identity does.
        ValueError: If `samples` or `steps` is not positive.

    Example:
        >>> f = lambda x: jnp.sum(jnp.exp(jnp.linspace(0, 1, 50)) * x**2) / 2
        >>> H = hotk.HessianOperator(f, jnp.ones(50))
        >>> found = hotk.estimate.logdet(H, jax.random.key(0))
        >>> round(float(found.value), 3), float(found.error)  # exact: n is small
        (25.0, 0.0)

    References:
        [1] Ubaru, Chen and Saad (2017). Fast estimation of tr(f(A)) via stochastic
            Lanczos quadrature. SIAM J. Matrix Anal. Appl. 38(4), 1075-1099.
            https://doi.org/10.1137/16M1104974
    """
    density, matrices = measured(operator, key, samples, steps, block_size, progress)
    if isinstance(density.nodes, Tracer):
        # nodes decide only whether there is a logarithm
        smallest, largest = map(lax.stop_gradient, (density.smallest, density.largest))
        positive = smallest > _limit(density, jnp.maximum(-smallest, largest))
        if isinstance(matrices, Projected):
            trace = trace_of(density, logarithms(matrices))
        else:
            # not by eigenvalues: equal ones have no second derivatives
            pivots = jnp.diagonal(jnp.linalg.cholesky(matrices))
            value = 2 * jnp.sum(jnp.log(pivots))
            error = jnp.zeros_like(value)
            trace = Estimate(value, error, density.products, density.method)
        # a factor: in reverse mode `where` alone would make derivatives zero
        factor = jnp.where(positive, 1, jnp.nan)
        value, error = (a * factor for a in (trace.value, trace.error))
        return Estimate(value, error, trace.products, trace.method)
    nodes = np.asarray(density.nodes)  # by NumPy, of which nothing is compiled
    smallest, largest = float(np.min(nodes)), float(np.max(nodes))
    if not np.isfinite(nodes).all():
        raise NotPositiveDefiniteError(not_finite("logdet(A, key)"), float("nan"))
    limit = float(_limit(density, max(abs(smallest), abs(largest))))
    if not smallest > limit:
        raise NotPositiveDefiniteError(
            message(
                "logdet(A, key)",
                "the operator is not positive definite.",
                expected=f"Ritz values above {limit:.3g}, for rounding",
                got=f"{smallest:.6g} (largest {largest:.6g})",
                fix="Add a multiple of the identity, as in `H + 0.1 * Identity()`, or "
                "use the Gauss-Newton operator.",
            ),
            smallest,
        )
    return density.total(from_host(np.log(np.where(nodes > 0, nodes, 1))))


def _limit(density: Spectrum, largest: Scalar | float) -> Scalar | float:
    """Return what rounding may make of a Ritz value that is zero."""
    return float(jnp.finfo(density.nodes.dtype).eps) * density.nodes.shape[1] * largest
