"""`LeastSquares`: half a sum of squares, with its Gauss-Newton matrix."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from hotk._core import Function, Point, Scalar, message

from ._gauss_newton import GaussNewton
from ._per_example import PerExample
from ._sample_rows import Roots, roots_of_squares, with_rows


@final
class LeastSquares(eqx.Module):
    r"""The function $\|r(x)\|^2 / 2$ whose Hessian is the Gauss-Newton matrix $J^T J$.

    With examples, r contains the residuals of all examples, $r(x, e_1), \ldots,
    r(x, e_N)$. Optimizers then know the rows of J, and `hotk.optim.levenberg_marquardt`
    solves systems of size N instead of n if these cost less.

    Attributes:
        residual_fn: Function `residual_fn(x, *args)` that returns a tree of residuals;
            with examples `residual_fn(x, example, *args)`, which returns one array, or
            a tuple of such functions.
        examples: A tree of arrays with one leading axis, or a tuple of such trees;
            `None` for a function of all residuals. See `PerExample`.

    Example:
        >>> t = jnp.array([0.0, 1.0, 2.0])
        >>> y = jnp.array([1.0, 2.0, 4.0])
        >>> r = lambda p, e: p["a"] * jnp.exp(p["b"] * e["t"]) - e["y"]
        >>> f = hotk.curvature.LeastSquares(r, {"t": t, "y": y})
        >>> p0 = {"a": jnp.array(1.5), "b": jnp.array(0.0)}
        >>> transform = hotk.optim.levenberg_marquardt()
        >>> found = hotk.optim.minimize(f, p0, transform, tol=1e-5)
        >>> round(float(found.x["a"]), 3), round(float(found.x["b"]), 3)
        (1.0, 0.693)

    References:
        Nocedal and Wright (2006). Numerical Optimization, 2nd ed. Section 10.3.
    """

    residual_fn: Function | tuple[Function, ...]
    examples: PyTree = None

    def __call__(self, x: Point, *args: PyTree) -> Scalar:
        """Return half the sum of squares.

        Args:
            x: The point.
            *args: Further arguments of the residuals.
        """
        if self.examples is None:
            if not callable(self.residual_fn):
                raise TypeError(
                    message(
                        "LeastSquares(residual_fn, examples)(x)",
                        "there are several residual functions, and no examples.",
                        expected="`examples`: a tuple with a tree for each function",
                        got=f"{len(self.residual_fn)} functions and no examples",
                        fix="Give `examples=(e1, e2)`; or one function that returns a "
                        "tree of all residuals.",
                    )
                )
            value = GaussNewton(self.residual_fn, _half_square)(x, *args)
            residual_fn = self.residual_fn
            return with_rows(value, residual_fn, x, args, _as_vector, squares=True)
        model = PerExample(self.residual_fn, self.examples)
        value = GaussNewton(model, _half_square)(x, *args)
        return with_rows(value, model, x, args, roots_of_squares, squares=True)


def _as_vector(r: PyTree) -> Roots:
    """Return all residuals as one vector, of the widest dtype."""
    with jax.numpy_dtype_promotion("standard"):
        flat = ravel_pytree(r)[0]
    return Roots(flat, flat)


def _half_square(r: PyTree) -> Scalar:
    return jnp.asarray(sum(jnp.sum(a * a) for a in jax.tree.leaves(r)) / 2)
