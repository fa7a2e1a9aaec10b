"""`operator`: from a formula to an operator with direct call and `.prepare`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from jax.tree_util import tree_flatten

from hotk._core import ARRAY, ModeError, Tracer, message, trace_context, unkeyed_setting
from hotk.capture import Opaque, StaticArrays, Walk, dict_orders, key_and_arrays
from hotk.mode import (
    AUTO,
    AbstractMode,
    Auto,
    Nested,
)

from ._call import SLOT, Call, Mismatch
from ._direct import call_slowly
from ._inputs import sort_inputs
from ._options import Kind, Options
from ._prepared import Prepared, prepare
from ._store import STORE
from ._typed_operator import Parameters, Results, TypedOperator


_ARRAYS = frozenset({ARRAY})
_MISSING: Any = object()
_WAY_OUT = (
    "Arguments of `f` follow by position, after the direction; for one by keyword "
    "use `functools.partial(f, {name}=...)`."
)
_WAYS_OUT = {
    "argnums": "`f` is differentiated by its first argument, which may be a tree: give "
    "what else is to be differentiated inside it.",
    "on_mismatch": "It is for `.prepare`; a direct call takes any arguments.",
    "holomorphic": "Complex parameters are taken as pairs of real ones.",
    "allow_int": "Integer leaves inside of a tree pass through.",
}


class Operator:
    """A derivative at a point: call it directly, or prepare it once.

    `op(f, x, [v], *args)` returns the value at `x`; the program is found by the code
    and the captured structure of `f`, so nothing is traced or compiled twice.
    `op.prepare(f, x, [v], *args)` returns a `Prepared`, called as `prepared(x, [v],
    *args)`.
    """

    def __init__(self, kind: Kind, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.kind = kind
        self._known: dict[Any, Options] = {}
        self._usual: Any = None
        if kind.choice is None:
            self._usual = self._options(AUTO, False, False, None, None)
        self._least = 1 if kind.takes else 0
        self.__signature__ = inspect.signature(function)

    def __call__(
        self,
        f: Callable[..., Any],
        x: Any = _MISSING,
        *rest: Any,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        batched: bool = False,
        block_size: int | None = None,
        order: Any = None,
        **named: Any,
    ) -> Any:
        """Evaluate the operator at `x`."""
        if x is _MISSING or len(rest) < self._least or named:
            rest = self._arguments(x, rest, named)
        choices = block_size is not None or order is not None
        if mode is AUTO and not has_aux and not batched and not choices:
            options = self._usual or self._options(mode, False, False, None, None)
        else:
            options = self._options(mode, has_aux, batched, block_size, order)
        arrays = [x, *rest]
        shape: Any = len(arrays)
        marks: tuple[int, ...] = ()
        given: list[Any] = []
        orders = nodes = None
        fixed: tuple[Any, ...] = ()
        key: Any = None
        captured: Any = None
        result: Any = None
        try:
            plain = True
            for array in arrays:  # faster than a set for a few
                plain = plain and type(array) is ARRAY
            if not plain:
                arrays, tree = tree_flatten((x, rest))
                if tree.num_leaves != shape or tree.num_nodes != shape + 2:
                    shape = tree
                    orders = dict_orders(rest[self._least :])
                    nodes = tree
                if not _ARRAYS.issuperset(map(type, arrays)):
                    walk = Walk()
                    inputs = sort_inputs(arrays, _counts(tree, self._least), walk)
                    arrays, marks, given = inputs.arrays, inputs.marks, walk.key
                    fixed = inputs.visited
            key, captured = key_and_arrays(f, nodes, fixed)
        except (Opaque, RecursionError):
            pass  # what is called in here has this error in its traceback
        if key is None:
            return call_slowly(options, f, x, rest)
        found = (options, shape, marks, orders, unkeyed_setting(), 0, *given, *key)
        entry = STORE.entries.get(found)
        if entry is None or entry.first is None:
            return call_slowly(options, f, x, rest)
        if entry.shared is not None and not _is_for(entry, captured, arrays):
            return call_slowly(options, f, x, rest)
        entry.used = STORE.clock()
        SLOT.call = (_call_again, options, f, x, rest)
        fits = True
        try:
            result = entry.first.jit(captured, arrays)
        except Mismatch:
            fits = False
        finally:
            SLOT.call = None
        if not fits:
            return call_slowly(options, f, x, rest)
        STORE.hits += 1
        return result

    def prepare(
        self,
        f: Callable[..., Any],
        x: Any = _MISSING,
        *rest: Any,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        batched: bool = False,
        block_size: int | None = None,
        order: Any = None,
        on_mismatch: str = "raise",
        **named: Any,
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
            on_mismatch: `"raise"`, `"retrace"` or `"cast"`: what to do when it is
                called with another signature.
            **named: The direction, if it is given by name.

        Returns:
            An immutable module, called as `prepared(x, [v], *args)`.
        """
        options = self._options(mode, has_aux, batched, block_size, order)
        if x is _MISSING or len(rest) < self._least or named:
            rest = self._arguments(x, rest, named)
        return prepare(self, options, f, x, rest, on_mismatch)

    def _arguments(
        self, x: Any, rest: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Return the direction and what follows, with what was given by name."""
        call, takes = self.kind.call(), self.kind.takes
        if takes and takes in named:
            rest = (named.pop(takes), *rest)
        for name in named:
            raise TypeError(
                message(
                    call,
                    f"there is no keyword `{name}`.",
                    expected=f"{call[:-1]}, *args, mode=, has_aux=, ...)",
                    got=f"{name}=",
                    fix=_WAYS_OUT.get(name, _WAY_OUT.format(name=name)),
                )
            )
        if x is _MISSING or len(rest) < self._least:
            missing = "x" if x is _MISSING else takes
            raise TypeError(
                message(
                    call,
                    f"the argument `{missing}` is missing.",
                    expected=call,
                    got=f"{self.kind.name}({'f' if missing == 'x' else 'f, x'})",
                    fix=f"Write `{call}`: an operator takes function and point at "
                    "once.",
                )
            )
        return rest

    def _options(
        self,
        mode: AbstractMode,
        has_aux: bool,
        batched: bool,
        block_size: int | None,
        order: Any,
    ) -> Options:
        if self.kind.choice is not None or order is not None:
            order = self._checked_order(order)  # 2.0 is equal to 2
        key = (mode, bool(has_aux), bool(batched), block_size, order)
        try:
            known = self._known.get(key)
        except TypeError:  # without a hash it is none of the choices
            known = None
        if known is None:
            self._check_options(mode, batched, block_size)
            known = self._known.setdefault(key, Options(self.kind, *key))
        return known

    def _check_options(
        self, mode: AbstractMode, batched: bool, block_size: int | None
    ) -> None:
        kind = self.kind
        if not isinstance(mode, (*kind.modes, Auto)):
            names = " or ".join(f"hotk.{m.__name__}(...)" for m in kind.modes)
            raise ModeError(
                message(
                    kind.call(),
                    "`mode` is not one of this operator's modes.",
                    expected=f"hotk.Auto() or {names}",
                    got=repr(mode),
                    fix="Choose one of them, or leave it out.",
                )
            )
        if batched and not kind.takes:
            raise TypeError(
                f"`{kind.call()}` has no direction: `batched` is not for it. For many "
                "points use `jax.vmap`."
            )
        if block_size is not None and not kind.sized:
            raise TypeError(
                f"`{kind.call()}` does not work in blocks: `block_size` is not for it."
            )
        whole = type(block_size) is int and block_size > 0
        if block_size is not None and not whole:
            raise (ValueError if type(block_size) is int else TypeError)(
                message(
                    kind.call(),
                    "`block_size` is the number of columns at once.",
                    expected="a positive integer",
                    got=repr(block_size),
                    fix="Leave it out: it is chosen from the program.",
                )
            )

    def _checked_order(self, order: Any) -> Any:
        kind = self.kind
        if kind.choice is None:
            raise TypeError(
                f"`{kind.call()}` has one order: `order` is not for it. See "
                "`hotk.derivatives`."
            )
        order = int(order) if isinstance(order, np.integer) else order
        whole = type(order) is kind.choice
        if not whole or (kind.choice is int and order < 0):
            raise (ValueError if whole else TypeError)(
                message(
                    kind.call(),
                    "`order` is the highest order of differentiation.",
                    expected="an integer, zero or more",
                    got=repr(order),
                    fix=f"Write `{kind.call()[:-1]}, order=3)`; what follows without a "
                    "name is an argument of `f`.",
                )
            )
        return order

    def __repr__(self) -> str:
        """Show the call."""
        return f"<hotk operator {self.kind.call()}>"


def _call_again(options: Options, f: Any, x: Any, rest: Any) -> Call:
    """Walk and sort a direct call once more, because JAX traces its program."""
    return Call(options, f, x, rest, static_arrays=StaticArrays.NONE)


def _is_for(entry: Any, captured: list[Any], arrays: list[Any]) -> bool:
    """Whether a program of another function may run: under the same configuration, and
    not to be differentiated, as its derivative rules may differ.
    """
    concrete = not any(isinstance(a, Tracer) for a in (*captured, *arrays))
    return concrete and entry.shared == trace_context()


def _counts(tree: Any, least: int) -> tuple[int, int]:
    x_tree, rest_tree = tree.children()
    direction = rest_tree.children()[0].num_leaves if least else 0
    return x_tree.num_leaves, direction


def operator(
    *,
    candidates: Callable[..., Any],
    modes: tuple[type, ...],
    wants: str = "scalar",
    takes: str = "",
    value: bool = False,
    choice: type = int,
    curved: Callable[[Any], bool] | None = None,
    name: str = "",
) -> Callable[[Callable[Parameters, Results]], TypedOperator[Parameters, Results]]:
    """Make an operator of its formula for a function of one argument.

    The formula is called as `formula(f, x, [v], mode=...)`, where `f(x)` returns
    `(y, aux)` and `x` holds the differentiated leaves only. It returns its results and
    `aux`. Its signature and docstring are the operator's, so its annotations say what
    a caller of the operator gets.

    Args:
        candidates: From facts and sizes to the modes to try.
        modes: The classes of mode that it accepts.
        wants: `"scalar"` or `"inexact"`: what `f` must return.
        takes: What follows the point; see `Kind`.
        value: Whether the value of `f` is the first result.
        choice: The class of the keyword `order`, if the formula has one.
        curved: From `order`, whether the results are zero for a function that is linear
            in pieces; by default whether two derivatives are nested.
        name: The public name, if it is not that of the formula.
    """

    def make(
        function: Callable[Parameters, Results],
    ) -> TypedOperator[Parameters, Results]:
        keywords = inspect.signature(function).parameters
        kind = Kind(
            name or function.__name__,
            takes=takes,
            wants=wants,
            formula=function,
            value=value,
            candidates=candidates,
            modes=modes,
            sized="block_size" in keywords,
            choice=choice if "order" in keywords else None,
            curved=curved or (lambda order: Nested in modes),
        )
        return cast("TypedOperator[Parameters, Results]", Operator(kind, function))

    return make
