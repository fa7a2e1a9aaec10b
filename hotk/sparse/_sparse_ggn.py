"""`sparse_ggn`: the Gauss-Newton matrix as a sparse matrix."""

import functools
import inspect
from collections.abc import Callable
from typing import final

from jaxtyping import PyTree

from hotk._core import Function, Point, Scalar, Where
from hotk._prepared import Prepared
from hotk.curvature import GaussNewton

from ._matrix import SparseMatrix
from ._sparse_hessian import sparse_hessian


Loss = Callable[[PyTree], Scalar]


@final
class SparseGGN:
    """`sparse_ggn`, which is called and prepared like an operator of one function."""

    def __init__(self, function: Callable[..., SparseMatrix]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.__signature__ = inspect.signature(function)

    def __call__(
        self,
        model: Function,
        loss: Loss,
        x: Point,
        *args: PyTree,
        where: Where = None,
    ) -> SparseMatrix:
        """Compute the matrix at `x`."""
        return self._function(model, loss, x, *args, where=where)

    def prepare(
        self,
        model: Function,
        loss: Loss,
        x: Point,
        *args: PyTree,
        where: Where = None,
        on_mismatch: str = "raise",
    ) -> Prepared:
        """Trace and compile the operator once, for this model, loss and signature.

        Args:
            model: The model, held as it is now.
            loss: The loss, likewise.
            x: A point; only its structure, shapes and dtypes matter.
            *args: Further arguments of the model.
            where: Which leaves of `x` to differentiate; see `hotk.Where`.
            on_mismatch: `"raise"`, `"retrace"` or `"cast"`: what to do when it is
                called with another signature.

        Returns:
            An immutable module, called as `prepared(x, *args)`.
        """
        f = GaussNewton(model, loss)
        return sparse_hessian.prepare(f, x, *args, where=where, on_mismatch=on_mismatch)

    def __reduce__(self) -> str:
        """Pickle it by its name, as a function: there is one of each."""
        return vars(self)["__qualname__"]

    def __repr__(self) -> str:
        """Show the call."""
        return "<hotk operator sparse_ggn(model, loss, x)>"


@SparseGGN
def sparse_ggn(
    model: Function,
    loss: Loss,
    x: Point,
    *args: PyTree,
    where: Where = None,
) -> SparseMatrix:
    r"""Compute the Gauss-Newton matrix $J^T \nabla^2 L(z)\, J$ as a sparse matrix.

    Here $z$ is the output of the model and $J$ its Jacobian at `x`. The factors are
    those of the loss: for `jnp.sum(r**2) / 2` of residuals `r` it is $J^T J$. It costs
    a few gradients where the matrix is sparse, and is positive semi-definite where the
    loss is convex. For many points prepare it once: `hotk.sparse_ggn.prepare(model,
    loss, x)` is called as `prepared(x)`.

    Args:
        model: Function `model(x, *args)` that returns a tree of floating arrays.
        loss: Function of that tree that returns one real number.
        x: Point: any pytree. Floating leaves are differentiated.
        *args: Further arguments of the model.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.

    Returns:
        A symmetric `hotk.SparseMatrix`, whose rows and columns are the numbers in `x`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If the loss is not one real floating-point number.
        ModeError: If the model has no forward or no reverse derivative.
        TooLargeError: If the matrix is dense and would exceed the memory budget.

    Example:
        >>> loss = lambda r: jnp.sum(r**2) / 2
        >>> G = hotk.sparse_ggn(jnp.diff, loss, jnp.array([1.0, 2.0, 4.0]))
        >>> G.todense().tolist()
        [[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]

    References:
        Schraudolph (2002). Fast curvature matrix-vector products for second-order
            gradient descent. Neural Computation 14(7), 1723-1738. Section 3.
    """
    return sparse_hessian(GaussNewton(model, loss), x, *args, where=where)
