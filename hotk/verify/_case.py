"""`Case`: a call as plain JAX would compute it, with nothing of hotk in between."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._capture import Closure
from hotk._core import Function, Leaf, settings_for
from hotk._prepared import Call, as_one_number

from ._comparison import Skipped
from ._operations import epsilon, wide


Arrays = list[Any]

# Functions that hotk makes of others, each with the attribute that holds the other one.
_WRAPPERS = {"Rearranged": "func", "WithStatics": "f"}


class Case:
    """A call of an operator, and its result; of a batch the last one.

    All vectors are lists of their differentiated leaves.

    Attributes:
        call: The call.
        inside: The user's function, or one of hotk's whose Hessian is a curvature.
        x: The point.
        y: The shapes of the value.
        v: The direction or the cotangent, if the operator takes one.
        taken: The same, as the operator takes it.
        results: What it returned, without auxiliary output: the value comes first if it
            is among them.
    """

    def __init__(self, call: Call, result: PyTree) -> None:
        self.call, self.random = call, np.random.default_rng(0)
        self._leaves, self.taken, self._args = call.unflatten(call.inputs.arrays)
        point, self._moves = call.point(self._leaves)
        self.x: Arrays = [jnp.asarray(a) for a in jax.tree.leaves(point)]
        if not sum(a.size for a in self.x):
            raise Skipped("an empty point")
        self._running = settings_for(self.x)[1]
        self.inside, self._wrap = _unwrapped(call.f)
        self.y: Arrays = jax.tree.leaves(jax.eval_shape(self.f, self.x))
        definition, has_aux = call.options.definition, call.options.has_aux
        if definition.value:
            value, *rest = result
            self.results = [value[0] if has_aux else value, *rest]
        else:
            self.results = [result[0] if has_aux else result]
        last = (lambda a: a[-1]) if call.options.batched else (lambda a: a)
        self.results[-1] = jax.tree.map(last, self.results[-1])
        self.v: Arrays = []
        if definition.takes == "v":
            self.v = list(map(last, self.tangent(self.taken)))
        elif definition.takes == "u":
            self.v = list(map(last, jax.tree.leaves(self.taken)))

    def tangent(self, direction: PyTree) -> Arrays:
        """Return the differentiated leaves of a direction, in the point's dtypes."""
        parts = self.call.x_tree.flatten_up_to(direction)
        kept = [p for p, moves in zip(parts, self._moves, strict=True) if moves]
        pairs = zip(kept, self.x, strict=True)
        return [jnp.asarray(p).astype(a.dtype) for p, a in pairs]

    def f(self, moving: Arrays) -> Arrays:
        """Call the function of the user as it is, with other arrays in the point."""
        out = self.tree(moving)
        wants = self.call.options.definition.wants
        return jax.tree.leaves(as_one_number(out, wants))

    def tree(self, moving: Arrays, inside: Function | None = None) -> PyTree:
        """Call the function, or one in the place of what is inside of it."""
        call = self.call
        with self._running():
            whole = call.merge(self._leaves, self._moves, moving)
            if call.traced is not None:
                x = call.arrays_only(whole, 0)
                args = call.arrays_only(self._args, call.ahead)
                return call.traced(call.captured, x, args)[0]
            function = self._wrap(self.inside if inside is None else inside)
            out = function(call.x_tree.unflatten(whole), *call.args)
            out = out[0] if call.options.has_aux else out
            return jax.tree.map(jnp.asarray, out)

    def direction(self, like: Sequence[Any] | None = None) -> Arrays:
        """Draw a vector."""
        like = self.x if like is None else like
        drawn = [self.random.normal(size=(2, *a.shape)) for a in like]
        pairs = zip(drawn, like, strict=True)
        return split(
            np.concatenate([(d[0] + 1j * d[1]).ravel() for d, _ in pairs]), like
        )

    def weights(self) -> Arrays:
        """Draw weights of the outputs; 1 for a single number."""
        one = len(self.y) == 1 and not self.y[0].shape
        return [np.ones((), self.y[0].dtype)] if one else self.direction(self.y)


def _unwrapped(f: Function) -> tuple[Function, Callable[[Function], Function]]:
    """Return the function inside of those of hotk, and what puts another in its place.

    The gradient by another argument, which is hotk's, becomes that of JAX.
    """
    if isinstance(f, Closure) and f.skeleton.opaque is None:
        return _unwrapped(f.skeleton.function(f.leaves))
    known: Any = f if type(f).__module__.startswith("hotk.") else None
    name = _WRAPPERS.get(type(known).__name__, "")
    if name:
        inside, wrap = _unwrapped(getattr(f, name))
        return inside, lambda g: dataclasses.replace(known, **{name: wrap(g)})
    if type(known).__name__ == "_FirstGradient":
        return eqx.filter_grad(known.func), lambda g: g
    return f, lambda g: g


def inner(a: Arrays, b: Arrays) -> Leaf:
    """Return the real part of the sum of products, within a trace."""
    parts = [jnp.sum(jnp.asarray(p) * q).real for p, q in zip(a, b, strict=True)]
    dtype = max((p.dtype for p in parts), key=lambda d: -epsilon(d))
    return functools.reduce(jnp.add, [p.astype(dtype) for p in parts])


def along(f: Callable[[Arrays], Any], vectors: Sequence[Arrays]) -> Callable[..., Any]:
    """Differentiate along one direction after the other, by nested `jax.jvp`."""
    for v in vectors:
        f = lambda x, f=f, v=v: jax.jvp(f, (x,), (v,))[1]
    return f


def dense(found: Sequence[Any], spaces: Sequence[Sequence[Any]]) -> np.ndarray:
    """Make one array of blocks, with one axis for each space."""
    sizes = [[int(np.prod(a.shape)) for a in space] for space in spaces]
    blocks = iter(found)

    def joined(shape: tuple[int, ...], rest: Sequence[Sequence[int]]) -> np.ndarray:
        if not rest:
            block = next(blocks)
            return np.asarray(block).astype(wide(block.dtype)).reshape(shape)
        parts = [joined((*shape, n), rest[1:]) for n in rest[0]]
        return np.concatenate(parts, axis=len(shape))

    return joined((), sizes)


def flat(vector: Sequence[Any]) -> np.ndarray:
    """Make one array of the leaves of a vector."""
    return dense(vector, [vector])


def split(numbers: np.ndarray, like: Sequence[Any]) -> Arrays:
    """Make leaves of one array."""
    ends = np.cumsum([0, *(int(np.prod(a.shape)) for a in like)])
    parts = [numbers[a:b] for a, b in itertools.pairwise(ends)]
    real = lambda p, a: p if jnp.issubdtype(a.dtype, jnp.complexfloating) else p.real
    pairs = zip(parts, like, strict=True)
    return [real(p, a).reshape(a.shape).astype(a.dtype) for p, a in pairs]
