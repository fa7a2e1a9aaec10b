"""`Regression`: a model with its data, residuals in units of their errors, losses."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    Function,
    Point,
    Scalar,
    StructureError,
    describe,
    from_host,
    message,
)


Loss: TypeAlias = Literal["linear", "soft_l1", "huber", "cauchy", "arctan"]

CALL = "fit(model, x, y, p0)"
_OF_CURVE_FIT = (
    "`fit` calls the model with two arguments, `model(p, x)`: the parameters as `p0` "
    "has them, and `x`. For a model of `scipy.optimize.curve_fit`, which is called as "
    "`f(x, *p)`, write `fit(lambda p, x: f(x, *p), ...)`."
)


def as_data(x: PyTree) -> PyTree:
    """Return what a model takes besides the parameters: a list of numbers is one array.

    Arrays of NumPy are copied: who fits in a loop may fill the same one again.
    """
    if isinstance(x, (list, tuple)) and all(
        isinstance(a, (int, float)) for a in jax.tree.leaves(x)
    ):
        x = np.asarray(x)
    return jax.tree.map(_as_array, x)


def _as_array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) or not hasattr(leaf, "__array__"):
        return leaf
    return from_host(np.asarray(leaf))


@final
class Regression(eqx.Module):
    """A model, its data, and the error of each of them.

    Attributes:
        model: `model(p, x)`, which returns an array like `y`.
        x: What the model takes besides the parameters.
        y: The data.
        sigma: Their errors: none, a number, an array like `y`, or the lower factor of
            their covariance.
        f_scale: C, where a robust loss begins to differ from a square.
        loss: The loss.
    """

    model: Function
    x: PyTree
    y: Float[Array, "..."]
    sigma: Float[Array, "..."] | None
    f_scale: Scalar
    loss: "RobustLoss" = eqx.field(static=True)

    @property
    def robust(self) -> bool:
        """Whether the loss is not half a square."""
        return self.loss is not LOSSES["linear"]

    @property
    def loss_name(self) -> str:
        """The name of the loss."""
        # No field: as functions losses are static, and a string would be one that
        # changes, of which hotk warns.
        return next(name for name, loss in LOSSES.items() if loss is self.loss)

    def difference(self, p: Point) -> Float[Array, "..."]:
        """Return the model less the data."""
        try:
            output = self.model(p, self.x)
        except TypeError as error:
            # raised by the call itself, and not within the model
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                error.add_note(_OF_CURVE_FIT)
            raise
        if not (hasattr(output, "shape") and output.shape == self.y.shape):
            raise StructureError(
                message(
                    CALL,
                    "the model must return an array of the shape of `y`.",
                    expected=f"`model(p, x)` like {describe(self.y)}",
                    got=describe(output),
                    fix="The model takes the parameters first and the whole of `x`, "
                    "as in `lambda p, x: p['a'] * jnp.exp(p['b'] * x)`.",
                )
            )
        with jax.numpy_dtype_promotion("standard"):
            return output - self.y

    def in_errors(self, a: Float[Array, "..."]) -> Float[Array, " m"]:
        """Return an array like `y` in units of the errors, flat."""
        flat = a.reshape(-1)
        if self.sigma is None:
            return flat
        sigma = self.sigma.astype(a.dtype)
        if sigma.shape in ((), self.y.shape):
            return (a / sigma).reshape(-1)
        return jax.scipy.linalg.solve_triangular(sigma, flat, lower=True)

    def residuals(self, p: Point) -> tuple[Float[Array, " m"], Any]:
        """Return the residuals in units of the errors, and what statistics need.

        These are the data less the model, and the data and ones in units of the errors.
        """
        difference = self.difference(p)
        y = self.y.astype(difference.dtype)
        of_data = self.in_errors(y), self.in_errors(jnp.ones_like(y))
        return self.in_errors(difference), (-difference, *of_data)

    def roots(self, p: Point) -> Float[Array, " m"]:
        r"""Return what half the sum of squares of is the objective.

        These are $\pm C \sqrt{\rho(r^2 / C^2)}$ with the sign of r, which is smooth
        where $\rho$ is: so a sum of robust losses is one of squares.
        """
        r = self.in_errors(self.difference(p))
        if not self.robust:
            return r
        scale = self.f_scale.astype(r.dtype)
        return scale * self.loss.root(r / scale)


class RobustLoss(NamedTuple):
    r"""A loss $\rho(u^2) / 2$ as of `scipy.optimize.least_squares`, of NumPy or JAX.

    Attributes:
        root: $\pm \sqrt{\rho(u^2)}$, with the sign of u; of JAX alone.
        influence: $\psi(u)$, the derivative of the loss.
        slope: That of $\psi$.
    """

    root: Callable[[Any], Any]
    influence: Callable[[Any], Any]
    slope: Callable[[Any], Any]


def _near_one(function: Callable[[Any], Any], u: Array) -> Array:
    # Of f(z) / z the limit at 0 is 1; next to it derivatives would divide by z^2.
    z = u**2
    small = z < jnp.finfo(u.dtype).eps
    z = jnp.where(small, 1, z)
    return u * jnp.where(small, 1, jnp.sqrt(function(z) / z))


def _huber(u: Array) -> Array:
    size = jnp.maximum(jnp.abs(u), 1)
    return jnp.where(jnp.abs(u) <= 1, u, jnp.sign(u) * jnp.sqrt(2 * size - 1))


LOSSES: dict[str, RobustLoss] = {
    "linear": RobustLoss(lambda u: u, lambda u: u, lambda u: u**0),
    "soft_l1": RobustLoss(
        lambda u: u * jnp.sqrt(2 / (1 + jnp.sqrt(1 + u**2))),
        lambda u: u / (1 + u**2) ** 0.5,
        lambda u: (1 + u**2) ** -1.5,
    ),
    "huber": RobustLoss(
        _huber,
        lambda u: (abs(u + 1) - abs(u - 1)) / 2,
        lambda u: (abs(u) <= 1).astype(u.dtype),
    ),
    "cauchy": RobustLoss(
        lambda u: _near_one(jnp.log1p, u),
        lambda u: u / (1 + u**2),
        lambda u: (1 - u**2) / (1 + u**2) ** 2,
    ),
    "arctan": RobustLoss(
        lambda u: _near_one(jnp.arctan, u),
        lambda u: u / (1 + u**4),
        lambda u: (1 - 3 * u**4) / (1 + u**4) ** 2,
    ),
}
