"""Which solver an optimizer uses: dense, conjugate gradients, or sparse factors."""

from typing import Literal, TypeAlias

import jax
import numpy as np
import optax
from jaxtyping import PyTree

from hotk._core import Enumeration, Tracer
from hotk.linop import space
from hotk.sparse import SparseMatrix, is_worth_factors, traced_hessian_if_sparse

from ._local import AtPoint


DenseOrSparse: TypeAlias = Literal["auto", "dense", "sparse"]
CgOrSparse: TypeAlias = Literal["auto", "cg", "sparse"]

# With fewer parameters a dense matrix takes milliseconds.
_LARGE = 2000


class LinearSolver(Enumeration):
    """How the systems of a step were solved."""

    dense = "from the whole matrix"
    cg = "by conjugate gradients"
    sparse = "by factors of the sparse matrix"
    samples = "by factors in the space of the samples"
    factored = "by a factor of the Jacobian of the residuals"


def may_be_sparse(choice: str | None, params: PyTree) -> bool:
    """Whether an optimizer looks for a sparse matrix of these parameters."""
    if choice == "auto":
        return space.dimension(params) >= _LARGE
    return choice == "sparse"


def needs_indices(choice: str | None) -> bool:
    """Whether captured integers are static by content, as they decide the pattern.

    Only if a sparse solver was asked for: integers are the labels of a batch as well,
    and a step on other labels is not to be compiled again
    (`test_labels_that_change_compile_nothing`).
    """
    return choice == "sparse"


def check_choice(name: str, choice: str, choices: tuple[str, ...]) -> None:
    """Refuse a solver that there is not.

    Raises:
        ValueError: If it is none of the choices.
    """
    if choice not in choices:
        names = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}`: linear_solver {choice!r} is none of {names}.")


def first_solver(choice: str, otherwise: LinearSolver) -> LinearSolver:
    """Return what stands in a state before the first step."""
    return LinearSolver.sparse if needs_indices(choice) else otherwise


def asks_for_sparse(state: optax.OptState) -> bool:
    """Whether a first state is that of an optimizer with `linear_solver="sparse"`."""
    found = optax.tree_utils.tree_get_all_with_path(state, "solver")
    leaves = [jax.tree.leaves(solver)[0] for _, solver in found]
    [sparse] = map(np.asarray, jax.tree.leaves(LinearSolver.sparse))
    known = [np.asarray(leaf) for leaf in leaves if not isinstance(leaf, Tracer)]
    return any(bool(number == sparse) for number in known)


def sparse_system(
    local: AtPoint, choice: str, *, instead_of_products: bool = False
) -> SparseMatrix | None:
    """Return the Hessian at a point as a sparse matrix, `None` if it is not one.

    Args:
        local: The objective at the point.
        choice: What the optimizer was told.
        instead_of_products: Whether the other way is an iteration, which may be cheaper
            than factors of a sparse matrix.
    """
    if not may_be_sparse(choice, local.x):
        return None
    if space.has_shards(local.x):
        if choice == "sparse":
            space.refuse_shards(local.x)
        return None
    found = traced_hessian_if_sparse(
        local.f, local.x, local.mode, however_dense=choice == "sparse"
    )
    if found is None or choice == "sparse" or not instead_of_products:
        return found
    return found if is_worth_factors(found.pattern) else None
