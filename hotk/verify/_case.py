"""`Case`: a call as plain JAX would compute it, with nothing of hotk in between."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import Function, Leaf, settings_for
from hotk.capture import Closure
from hotk.prepared import Call, as_one_number

from ._comparison import Comparison, Skipped
from ._operations import epsilon, wide


Arrays = list[Any]

# Functions that hotk makes of others, each with the attribute that holds the other one.
_WRAPPERS = {"Rearranged": "func", "WithStatics": "f"}


class Case:
    """A call of an operator, and its result.

    All trees are lists of their differentiated leaves.

    Attributes:
        call: The call.
        results: What it returned besides auxiliary output.
        value: The value of the function, if that is among the results.
        x: The point.
        y: The shapes of the value.
        v: The direction or the cotangent, if the operator takes one.
    """

    def __init__(self, call: Call, result: PyTree) -> None:
        self.call, self.options = call, call.options
        self.random = np.random.default_rng(0)
        leaves, direction, self._args = call.unflatten(call.inputs.arrays)
        point, self._moves = call.point(leaves)
        self._leaves = leaves
        self.x: Arrays = [jnp.asarray(a) for a in jax.tree.leaves(point)]
        if not sum(a.size for a in self.x):
            raise Skipped("an empty point")
        self._deriving, self._running = settings_for(self.x)
        self.inside, self._wrap = _unwrapped(call.f)
        self.y: Arrays = jax.tree.leaves(jax.eval_shape(self.f, self.x))
        definition = self.options.definition
        self.value, self.others = None, ()
        if self.options.has_aux:
            result = result if definition.value else result[0]
        if definition.value:
            self.value, *rest = result
            self.value = self.value[0] if self.options.has_aux else self.value
            result = rest[-1]
            self.others = rest[:-1]
        self.found: Arrays = jax.tree.leaves(result)
        self.result = result
        self.v: Arrays = []
        self.taken: PyTree = direction
        if definition.takes == "v":
            self.v = self.tangent(direction)
        elif definition.takes == "u":
            self.v = _typed(jax.tree.leaves(direction), self.y)

    def tangent(self, direction: PyTree) -> Arrays:
        """Return the differentiated leaves of a direction, in the point's dtypes."""
        parts = self.call.x_tree.flatten_up_to(direction)
        kept = [p for p, moves in zip(parts, self._moves, strict=True) if moves]
        return _typed(kept, self.x)

    def f(self, moving: Arrays) -> Arrays:
        """Call the function of the user as it is, with other arrays in the point."""
        out = self.tree(moving)
        return jax.tree.leaves(as_one_number(out, self.options.definition.wants))

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
            out = out[0] if self.options.has_aux else out
            return jax.tree.map(jnp.asarray, out)

    def number(self, moving: Arrays, w: Arrays) -> Leaf:
        """Return the sum of the outputs, each times its weight."""
        return inner(w, self.f(moving))

    def weights(self) -> Arrays:
        """Draw weights of the outputs; 1 for a single number."""
        return [np.ones((), self.y[0].dtype)] if self.one else self.direction(self.y)

    def direction(self, like: Sequence[Any]) -> Arrays:
        """Draw a direction."""
        drawn = [self.random.normal(size=a.shape) for a in like]
        return [
            (d + 1j * self.random.normal(size=d.shape)).astype(a.dtype)
            if jnp.issubdtype(a.dtype, jnp.complexfloating)
            else d.astype(a.dtype)
            for d, a in zip(drawn, like, strict=True)
        ]

    def units(self) -> Iterator[tuple[int, Arrays]]:
        """Yield unit directions: all of a small point, else one of each array."""
        sizes = [int(a.size) for a in self.x]
        numbers: Sequence[int] = range(sum(sizes))
        if len(numbers) > 6:
            starts = zip(itertools.accumulate([0, *sizes]), sizes, strict=False)
            drawn = [a + int(self.random.integers(n)) for a, n in starts if n]
            numbers = [*drawn[:5], sum(sizes) - 1]
        for i in numbers:
            yield i, self.unit(i)

    def unit(self, number: int) -> Arrays:
        """Return a unit direction."""
        numbers = np.zeros(sum(int(a.size) for a in self.x))
        numbers[number] = 1
        return split(numbers, self.x)

    def basis(self, most: int) -> Arrays:
        """Return all unit directions along a leading axis; refuse more than `most`."""
        count = sum(int(a.size) for a in self.x)
        if count > most:
            raise Skipped(f"more than {most} directions")
        units = [self.unit(i) for i in range(count)]
        if not units:
            raise Skipped("a point of size zero")
        return [np.stack(column) for column in zip(*units, strict=True)]

    @property
    def one(self) -> bool:
        """Whether the value is one number."""
        return len(self.y) == 1 and not self.y[0].shape

    @property
    def is_complex(self) -> bool:
        """Whether the point is."""
        return any(jnp.iscomplexobj(a) for a in self.x)


