"""One call, as a trace of it sees it: the function with tracers inside, the point."""

import functools
import operator
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten

from hotk._core import is_inexact, jaxpr_as_fun, unkeyed_setting
from hotk.capture import (
    CHANGED,
    KEEPS,
    RULE_CAPTURES_ARRAY,
    TOO_DEEP,
    WRITES,
    Opaque,
    Rebuild,
    Snapshot,
    StaticArrays,
    Walk,
    check_faithful,
    dict_orders,
    in_orders,
    moving_nodes,
    own_copy,
    survey,
    walk_all,
)
from hotk.dense import Sizes

from ._checks import check_aux, check_output, match_direction
from ._inputs import check_point, sort_inputs
from ._options import Options


_LEAF = jax.tree.structure(0)


class Slot(threading.local):
    """What is being called in this thread: read by a body that JAX decides to run."""

    call: Any = None
    primal: Any = None
    program: Any = None


SLOT = Slot()


class Mismatch(Exception):
    """A body was run for other arguments than its program is made for."""


class Call:
    """A function with its arguments, walked and sorted for a trace.

    Attributes:
        f: The function.
        x: The point, with what the user gave.
        rest: The direction, if the operator takes one, and the further arguments.
        captured: The captured arrays.
        pinned: Arrays that a class reaches: constants of the program.
        inputs: The sorted leaves of the arguments.
        key: What identifies the program of `f` at this structure of arguments.
        traced: The program of `f` and the shapes of its results, if the call is of a
            function that is traced by itself.
    """

    traced: Any = None
    pinned: Any = ()

    def __init__(
        self,
        options: Options,
        f: Callable[..., Any],
        x: Any,
        rest: Any,
        *,
        static_arrays: StaticArrays,
        trust: bool = False,
    ) -> None:
        self.options = options
        self.f = f
        self.x = x
        self.rest = rest
        self.static_arrays = static_arrays
        self.rebuilt = False
        self.wrote = self.keeps = False
        self._flatten()
        walk = Walk(static_arrays=static_arrays)
        self.inputs = sort_inputs(self.leaves, self.counts, walk)
        self.marked = len(walk.key)
        try:
            self._visit(walk)
        except RecursionError as error:
            raise Opaque(TOO_DEEP) from error
        for tree in () if trust else self.args_trees:
            check_faithful(tree)
        self.walked = tuple(walk.key)
        self.captured = walk.leaves
        self.originals = walk.originals
        self.pinned = walk.pinned

    def _visit(self, walk: Walk) -> None:
        walk_all(walk, self.f, moving_nodes(self.tree), self.inputs.visited)

    def _flatten(self) -> None:
        self.leaves, self.tree = tree_flatten((self.x, self.rest))
        takes = 1 if self.options.kind.takes else 0
        x_tree, rest_tree = self.tree.children()
        parts = rest_tree.children()
        self.x_tree = x_tree
        self.rest_trees = tuple(parts)
        self.args = self.rest[takes:]
        self.args_trees = tuple(parts[takes:])
        self.counts = (x_tree.num_leaves, parts[0].num_leaves if takes else 0)
        self.ahead = self.counts[0] + self.counts[1]
        self.orders = dict_orders(self.args)

    @property
    def key(self) -> Hashable:
        """What identifies the program of `f`, whatever the operator."""
        trees = (self.x_tree, self.args_trees, self.orders)
        stage = (int(self.static_arrays), unkeyed_setting())
        return (self.options.has_aux, *stage, *trees, *self.walked)

    @property
    def store_key(self) -> Hashable:
        """What identifies the program of the operator in the store.

        It is what a direct call looks up first.
        """
        flat = all(tree == _LEAF for tree in (self.x_tree, *self.rest_trees))
        shape = 1 + len(self.rest) if flat else self.tree
        marks = self.inputs.marks
        header = (self.options, shape, marks, self.orders, unkeyed_setting())
        return (*header, int(self.static_arrays), *self.walked)

    def unflatten(self, arrays: Any) -> tuple[list[Any], Any, list[Any]]:
        """Put arrays in their places: the leaves of `x`, the direction, the `args`."""
        leaves = self._merge(range(len(self.leaves)), arrays, self.inputs.statics)
        point, ahead = self.counts[0], self.ahead
        direction = None
        if self.options.kind.takes:
            direction_tree = self.tree.children()[1].children()[0]
            direction = direction_tree.unflatten(leaves[point:ahead])
        return leaves[:point], direction, leaves[ahead:]

    @staticmethod
    def _merge(numbers: range, arrays: Any, statics: dict[int, Any]) -> list[Any]:
        remaining = iter(arrays)
        return [statics[i] if i in statics else next(remaining) for i in numbers]

    def make_args(self, leaves: list[Any]) -> tuple[Any, ...]:
        """Build the further arguments, dicts in the order in which they were given."""
        made, offset = [], 0
        for tree in self.args_trees:
            made.append(tree.unflatten(leaves[offset : offset + tree.num_leaves]))
            offset += tree.num_leaves
        args = tuple(made)
        return args if self.orders is None else in_orders(args, self.orders)

    def arrays_only(self, leaves: list[Any], first: int) -> list[Any]:
        """Drop the static ones among leaves that begin at number `first`."""
        statics = self.inputs.statics
        return [leaf for i, leaf in enumerate(leaves, first) if i not in statics]

    def evaluate(self, captured: Any, x: list[Any], args: list[Any]) -> tuple[Any, Any]:
        """Call `f` with these arrays in place of its own, and see that it writes none.

        Args:
            captured: In place of the captured arrays.
            x: In place of the arrays among the leaves of the point.
            args: In place of the arrays among the leaves of the further arguments.
        """
        point, ahead = self.counts[0], self.ahead
        numbers = [i for i in self.inputs.statics if not point <= i < ahead]
        whole = (*self.inputs.visited, self.f)
        walk, trail = survey(whole, static_arrays=self.static_arrays, copy_numpy=False)
        now = Walk(static_arrays=self.static_arrays, copy_numpy=False)
        self._visit(now)
        if tuple(now.key) != self.walked[self.marked :]:
            raise Opaque(CHANGED)
        made = {id(a): t for a, t in zip(walk.originals, captured, strict=True)}
        if self.static_arrays:  # what is static by content is not written into either
            numpy = [
                n.value for n in trail.nodes.values() if type(n.value) is np.ndarray
            ]
            made = {**{id(a): a.copy("K") for a in numpy}, **made}
        rebuild = Rebuild(trail, made)
        rebuilt = rebuild(whole)
        self.rebuilt = bool(rebuild.to_copy)
        if rebuild.has_rules:
            raise Opaque(RULE_CAPTURES_ARRAY)
        statics = dict(zip(numbers, rebuilt[:-1], strict=True))
        x_leaves = self._merge(range(point), x, statics)
        args_leaves = self._merge(range(ahead, len(self.leaves)), args, statics)
        given = self.make_args(args_leaves)

        same = functools.partial(self._is_same, walk, whole, rebuilt, captured)
        # What is not copied is put back: `f` may have written tracers into it.
        snapshot = Snapshot(walk, trail, rebuild.to_copy)

        def run() -> tuple[Any, Any]:
            try:
                out = rebuilt[-1](self.x_tree.unflatten(x_leaves), *given)
            except Exception:
                self.wrote = snapshot.restore() is not None or not same()
                raise
            wrote = snapshot.restore()
            now, before = map(jax.tree.leaves, (given, self.make_args(args_leaves)))
            if len(now) != len(before) or any(map(operator.is_not, now, before)):
                raise Opaque(WRITES)
            if wrote is not None:
                raise Opaque(wrote)
            if not same():
                raise Opaque(KEEPS if self.keeps else WRITES)
            return self.split(out)

        try:
            return with_copies(run) if walk.pins_numpy else run()
        finally:
            snapshot.restore()
            rebuild.release()

    def _is_same(self, walk: Walk, whole: Any, rebuilt: Any, captured: Any) -> bool:
        """Whether neither `f` nor what stood for it has changed since it was walked."""
        after, again = (
            Walk(static_arrays=self.static_arrays, copy_numpy=False) for _ in range(2)
        )
        self.keeps = True
        try:
            after.visit(rebuilt)
            again.visit(whole)
        except Opaque:
            return False
        mine = set(map(id, captured))
        self.keeps = any(id(a) not in mine for a in after.originals)
        kept = zip(after.originals, captured, strict=False)
        keys = walk.key == again.key and walk.plain_key() == after.plain_key()
        return keys and not any(a is not b for a, b in kept)

    def evaluate_as_is(
        self, captured: Any, leaves: Any, kept: Any, diff: Any, args: Any
    ) -> tuple[Any, Any]:
        """Call `f` outside of a shared program, or run its own."""
        x = self.arrays_only(self.merge(leaves, kept, diff), 0)
        moving = self.arrays_only(args, self.ahead)
        if self.traced is None:
            return self.evaluate(captured, x, moving)
        closed, shapes = self.traced
        outputs = jaxpr_as_fun(closed)(*captured, *x, *moving)
        return jax.tree.structure(shapes).unflatten(outputs)

    def replaces(self) -> bool:
        """Whether tracers stand for anything that plain JAX would not trace."""
        leaves, _, args = self.unflatten(self.inputs.arrays)
        statics = self.inputs.statics
        if any(i not in statics for i in range(self.ahead, self.ahead + len(args))):
            return True
        return any(i not in statics and not is_inexact(a) for i, a in enumerate(leaves))

    def numpy_inputs(self) -> list[Any]:
        """Return a copy of each NumPy array that `f` gets, `None` for other arrays.

        In the order of the captured arrays, the point's and the further arguments';
        what is differentiated is never NumPy's to compute with, and a number among the
        arguments is traced, as a Python number is.
        """
        point, ahead = self.counts[0], self.ahead
        found: list[Any] = list(self.originals)
        for i, leaf in enumerate(self.leaves):
            if i not in self.inputs.statics and not point <= i < ahead:
                traced = np.ndim(leaf) == 0 or (i < point and is_inexact(leaf))
                found.append(None if traced else leaf)
        numpy = (np.ndarray, np.generic)
        return [a.copy() if isinstance(a, numpy) else None for a in found]

    def split(self, out: Any) -> tuple[Any, Any]:
        """Check what `f` returned, and split it into value and auxiliary output."""
        kind, call = self.options.kind, self.options.kind.call()
        y, aux = check_aux(call, self.f, out) if self.options.has_aux else (out, ())
        check_output(call, self.f, y, kind.wants)
        return jax.tree.map(jnp.asarray, y), aux

    def point(self, leaves: list[Any]) -> tuple[Any, list[bool]]:
        """Return the differentiated part of `x`, `None` elsewhere, and which it is."""
        check_point(self.options.kind.call(), self.x)
        kept = [is_inexact(leaf) for leaf in leaves]
        pairs = zip(leaves, kept, strict=True)
        return self.x_tree.unflatten([leaf if k else None for leaf, k in pairs]), kept

    def sizes(self, y: Any) -> Sizes:
        """Count the numbers in the differentiated part of `x` and in a value."""
        return Sizes.of(self.point(self.unflatten(self.inputs.arrays)[0])[0], y)

    def merge(self, leaves: list[Any], kept: list[bool], diff: Any) -> list[Any]:
        """Put the differentiated leaves back among the others."""
        moving = iter(jax.tree.leaves(diff))
        pairs = zip(leaves, kept, strict=True)
        return [next(moving) if k else leaf for leaf, k in pairs]

    def direction(
        self, v: Any, leaves: list[Any], kept: list[bool], diff: Any, arrays: Any
    ) -> Any:
        """Check the direction of a tangent and cut it to what is differentiated."""
        found = match_direction(
            self.options.kind.call(),
            ("x", self.options.kind.takes),
            self.x_tree.unflatten(leaves),
            v,
            loose=self.loose(arrays),
            batched=self.options.batched,
            kept=kept,
        )
        return jax.tree.structure(diff).unflatten(found)

    def cotangent(self, u: Any, y: Any, arrays: Any) -> Any:
        """Check a cotangent against the value of `f`."""
        found = match_direction(
            self.options.kind.call(),
            ("y", self.options.kind.takes),
            y,
            u,
            loose=self.loose(arrays),
            batched=self.options.batched,
            kept=[True] * len(jax.tree.leaves(y)),
        )
        return jax.tree.structure(y).unflatten(found)

    def loose(self, arrays: Any) -> set[int]:
        """Return the identities of the direction's leaves that may be cast."""
        numbers = [i for i in range(len(self.leaves)) if i not in self.inputs.statics]
        pairs = zip(numbers, arrays, strict=True)
        return {id(a) for i, a in pairs if i in self.inputs.marks}


def with_copies(run: Callable[[], Any]) -> Any:
    """Call a function as its program, with copies of the NumPy arrays that it holds.

    Those may be written to, while a program that is kept reads them: JAX shares their
    memory, and remembers a converted one for as long as a program of it lives.
    """
    closed, shapes = jax.make_jaxpr(run, return_shape=True)()
    outputs = jaxpr_as_fun(own_constants(closed))()
    return jax.tree.structure(shapes).unflatten(outputs)


def own_constants(closed: Any) -> Any:
    """Return a program with copies of the NumPy arrays among its constants."""
    constants = [own_copy(c) if isinstance(c, np.ndarray) else c for c in closed.consts]
    return closed.replace(consts=constants)
