"""Steps on one flat vector: what the compiler does not have to do for each leaf.

A step has some hundred sums and combinations of vectors, each a kernel for each leaf.
Where a model has many leaves, they took the compiler longer than its derivatives.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from hotk._core import Function, Gradient, Point, Scalar, in_trace
from hotk.linop import space


# Three more vectors than in a step leaf by leaf: of larger models they matter more than
# the time of the compiler.
_LARGEST = 1 << 24


class KnownPoint(NamedTuple):
    """What a loop that is being traced knows of the point that it steps from.

    Attributes:
        f: The objective.
        params: The parameters.
        value: The value there.
        gradient: The gradient there.
        flat: Whether a step may have flat vectors.
    """

    f: Function
    params: Point
    value: Scalar
    gradient: Gradient
    flat: bool

    def values_at(
        self, f: Function | None, params: Point
    ) -> tuple[Scalar, Gradient] | None:
        """Return value and gradient, if they are those of a function at a point."""
        mine, others = jax.tree.leaves(self.params), jax.tree.leaves(params)
        same = len(mine) == len(others)
        same = same and all(a is b for a, b in zip(mine, others, strict=True))
        return (self.value, self.gradient) if same and f is self.f else None


_KNOWN: ContextVar[KnownPoint | None] = ContextVar("known", default=None)


@contextlib.contextmanager
def stepping(known: KnownPoint) -> Iterator[None]:
    """Let the steps that are traced within know this."""
    token = _KNOWN.set(known)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def known() -> KnownPoint | None:
    """Return what the loop knows that is being traced, `None` outside of one."""
    return _KNOWN.get()


def is_better_flat(params: Point, *others: PyTree) -> bool:
    """Whether steps should have flat vectors: of parameters, and of what is like them.

    Not on several devices: a flat array does not keep how leaves are split among them.
    Nor in large models, where the copies matter. In a trace nothing tells how they are,
    but the loop of `minimize` has asked before.
    """
    leaves = jax.tree.leaves((params, *others))
    dtypes = {jnp.result_type(a) for a in leaves}
    if len(leaves) < 2 or len(dtypes) > 1 or jnp.iscomplexobj(leaves[0]):
        return False
    if sum(map(jnp.size, jax.tree.leaves(params))) > _LARGEST:
        return False
    if in_trace():
        loop = known()
        return loop is not None and loop.flat
    arrays = [a for a in leaves if isinstance(a, jax.Array)]
    # One that was deleted is named by the program that meets it.
    return all(a.is_deleted() or len(a.devices()) == 1 for a in arrays)


def on_flat(f: Function, like: Point) -> Callable[[Float[Array, " n"]], Any]:
    """Return a function of some parameters as one of a flat vector."""
    return lambda x: f(space.unflattened(x, like))
