"""`as_lineax`: an operator for lineax's solvers."""

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from hotk._core import DtypeError, Vector, describe_tree, extra, message
from hotk.linop import AbstractOperator, space_of


if TYPE_CHECKING:
    import lineax


_CALL = "as_lineax(operator)"


def as_lineax(
    operator: AbstractOperator, *, positive_semidefinite: bool | None = None
) -> "lineax.FunctionLinearOperator":
    r"""Convert a linear operator to a `lineax.FunctionLinearOperator`.

    It maps $v \mapsto A v$ on the same trees. It has lineax's symmetric tag if the
    operator is symmetric, and its tag for positive semidefinite ones if the operator is
    known to be one (`operator.positive_semidefinite`): Fisher matrices, Gauss-Newton
    matrices of convex losses of `hotk.curvature`, and sums of them with damping.
    Operators of one function at different points share one
    compiled program. lineax does not check tags: its conjugate gradients report success
    on a matrix that is indefinite or contains NaN, where `operator.solve` reports a
    failure. The conversion computes nothing.

    Args:
        operator: A `hotk.AbstractOperator` of a known space, without complex leaves.
        positive_semidefinite: Whether to add the tag of that name, which `lineax.CG`
            and `lineax.Cholesky` require. It is not checked. What is known of the
            operator if left out.

    Returns:
        The `lineax.FunctionLinearOperator`, for `lineax.linear_solve`. Without the tag
        the error of `lineax.CG` names this keyword.

    Raises:
        ImportError: If lineax is not installed.
        TypeError: If the operator has no space of its own, such as `hotk.Identity()`,
            or runs on the host, such as one over batches of data.
        DtypeError: If a leaf is complex: the operator is linear over the real numbers
            only, which no tag of lineax says.
        ValueError: If `positive_semidefinite` is set for an operator that is not
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
    if positive_semidefinite is None:
        positive_semidefinite = operator.symmetric and operator.positive_semidefinite
    if positive_semidefinite and not operator.symmetric:
        raise ValueError(
            f"`{_CALL}`: the operator is not known to be symmetric, so it cannot be "
            "tagged as positive semidefinite."
        )
    tags = [lineax.symmetric_tag] if operator.symmetric else []
    tags += [lineax.positive_semidefinite_tag] if positive_semidefinite else []
    structure = jax.eval_shape(lambda: like)
    # lineax's closure conversion traces the product to a new program at every point.
    # A tree whose leaves are the point (`test_another_point_needs_no_compile`).
    product = jax.tree_util.Partial(_product, operator)
    return _operator_class()(product, structure, tags, closure_convert=False)


class _Unknown(int):
    """`False`, for a question that lineax asks before it refuses an operator.

    Where it needs definiteness it joins two answers by `|`, and raises if both are
    false; elsewhere it takes them one by one. Its own message does not say how an
    operator of hotk gets a tag (`test_the_error_of_cg_names_the_keyword`).
    """

    def __or__(self, other: int) -> int:
        if other:
            return other
        raise ValueError(
            "this solver of lineax needs an operator that is tagged as positive "
            "semidefinite, and hotk does not know whether this one is. If it is, "
            f"write `{_CALL[:-1]}, positive_semidefinite=True)`. If it may be "
            "indefinite, use `operator.solve(b)`."
        )


@functools.cache
def _operator_class() -> "type[lineax.FunctionLinearOperator]":
    """Return the class of operators; lineax may be missing where hotk is imported."""
    lineax = extra("lineax")

    class HotkLinearOperator(lineax.FunctionLinearOperator):
        """A `lineax.FunctionLinearOperator` that was made of an operator of hotk."""

    @lineax.is_positive_semidefinite.register(HotkLinearOperator)
    def _(operator: HotkLinearOperator) -> int:
        return lineax.positive_semidefinite_tag in operator.tags or _Unknown(0)

    return HotkLinearOperator


def _product(operator: AbstractOperator, v: Vector) -> Vector:
    return operator.mv(v)
