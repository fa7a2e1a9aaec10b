"""`AbstractPointOperator`: the Hessian of a function at a point."""

import hashlib
import re
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from hotk._capture import Closure, pickled, unpickled
from hotk._core import (
    ARRAY,
    OutputError,
    Point,
    Scalar,
    Selection,
    StructureError,
    Tangent,
    V,
    Vector,
    describe_tree,
    float_scalar,
    in_trace,
    message,
)
from hotk._first import value_and_gradient
from hotk._prepared import jitted
from hotk._second import hvp
from hotk.sparse import SparseMatrix, hessian_if_sparse, sparse_hessian

from . import space
from ._dense import in_rows
from ._entries import Part, VectorEntries
from ._frozen import Selected, moving
from ._matching import matching_arrays, static_parts
from ._operator import AbstractOperator, Restricted
from ._symmetric import AbstractSymmetricOperator


H = TypeVar("H", bound="AbstractPointOperator")
X = TypeVar("X")


class AbstractPointOperator(AbstractSymmetricOperator[V]):
    """The Hessian of a function at a point: products, value, gradient.

    Attributes:
        f: The function as it was when the operator was made.
        x: The point.
        args: Further arguments of the function.
        selected: For each array of the point whether it is differentiated; `None` for
            all that are floating or complex.
    """

    f: eqx.AbstractVar[Closure]
    x: eqx.AbstractVar[V]
    args: eqx.AbstractVar[tuple[PyTree, ...]]
    selected: eqx.AbstractVar[Selected]

    @property
    def like(self) -> V:
        """A vector of the space: the differentiated part of the point."""
        if type(self.x) is ARRAY:  # then that is what is differentiated
            return self.x
        return moving(self.x, self.selected)

    @property
    def where(self) -> Selection | None:
        """The filter that it was made with, for an operator of hotk at this point."""
        return None if self.selected is None else Selection(self.selected)

    @overload
    def __matmul__(self, other: AbstractOperator[V]) -> AbstractOperator[V]: ...
    @overload
    def __matmul__(self, other: ArrayLike) -> Array: ...
    @overload
    def __matmul__(self, other: X) -> X: ...

    def __matmul__(self, other: PyTree) -> PyTree:
        """Return the product with a vector or another operator.

        Args:
            other: See `AbstractOperator.__matmul__`.
        """
        # real arrays alone: nearly as fast as `hvp` itself
        if self.selected is None and not in_trace() and _is_like(other, self.x):
            product = hvp(self.f, self.x, other, *self.args)
            if not _is_like(product, self.x):
                raise _several_outputs(self)
            return product
        return super().__matmul__(other)

    def mv(self, v: Vector) -> Vector:
        r"""Return the Hessian-vector product $\nabla^2 f(x)\, v$."""
        return _product(self, v, batched=False)

    def applied(self, v: Vector) -> Vector:
        """Return the product with one vector: `H @ v` runs the same program."""
        return self.mv(v)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors by one linearization.

        Args:
            vectors: A tree like the space with one leading axis; or flat vectors in the
                order of `index`, the rows of an array of shape `(k, n)`.
            block_size: The number of vectors at once; all if left out. Each block
                linearizes anew.

        Returns:
            The products, with the same leading axis, as trees or as rows.
        """
        if block_size is not None:
            return super().many(vectors, block_size)
        return in_rows(self, vectors, lambda v: _product(self, v, batched=True))

    def sparse(self) -> SparseMatrix:
        """Return the matrix as a sparse one, by `hotk.sparse_hessian`.

        Pattern and values are found together in a few gradients, if the matrix is
        sparse; a dense one takes all products and has an entry everywhere.

        Returns:
            A symmetric `hotk.SparseMatrix`, whose rows and columns are in the order of
            `index`.

        Raises:
            DtypeError: If a differentiated leaf is complex.
            TooLargeError: If the matrix is dense and exceeds `hotk.memory_budget()`.

        Example:
            >>> f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 2) / 2
            >>> A = hotk.HessianOperator(f, jnp.ones(1000)).sparse()
            >>> A.nnz, A.diagonal()[:3].tolist()
            (2998, [1.0, 2.0, 2.0])
        """
        found = sparse_hessian(self.f, self.x, *self.args, where=self.where)
        return found.symmetrized()

    def sparse_or_none(self, like: Vector) -> SparseMatrix | None:
        """Return the matrix if it is sparse; the answer is found once for a program."""
        del like
        return hessian_if_sparse(self.f, self.x, *self.args, where=self.where)

    def restrict(self, part: Part) -> "AbstractPointOperator | Restricted":
        """Return the operator on some entries; see `AbstractOperator.restrict`.

        Of whole leaves it is an operator of this class, as made with `where=`: nothing
        is differentiated by the other leaves.
        """
        entries = VectorEntries.of("H.restrict(part)", self.like, part)
        if not entries.of_whole_leaves:
            return Restricted(self, entries)
        moved = jax.tree.structure(self.x).flatten_up_to(self.like)
        kept = iter(entries.kept)
        selected = tuple(a is not None and next(kept) for a in moved)
        return with_fields(self, selected=selected)

    def take(self, v: PyTree) -> Vector:
        """Return what a vector of the whole space has in this one; see `restrict`.

        Args:
            v: A vector of this space, which may have other leaves as well.

        Raises:
            StructureError: If it has not all leaves of this space.
        """
        return self.vector(v, "H.take(v)")

    def embed(self, v: PyTree) -> Vector:
        """Return a vector of all floating and complex leaves, zero in the others.

        Args:
            v: A vector of this space.

        Raises:
            StructureError: If it is not a vector of this space.
        """
        zeros = space.zeros(moving(self.x, None))
        return eqx.combine(self.vector(v, "H.embed(v)"), zeros)

    def direction(self, v: Vector, *, batched: bool = False) -> Tangent:
        """Return a vector, or several, as a direction that `hvp` takes.

        The leaves that are not differentiated are those of the point.
        """
        is_none = lambda a: a is None
        held = lambda a, moved: a if moved is None else None
        rest = jax.tree.map(held, self.x, self.like, is_leaf=is_none)
        if batched:
            count = len(jax.tree.leaves(v)[0])
            spread = lambda a: jnp.broadcast_to(a, (count, *a.shape))
            rest = jax.tree.map(spread, rest)
        return eqx.combine(v, rest)

    @staticmethod
    def conjugate(product: Tangent) -> Vector:
        """Turn JAX's convention for complex leaves into the real embedding.

        There the operator is symmetric, and a Newton step descends.
        """
        return jax.tree.map(lambda a: a.conj() if jnp.iscomplexobj(a) else a, product)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle it: functions by their names, arrays by value.

        Raises:
            TypeError: If a function is not found by its name, such as a lambda.
        """
        fields = {name: part for name, part in vars(self).items() if name != "f"}
        return _restored, (type(self), pickled(self.f), program_text(self), fields)

    def __repr__(self) -> str:
        """Show function, point and size."""
        if not jax.tree.leaves(self.like):  # shapes alone, as of `jax.eval_shape`
            return eqx.tree_pformat(self)
        what = f"{self.f.skeleton.name}, {describe_tree(self.like, 4)}, n={self.size}"
        return f"{type(self).__name__}({what})"

    @property
    def value(self) -> Scalar:
        """The value of the function."""
        return value_and_gradient(self.f, self.x, *self.args, where=self.where)[0]

    @property
    def gradient(self) -> V:
        """The gradient of the function, a vector of the space.

        For complex leaves it is the gradient in the real embedding, the conjugate of
        what `jax.grad` returns: `x - H.solve(H.gradient).x` is a Newton step.
        """
        gradient = value_and_gradient(self.f, self.x, *self.args, where=self.where)[1]
        return self.conjugate(gradient)

    def at(self: H, x: Point, *args: PyTree) -> H:
        """Return the same operator at another point: nothing is traced or compiled.

        Args:
            x: A point of the same structure, shapes and dtypes. Leaves that are not
                arrays must be what they were, or `None`.
            *args: The further arguments, if they change as well.

        Returns:
            The operator of the same function at that point.

        Raises:
            StructureError: If structure, shapes, dtypes or leaves that are not arrays
                differ.
        """
        statics = static_parts(self.f, (self.x, self.args))
        new_x = matching_arrays("x", x, self.x, statics[0])
        new_args = self.args
        if args:
            new_args = matching_arrays("args", tuple(args), self.args, statics[1])
        return with_fields(self, x=new_x, args=new_args)


