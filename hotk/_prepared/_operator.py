"""`operator`: from a formula to an operator with direct call and `.prepare`."""

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np
from jax.tree_util import tree_flatten
from jaxtyping import PyTree

from hotk._capture import Opaque, StaticArrays, Walk, dict_orders, key_and_arrays
from hotk._core import (
    ARRAY,
    Function,
    Leaf,
    ModeError,
    Point,
    PointLeaves,
    PyTreeDef,
    Tracer,
    Where,
    message,
    selection,
    unkeyed_setting,
)
from hotk._dense import Block, Division
from hotk._mode import AUTO, AbstractMode, Auto, Nested

from ._arguments import MISSING, PreparedInOrder, arguments_of
from ._checks import note_deleted
from ._direct import call_slowly
from ._inputs import Inputs, sort_inputs
from ._options import Candidates, Definition, Options, divide
from ._prepare import prepare
from ._prepared import Prepared
from ._store import STORE
from ._traced_jit import Mismatch
from ._typed_operator import P, Results, TypedOperator


_ARRAYS = frozenset({ARRAY})
_ENTRIES = STORE.entries


class Operator:
    """A derivative at a point: call it directly, or prepare it once.

    `op(f, x, [v], *args)` returns the value at `x`; the program is found by the code
    and the captured structure of `f`, so nothing is traced or compiled twice.
    `op.prepare(f, x, [v], *args)` returns a `Prepared`, called as `prepared(x, [v],
    *args)`.

    Attributes:
        definition: What the operator is: its name, formula and modes.
    """

    def __init__(self, definition: Definition, function: Callable[..., PyTree]) -> None:
        functools.update_wrapper(self, function)
        self.definition = definition
        self._known_options: dict[Hashable, Options] = {}
        # Those of a call without keywords; an operator with `order` has no such call.
        self._default_options: Options | None = None
        if definition.choice is None:
            self._default_options = self._options(AUTO, False, False, None, None)
        self._least_rest = 1 if definition.takes else 0
        self.__signature__ = inspect.signature(function)

    def __call__(
        self,
        f: Function,
        x: Point = MISSING,
        *rest: PyTree,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        batched: bool = False,
        block_size: Block = None,
        order: object = None,
        where: Where = None,
        **named: PyTree,
    ) -> PyTree:
        """Evaluate the operator at `x`."""
        # Each Python call in here costs 2 % of the call of a small program: a program
        # that is known is found and run by `key_and_arrays`, a guard and
        # `unkeyed_setting` alone (`a_direct_call_is_four_python_calls`).
        if x is MISSING or len(rest) < self._least_rest or named:
            keywords = named.pop("split", None), named.pop("mesh_axis", None)
            f, x, rest, _ = arguments_of(self.definition, f, x, rest, named, has_aux)
            given = (x, rest)
            mode, block_size = divide(
                self.definition, keywords, mode, block_size, f, given
            )
        choices = block_size is not None or order is not None or where is not None
        options = self._default_options
        if options is None or mode is not AUTO or has_aux or batched or choices:
            options = self._options(mode, has_aux, batched, block_size, order, x, where)
        arrays: list[Leaf] = [x, *rest]
        shape: Any = len(arrays)
        castable: tuple[int, ...] = ()
        placed: Sequence[Hashable] = ()
        orders = nodes = walk = None
        visited: tuple[object, ...] = ()
        key: Sequence[Hashable] | None = None
        captured: list[Leaf] = []
        try:
            plain = True
            for array in arrays:  # faster than a set for a few
                plain = plain and type(array) is ARRAY
            if not plain:
                arrays, tree = tree_flatten((x, rest))
                if tree.num_leaves != shape or tree.num_nodes != shape + 2:
                    shape = nodes = tree
                    orders = dict_orders(rest[self._least_rest :])
                if not _ARRAYS.issuperset(map(type, arrays)):
                    places = Walk()
                    inputs = _sorted(arrays, tree, self._least_rest, options, places)
                    arrays, castable, visited = (
                        inputs.arrays,
                        inputs.castable,
                        inputs.visited,
                    )
                    placed = places.key
            key, captured, walk = key_and_arrays(f, nodes, visited)
        except (Opaque, RecursionError):
            # What is called in here would have this error in its traceback.
            pass
        if key is None:
            return call_slowly(options, f, x, rest)
        # The same as `Call.store_key`, without the call.
        setting = unkeyed_setting()
        known = (options, shape, castable, orders, setting, 0, *placed, *key)
        entry = _ENTRIES.get(known)
        only = None if entry is None else entry.only
        runner = None if only is None else only.runner
        if only is None or runner is None:
            return call_slowly(options, f, x, rest, walk)
        if only.shared:  # not to be differentiated: its derivative rules may differ
            for array in (*captured, *arrays):
                if type(array) is not ARRAY and isinstance(array, Tracer):
                    return call_slowly(options, f, x, rest, walk)
        only.used = STORE.clock()
        result: PyTree = None
        fits = True
        try:
            result = runner.jit(*captured, *arrays)
        except Mismatch:
            fits = False
        except RuntimeError as error:
            note_deleted(error, self.definition, x, rest, captured)
            raise
        if not fits:
            return call_slowly(options, f, x, rest)
        STORE.hits += 1
        return result

    def prepare(
        self,
        f: Function,
        x: Point = MISSING,
        *rest: PyTree,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        batched: bool = False,
        block_size: Block = None,
        order: object = None,
        where: Where = None,
        on_mismatch: str = "raise",
        **named: PyTree,
    ) -> Prepared:
        """Trace and compile the operator once, for this function and signature.

        Args:
            f: The function, held as it is now.
            x: A point; only its structure, shapes and dtypes matter, so leaves may be
                `jax.ShapeDtypeStruct`s.
            *rest: The direction, if the operator takes one, and further arguments.
            mode: How the derivatives are taken.
            has_aux: Whether `f` returns `(value, aux)`.
            batched: Whether the direction is a batch of directions.
            block_size: How many directions at once, for operators that choose.
            order: The order of the derivative, for operators of any order.
            where: Which leaves of `x` to differentiate; see `hotk.Where`.
            on_mismatch: `"raise"`, `"retrace"` or `"cast"`: what to do when it is
                called with another signature.
            **named: The direction, if it is given by name; `argnums`, `kwargs`,
                `weights`, `split` and `mesh_axis`.

        Returns:
            An immutable module, called as `prepared(x, [v], *args)`.
        """
        keywords = named.pop("split", None), named.pop("mesh_axis", None)
        given = arguments_of(self.definition, f, x, rest, named, has_aux)
        f, x, rest, places = given
        mode, block_size = divide(
            self.definition, keywords, mode, block_size, f, (x, rest)
        )
        options = self._options(mode, has_aux, batched, block_size, order, x, where)
        again = self if where is None else functools.partial(self, where=where)
        prepared = prepare(again, options, f, x, rest, on_mismatch)
        if places is None:
            return prepared
        return cast("Prepared", PreparedInOrder(prepared, places, self._least_rest))

    def _options(
        self,
        mode: AbstractMode,
        has_aux: bool,
        batched: bool,
        block_size: Block,
        order: object,
        x: Point = None,
        where: Where = None,
    ) -> Options:
        if self.definition.choice is not None or order is not None:
            order = self._checked_order(order)  # 2.0 is equal to 2
        selected = selection(self.definition.call(), x, where)
        key = (mode, bool(has_aux), bool(batched), block_size, order, selected)
        try:
            known = self._known_options.get(key)
        except TypeError:  # without a hash it is none of the choices
            known = None
        if known is None:
            self._check_options(mode, batched, block_size)
            known = self._known_options.setdefault(key, Options(self.definition, *key))
        return known

    def _check_options(self, mode: AbstractMode, batched: bool, block: Block) -> None:
        definition = self.definition
        block_size = block.size if isinstance(block, Division) else block
        if not isinstance(mode, (*definition.modes, Auto)):
            names = " or ".join(f"hotk.{m.__name__}(...)" for m in definition.modes)
            raise ModeError(
                message(
                    definition.call(),
                    "`mode` is not one of this operator's modes.",
                    expected=f"hotk.Auto() or {names}",
                    got=repr(mode),
                    fix="Choose one of them, or leave it out.",
                )
            )
        if batched and not definition.takes:
            raise TypeError(
                f"`{definition.call()}` has no direction: `batched` is not for it. For "
                "many points use `jax.vmap`."
            )
        if block_size is not None and not definition.sized:
            raise TypeError(
                f"`{definition.call()}` does not work in blocks: `block_size` is not "
                "for it."
            )
        whole = type(block_size) is int and block_size > 0
        if block_size is not None and not whole:
            raise (ValueError if type(block_size) is int else TypeError)(
                message(
                    definition.call(),
                    "`block_size` is the number of columns at once.",
                    expected="a positive integer",
                    got=repr(block_size),
                    fix="Leave it out: it is chosen from the program.",
                )
            )

    def _checked_order(self, order: object) -> object:
        definition = self.definition
        if definition.choice is None:
            raise TypeError(
                f"`{definition.call()}` has one order: `order` is not for it. See "
                "`hotk.derivatives`."
            )
        order = int(order) if isinstance(order, np.integer) else order
        whole = type(order) is definition.choice
        if not whole or (isinstance(order, int) and order < 0):
            raise (ValueError if whole else TypeError)(
                message(
                    definition.call(),
                    "`order` is the highest order of differentiation.",
                    expected="an integer, zero or more",
                    got=repr(order),
                    fix=f"Write `{definition.call()[:-1]}, order=3)`; what follows "
                    "without a name is an argument of `f`.",
                )
            )
        return order

    def __reduce__(self) -> str:
        """Pickle it by its name, as a function: there is one of each."""
        return vars(self)["__qualname__"]

    def __repr__(self) -> str:
        """Show the call."""
        return f"<hotk operator {self.definition.call()}>"


