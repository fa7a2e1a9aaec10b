"""`as_lineax`: an operator for lineax's solvers."""

from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import DtypeError, describe_tree, extra, message
from hotk.linop import AbstractOperator, space_of


_CALL = "as_lineax(operator)"


def as_lineax(
    operator: AbstractOperator, *, positive_semidefinite: bool = False
) -> Any:
    r"""Return an operator as a `lineax.FunctionLinearOperator`.

    It maps $v \mapsto A v$ on the same trees, and carries the symmetric tag if the
    operator is symmetric. Operators of one function at different points share what is
    compiled: the point is a leaf. lineax checks no tag: its conjugate gradients
    say "successful" on a matrix that is indefinite or has a NaN; `operator.solve` does
    not.

    Args:
        operator: An operator of a known space, without complex leaves.
        positive_semidefinite: Whether to add that tag, which is not checked;
            `lineax.CG` asks for it.

    Returns:
        The operator of lineax.

    Raises:
        ImportError: If lineax is not installed.
        TypeError: If the operator knows no space, as `hotk.Identity()` alone, or runs
            on the host, as one over batches of data.
        DtypeError: If a leaf is complex: on it the operator is linear for real factors
            only, which lineax has no word for.
        ValueError: If `positive_semidefinite` is asked of an operator that is not
            symmetric.

    Example:
        >>> import lineax
        >>> from hotk.interop import as_lineax
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.array([1.0, 2.0]))
        >>> A = as_lineax(H, positive_semidefinite=True)
        >>> solver = lineax.CG(rtol=1e-6, atol=1e-6)
        >>> x = lineax.linear_solve(A, jnp.array([12.0, 96.0]), solver).value
        >>> x.round(4).tolist()
        [1.0, 2.0]
    """
    lineax = extra("lineax")
    like = space_of(operator)
    if operator.on_host:
        raise TypeError(
            f"`{_CALL}`: lineax compiles its loops, and a product with this operator "
            "is a pass over data on the host: use `operator.solve(b)`."
        )
    if any(map(jnp.iscomplexobj, jax.tree.leaves(like))):
        raise DtypeError(
            message(
                _CALL,
                "the operator acts on complex leaves as on pairs of real ones.",
                expected="real leaves",
                got=describe_tree(like),
                fix="Use `operator.solve(b)` or `as_scipy(operator)`.",
            )
        )
    if positive_semidefinite and not operator.symmetric:
        raise ValueError(
            f"`{_CALL}`: the operator is not known to be symmetric, so it cannot be "
            "tagged as positive semidefinite."
        )
    tags = [lineax.symmetric_tag] if operator.symmetric else []
    tags += [lineax.positive_semidefinite_tag] if positive_semidefinite else []
    structure = jax.eval_shape(lambda: like)
    # Without the conversion, which makes a new program at every point.
    return lineax.FunctionLinearOperator(
        operator.mv, structure, tags, closure_convert=False
    )