def with_fields(operator: H, **fields: Any) -> H:
    """Return an operator with other values of some fields."""
    copy = object.__new__(type(operator))
    vars(copy).update(vars(operator), **fields)
    return copy


def _restored(cls: type[H], f: bytes, text: str, fields: dict[str, Any]) -> H:
    """Return the operator that was pickled.

    Raises:
        StructureError: If its function computes something else in this process.
    """
    operator = object.__new__(cls)
    vars(operator).update(fields, f=unpickled(f))
    here = program_text(operator)
    if here != text:
        raise StructureError(
            message(
                operator.f.skeleton.name,
                "the function has changed since the operator was pickled.",
                expected="the same code, values and settings, and the same JAX",
                got=_first_difference(text, here),
                fix="Pickle the operator again, or make it in this process.",
            )
        )
    return operator


def _first_difference(before: str, here: str) -> str:
    pairs = zip_longest(before.splitlines(), here.splitlines(), fillvalue="nothing")
    old, new = next((old.strip(), new.strip()) for old, new in pairs if old != new)
    return f"{new[:80]!r}, where it had {old[:80]!r}"


def program_text(operator: AbstractPointOperator) -> str:
    """Return the program of an operator's function as text, with a digest of constants.

    Functions are pickled by name, so the text tells whether the function that is found
    is the one that was pickled, with the values that it had.
    """
    call = lambda f, x, args: f(x, *args)
    closed = jax.make_jaxpr(call)(operator.f, operator.x, operator.args)
    # Without the places of functions in memory.
    text = re.sub(r" at 0x[0-9a-f]+", "", str(closed))
    digest = hashlib.blake2b(digest_size=16)
    for constant in closed.consts:
        digest.update(np.asarray(constant).tobytes())
    return f"JAX {jax.__version__}\n{text}\nconstants {digest.hexdigest()}"