def _sorted(
    leaves: Sequence[PyTree],
    tree: PyTreeDef,
    least_rest: int,
    options: Options,
    places: Walk,
) -> Inputs:
    """Sort the leaves of a call that are not all arrays of JAX."""
    x_tree, rest_tree = tree.children()
    count = x_tree.num_leaves
    direction = rest_tree.children()[0].num_leaves if least_rest else 0
    point = PointLeaves.of(leaves[:count], x_tree, options.selected)
    return sort_inputs(leaves, (count, direction), places, point)


def operator(
    *,
    candidates: Candidates,
    modes: tuple[type[AbstractMode], ...],
    wants: str = "scalar",
    takes: str = "",
    value: bool = False,
    choice: type = int,
    curved: Callable[..., bool] | None = None,
    static_arrays: StaticArrays = StaticArrays.NONE,
    name: str = "",
    iterates: bool = False,
) -> Callable[[Callable[P, Results]], TypedOperator[P, Results]]:
    """Make an operator of its formula for a function of one argument.

    The formula is called as `formula(f, x, [v], mode=...)`, where `f(x)` returns
    `(y, aux)` and `x` holds the differentiated leaves only. It returns its results and
    `aux`. Its signature and docstring are the operator's, so its annotations say what
    a caller of the operator gets.

    Args:
        candidates: From facts and sizes to the modes to try.
        modes: The classes of mode that it accepts.
        wants: What `f` must return; see `Definition`.
        takes: What follows the point; see `Definition`.
        value: Whether the value of `f` is the first result.
        choice: The class of the keyword `order`, if the formula has one.
        curved: From `order`, whether the results are zero for a function that is
            piecewise linear; by default whether two derivatives are nested.
        static_arrays: Which arrays are always static by content; see `Definition`.
        name: The public name, if it is not that of the formula.
        iterates: Whether its programs are loops; see `Definition`.
    """

    def make(
        function: Callable[P, Results],
    ) -> TypedOperator[P, Results]:
        keywords = inspect.signature(function).parameters
        definition = Definition(
            name or function.__name__,
            takes=takes,
            wants=wants,
            formula=function,
            value=value,
            candidates=candidates,
            modes=modes,
            sized="block_size" in keywords,
            divides="split" in keywords,
            choice=choice if "order" in keywords else None,
            curved=curved or (lambda order: Nested in modes),
            static_arrays=static_arrays,
            weighted="weights" in keywords,
            iterates=iterates,
        )
        made = Operator(definition, function)
        return cast("TypedOperator[P, Results]", made)

    return make
