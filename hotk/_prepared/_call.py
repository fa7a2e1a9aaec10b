"""One call, as a trace of it sees it: the function with tracers inside, the point."""

import functools
import operator
from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten
from jaxtyping import PyTree

from hotk._capture import (
    CHANGED,
    KEEPS,
    RULE_CAPTURES_ARRAY,
    TOO_DEEP,
    WRITES,
    Opaque,
    Rebuild,
    Snapshot,
    StaticArrays,
    TracedProgram,
    Trail,
    Walk,
    by_identity,
    check_faithful,
    dict_orders,
    in_orders,
    moving_nodes,
    walk_all,
    with_copies,
)
from hotk._core import (
    Cotangent,
    Function,
    Leaf,
    Point,
    PointLeaves,
    Tangent,
    note_list,
    unkeyed_setting,
    varying_as,
)
from hotk._dense import Sizes

from ._checks import check_aux, check_output, match_direction
from ._inputs import check_point, sort_inputs
from ._options import Options


_LEAF = jax.tree.structure(0)


@by_identity  # a formula that calls operators captures it, and outer arrays in it
class Call:
    """A function with its arguments, walked and sorted for a trace.

    Attributes:
        f: The function.
        x: The point, as the user gave it.
        rest: The direction, if the operator takes one, and the further arguments.
        static_arrays: Which captured arrays are static by content.
        chosen: The `id`s of others that are, and of leaves of the arguments.
        captured: The captured arrays.
        originals: The same as the user holds them: NumPy arrays not copied.
        pinned: Arrays that a class reaches: constants of the program.
        inputs: The sorted leaves of the arguments.
        point_leaves: Which leaves of the point are differentiated.
        key: What identifies the program of `f` at this structure of arguments.
        traced: The program of `f`, if the call is of a function that is traced by
            itself.
        rebuilt: Whether a copy of `f` was run, with tracers inside.
        wrote: Whether `f` had changed what it captured when it raised.
    """

    traced: TracedProgram | None = None
    pinned: Sequence[Leaf] = ()

    def __init__(
        self,
        options: Options,
        f: Function,
        x: Point,
        rest: tuple[PyTree, ...],
        *,
        static_arrays: StaticArrays,
        chosen: frozenset[int] = frozenset(),
        check_nodes: bool = True,
        walk: Walk | None = None,
    ) -> None:
        """Walk a function and sort its arguments.

        Args:
            options: The operator.
            f: The function.
            x: The point.
            rest: What follows it.
            static_arrays: Which captured arrays are static by content.
            chosen: The `id`s of others that are, and of leaves of the arguments.
            check_nodes: Whether a node of the further arguments that may not survive
                being built anew makes the call opaque. A `Prepared` builds them itself.
            walk: A walk through `f` that was made for this call, if there was one.

        Raises:
            Opaque: If the function cannot be walked.
        """
        self.options = options
        self.f = f
        self.x = x
        self.rest = rest
        self.static_arrays = static_arrays
        self.chosen = chosen
        self.rebuilt = self.wrote = self.keeps = False
        self._flatten()
        places = Walk(static_arrays=static_arrays, chosen=chosen)
        self.inputs = sort_inputs(self.leaves, self.counts, places, self.point_leaves)
        self.placed = len(places.key)
        if walk is None:
            walk = self._walk(f, self.inputs.visited, copy_numpy=True)
        if check_nodes:
            for tree in self.args_trees:
                check_faithful(tree)
        self.walked = (*places.key, *walk.key)
        self.captured = walk.leaves
        self.originals = walk.originals
        self.pinned = walk.pinned

    def _walk(
        self,
        f: Function,
        visited: Sequence[object],
        trail: Trail | None = None,
        copy_numpy: bool = False,
        chosen: frozenset[int] = frozenset(),
    ) -> Walk:
        """Walk through a function and what is static among the arguments, or copies."""
        static = self.static_arrays
        walk = Walk(static_arrays=static, trail=trail, copy_numpy=copy_numpy)
        walk.chosen = self.chosen | chosen
        try:
            walk_all(walk, f, moving_nodes(self.tree), visited)
        except RecursionError as error:
            raise Opaque(TOO_DEEP) from error
        return walk

    def _flatten(self) -> None:
        self.leaves, self.tree = tree_flatten((self.x, self.rest))
        takes = 1 if self.options.definition.takes else 0
        self.x_tree, rest_tree = self.tree.children()
        parts = rest_tree.children()
        self.rest_trees = tuple(parts)
        self.args = self.rest[takes:]
        self.args_trees = tuple(parts[takes:])
        self.counts = (self.x_tree.num_leaves, parts[0].num_leaves if takes else 0)
        self.ahead = self.counts[0] + self.counts[1]
        self.orders = dict_orders(self.args)
        own, selected = self.leaves[: self.counts[0]], self.options.selected
        self.point_leaves = PointLeaves.of(own, self.x_tree, selected)

    @property
    def key(self) -> Hashable:
        """What identifies the program of `f`, whatever the operator."""
        trees = (self.x_tree, self.args_trees, self.orders)
        stage = (int(self.static_arrays), unkeyed_setting())
        options = (self.options.has_aux, self.options.selected)
        return (*options, *stage, *trees, *self.walked)

    @property
    def store_key(self) -> tuple[Hashable, ...]:
        """What identifies the program of the operator in the store.

        A direct call makes the same key without a `Call`, in `Operator.__call__`:
        `tests/prepared/test_direct_calls.py` holds both together.
        """
        # A direct call with single arrays does not flatten them: it counts them.
        flat = all(tree == _LEAF for tree in (self.x_tree, *self.rest_trees))
        shape = 1 + len(self.rest) if flat else self.tree
        castable = self.inputs.castable
        header = (self.options, shape, castable, self.orders, unkeyed_setting())
        return (*header, int(self.static_arrays), *self.walked)

    def unflatten(
        self, arrays: Sequence[Leaf]
    ) -> tuple[list[PyTree], PyTree, list[PyTree]]:
        """Put arrays in their places: the leaves of `x`, the direction, the `args`."""
        leaves = self._merge(range(len(self.leaves)), arrays, self.inputs.statics)
        point, ahead = self.counts[0], self.ahead
        direction = None
        if self.options.definition.takes:
            direction = self.rest_trees[0].unflatten(leaves[point:ahead])
        return leaves[:point], direction, leaves[ahead:]

    @staticmethod
    def _merge(
        numbers: range, arrays: Sequence[Leaf], statics: dict[int, PyTree]
    ) -> list[PyTree]:
        remaining = iter(arrays)
        return [statics[i] if i in statics else next(remaining) for i in numbers]

    def make_args(self, leaves: Sequence[PyTree]) -> tuple[PyTree, ...]:
        """Build the further arguments, dicts in the order in which they were given.

        JAX sorts the keys of a dict, and a function that iterates over one sees it
        (`a_dict_that_is_a_constant_argument_is_walked_in_its_order`).
        """
        built, offset = [], 0
        for tree in self.args_trees:
            built.append(tree.unflatten(leaves[offset : offset + tree.num_leaves]))
            offset += tree.num_leaves
        args = tuple(built)
        return args if self.orders is None else in_orders(args, self.orders)

    def arrays_only(self, leaves: Sequence[PyTree], first: int) -> list[Leaf]:
        """Drop the static ones among leaves that begin at number `first`."""
        statics = self.inputs.statics
        return [leaf for i, leaf in enumerate(leaves, first) if i not in statics]

    def evaluate(
        self, captured: Sequence[Leaf], x: Sequence[Leaf], args: Sequence[Leaf]
    ) -> tuple[PyTree, PyTree]:
        """Call `f` with these arrays in place of its own, and see that it writes none.

        Args:
            captured: In place of the captured arrays.
            x: In place of the arrays among the leaves of the point.
            args: In place of the arrays among the leaves of the further arguments.
        """
        point, ahead, trail = self.counts[0], self.ahead, Trail()
        numbers = [i for i in self.inputs.statics if not point <= i < ahead]
        walk = self._walk(self.f, self.inputs.visited, trail)
        # Another thread may have changed the function since it was walked for its key;
        # the program would be kept under the old one.
        if tuple(walk.key) != self.walked[self.placed :]:
            raise Opaque(CHANGED)
        replacements = {id(a): t for a, t in zip(walk.originals, captured, strict=True)}
        # What is static by content is not to be written into either.
        if self.static_arrays:
            replacements = trail.numpy_copies() | replacements
        rebuild = Rebuild(trail, replacements)
        f, visited = rebuild(self.f), [rebuild(v) for v in self.inputs.visited]
        self.rebuilt = bool(rebuild.to_copy)
        # JAX runs a derivative rule later, when the tracers in its copy have ended.
        if rebuild.has_rules:
            raise Opaque(RULE_CAPTURES_ARRAY)
        statics = dict(zip(numbers, visited, strict=True))
        x_leaves = self._merge(range(point), x, statics)
        args_leaves = self._merge(range(ahead, len(self.leaves)), args, statics)
        given = self.make_args(args_leaves)

        own = frozenset(id(replacements.get(i)) for i in self.chosen)
        is_same = functools.partial(self._is_same, walk, f, visited, captured, own)
        # What is not copied is put back: `f` may have written tracers into it.
        snapshot = Snapshot(walk, trail, rebuild.to_copy)

        def run() -> tuple[PyTree, PyTree]:
            try:
                out = f(self.x_tree.unflatten(x_leaves), *given)
            except Exception as error:
                note_list(error, self.x)
                self.wrote = snapshot.restore() is not None or not is_same()
                raise
            wrote = snapshot.restore()
            # The arguments are containers of this trace: what `f` has put into them
            # would stand in those of the user.
            after, before = map(jax.tree.leaves, (given, self.make_args(args_leaves)))
            if len(after) != len(before) or any(map(operator.is_not, after, before)):
                raise Opaque(WRITES)
            if wrote is not None:
                raise Opaque(wrote)
            if not is_same():
                raise Opaque(KEEPS if self.keeps else WRITES)
            return self.split(out)

        try:
            return with_copies(run) if walk.pins_numpy else run()
        finally:
            # Whatever happens, no tracer stays in anything of the user.
            snapshot.restore()
            rebuild.release()

    def _is_same(
        self,
        walk: Walk,
        copy: Function,
        visited: Sequence[object],
        captured: Sequence[Leaf],
        chosen: frozenset[int],
    ) -> bool:
        """Whether neither `f` nor what stood for it has changed since it was walked."""
        self.keeps = True
        try:
            copies = self._walk(copy, visited, chosen=chosen)
            originals = self._walk(self.f, self.inputs.visited)
        except Opaque:
            return False
        # An array that did not go in has come out of the call: a cache was filled.
        known = set(map(id, captured))
        self.keeps = any(id(a) not in known for a in copies.originals)
        pairs = zip(copies.originals, captured, strict=False)
        same = walk.key == originals.key and walk.plain_key() == copies.plain_key()
        return same and not any(a is not b for a, b in pairs)

    def evaluate_as_is(
        self, captured: Sequence[Leaf], x: Sequence[Leaf], args: Sequence[Leaf]
    ) -> tuple[PyTree, PyTree]:
        """Call `f` outside of a shared program, or run its own."""
        run = self.evaluate if self.traced is None else self.traced
        return run(captured, x, args)

    def replaces(self) -> bool:
        """Whether tracers stand for anything that plain JAX would not trace."""
        statics, args = self.inputs.statics, range(self.ahead, len(self.leaves))
        held = [i for i, moves in enumerate(self.point_leaves.moves) if not moves]
        return any(i not in statics for i in (*args, *held))

    def numpy_inputs(self) -> list[np.ndarray | np.generic | None]:
        """Return a copy of each NumPy array that `f` gets, `None` for other arrays.

        In the order of the captured arrays, the point's and the further arguments';
        what is differentiated is never NumPy's to compute with, and a number among the
        arguments is traced, as a Python number is.
        """
        point, moves = self.counts[0], self.point_leaves.moves
        arrays: list[PyTree] = list(self.originals)
        for i, leaf in enumerate(self.leaves):
            if i not in self.inputs.statics and not point <= i < self.ahead:
                traced = np.ndim(leaf) == 0 or (i < point and moves[i])
                arrays.append(None if traced else leaf)
        # Copied, as `check_numpy` makes them read-only.
        numpy = (np.ndarray, np.generic)
        return [a.copy() if isinstance(a, numpy) else None for a in arrays]

    def split(self, out: PyTree) -> tuple[PyTree, PyTree]:
        """Check what `f` returned, and split it into value and auxiliary output."""
        call, wants = self.options.definition.call(), self.options.definition.wants
        y, aux = check_aux(call, self.f, out) if self.options.has_aux else (out, ())
        check_output(call, self.f, y, wants)
        return jax.tree.map(jnp.asarray, y), aux

    def point(self, leaves: Sequence[PyTree]) -> tuple[Point, list[bool]]:
        """Return the differentiated part of `x`, `None` elsewhere, and which it is."""
        call, moves = self.options.definition.call(), self.point_leaves.moves
        check_point(call, self.x, moves, self.options.selected)
        # `None` is not a leaf: derivatives of JAX refuse integers, and hotk's results
        # have nothing in their places.
        moving = [a if yes else None for a, yes in zip(leaves, moves, strict=True)]
        return self.x_tree.unflatten(moving), moves

    def sizes(self, y: PyTree) -> Sizes:
        """Count the numbers in the differentiated part of `x` and in a value."""
        return Sizes.of(self.point(self.unflatten(self.inputs.arrays)[0])[0], y)

    def merge(
        self, leaves: Sequence[PyTree], differentiated: Sequence[bool], moving: Point
    ) -> list[PyTree]:
        """Put the differentiated leaves back among the others."""
        remaining = iter(jax.tree.leaves(moving))
        pairs = zip(leaves, differentiated, strict=True)
        return [next(remaining) if yes else leaf for leaf, yes in pairs]

    def direction(
        self,
        v: Tangent,
        leaves: Sequence[PyTree],
        differentiated: Sequence[bool],
        moving: Point,
        arrays: Sequence[Leaf],
    ) -> Tangent:
        """Check the direction of a tangent and cut it to what is differentiated."""
        parts = match_direction(
            self.options.definition.call(),
            ("x", self.options.definition.takes),
            self.x_tree.unflatten(leaves),
            v,
            castable=self._castable(arrays),
            batched=self.options.batched,
            differentiated=differentiated,
        )
        points, tree = jax.tree.flatten(moving)
        return tree.unflatten(varying_as(list(map(jax.typeof, points)), parts))

    def cotangent(self, u: Cotangent, y: PyTree, arrays: Sequence[Leaf]) -> Cotangent:
        """Check a cotangent against the value of `f`."""
        parts = match_direction(
            self.options.definition.call(),
            ("y", self.options.definition.takes),
            y,
            u,
            castable=self._castable(arrays),
            batched=self.options.batched,
            differentiated=[True] * len(jax.tree.leaves(y)),
        )
        return jax.tree.structure(y).unflatten(parts)

    def _castable(self, arrays: Sequence[Leaf]) -> set[int]:
        """Return the identities of the direction's leaves that may be cast."""
        numbers = [i for i in range(len(self.leaves)) if i not in self.inputs.statics]
        pairs = zip(numbers, arrays, strict=True)
        return {id(a) for i, a in pairs if i in self.inputs.castable}