def _is_like(v: PyTree, x: Point) -> bool:
    """Whether a vector has the structure of a point of real arrays, and their types."""
    if type(x) is type(v) is ARRAY:  # one array need not be flattened
        leaves, others = (x,), (v,)
    else:
        leaves, tree = jax.tree.flatten(x)
        others, other_tree = jax.tree.flatten(v)
        arrays = {*map(type, leaves), *map(type, others)} == {ARRAY}
        if tree != other_tree or not arrays:
            return False
    for a, b in zip(leaves, others, strict=True):
        if a.dtype != b.dtype or a.dtype.kind != "f" or a.shape != b.shape:
            return False
    return True


def _product(operator: AbstractPointOperator, v: PyTree, *, batched: bool) -> PyTree:
    # Inside of a trace all products at the same shapes are one program: a solver
    # multiplies at several places, and other solvers follow. So the function is walked
    # and differentiated once for all of them (tests/linop/test_walks.py). A product by
    # itself finds its program in the store, which it may share with other functions.
    return (_traced_product if in_trace() else _hvp)(operator, v, batched)


def _hvp(operator: AbstractPointOperator, v: PyTree, batched: bool) -> PyTree:
    direction = operator.direction(v, batched=batched)
    f, x, args, where = operator.f, operator.x, operator.args, operator.where
    product = hvp(f, x, direction, *args, batched=batched, where=where)
    # Of several outputs it has a product for each.
    same = jax.tree.structure(product) == jax.tree.structure(v)
    if not same or [np.shape(a) for a in jax.tree.leaves(product)] != [
        np.shape(a) for a in jax.tree.leaves(v)
    ]:
        raise _several_outputs(operator)
    return operator.conjugate(product)


def _several_outputs(operator: AbstractPointOperator) -> OutputError:
    return OutputError(
        message(
            f"{type(operator).__name__}(f, x)",
            f"`{operator.f.skeleton.name}` must return one real number.",
            expected=f"a floating-point scalar, {float_scalar()}",
            got="several outputs",
            fix="Reduce them with `jnp.sum` or with weights. For each output use "
            "`hotk.hvp(f, x, v)` or `hotk.hessian(f, x)`.",
        )
    )


_traced_product = jitted(_hvp, static_argnums=2)