def _typed(parts: Sequence[Any], like: Sequence[Any]) -> Arrays:
    pairs = zip(parts, like, strict=True)
    return [jnp.asarray(p).astype(a.dtype) for p, a in pairs]


def _unwrapped(f: Function) -> tuple[Function, Callable[[Function], Function]]:
    """Return the function inside of those of hotk, and what puts another in its place.

    The gradient by another argument, which is hotk's, becomes that of JAX.
    """
    if isinstance(f, Closure) and f.skeleton.opaque is None:
        return _unwrapped(f.skeleton.function(f.leaves))
    known = type(f).__module__.startswith("hotk.")
    name: str = _WRAPPERS.get(type(f).__name__, "") if known else ""
    if name:
        inside, wrap = _unwrapped(getattr(f, name))
        replaced: Any = f
        return inside, lambda g: dataclasses.replace(replaced, **{name: wrap(g)})
    if known and type(f).__name__ == "_FirstGradient":
        return eqx.filter_grad(f.func), lambda g: g
    return f, lambda g: g


def inner(a: Arrays, b: Arrays) -> Leaf:
    """Return the real part of the sum of products, within a trace."""
    parts = [jnp.sum(jnp.asarray(p) * q).real for p, q in zip(a, b, strict=True)]
    dtype = max((p.dtype for p in parts), key=lambda d: -epsilon(d))
    return functools.reduce(jnp.add, [p.astype(dtype) for p in parts])


def dense(found: Sequence[Any], spaces: Sequence[Sequence[Any]]) -> np.ndarray:
    """Make one array of blocks, with one axis for each space."""
    sizes = [[int(np.prod(a.shape)) for a in space] for space in spaces]
    ends = [np.cumsum([0, *size]) for size in sizes]
    dtype = np.result_type(float, *(wide(a.dtype) for a in found))
    whole = np.zeros([int(e[-1]) for e in ends], dtype)
    places = itertools.product(*(range(len(size)) for size in sizes))
    for place, block in zip(places, found, strict=True):
        where = tuple(slice(e[i], e[i + 1]) for e, i in zip(ends, place, strict=True))
        shape = [size[i] for size, i in zip(sizes, place, strict=True)]
        whole[where] = np.asarray(block).astype(dtype).reshape(shape)
    return whole


def flat(vector: Sequence[Any]) -> np.ndarray:
    """Make one array of the leaves of a vector."""
    return dense(vector, [vector])


def split(numbers: np.ndarray, like: Sequence[Any]) -> Arrays:
    """Make leaves of one array."""
    ends = np.cumsum([0, *(int(np.prod(a.shape)) for a in like)])
    parts = [numbers[a:b] for a, b in itertools.pairwise(ends)]
    return [
        (p if jnp.issubdtype(a.dtype, jnp.complexfloating) else p.real)
        .reshape(a.shape)
        .astype(a.dtype)
        for p, a in zip(parts, like, strict=True)
    ]


def number(value: Any, like: Sequence[Any]) -> np.ndarray:
    """Return a number in the real dtype of the leaf with the fewest digits."""
    dtype = max((a.dtype for a in like), key=epsilon)
    return np.asarray(np.real(value)).astype(jnp.finfo(dtype).dtype)


Alternatives = Sequence[Comparison]
"""The same comparison by derivatives nested otherwise; the first that exists counts."""
