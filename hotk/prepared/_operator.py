"""`operator`: from a formula to an operator with direct call and `.prepare`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jax.tree_util import tree_flatten

from hotk._core import ARRAY, ModeError, Tracer, message, trace_context
from hotk.function import Opaque, Walk, dict_orders, is_inert, look
from hotk.mode import AUTO, AbstractMode, Auto

from ._call import SLOT, Call, Mismatch
from ._direct import call_slowly
from ._inputs import sort_inputs
from ._options import Kind, Options
from ._prepared import Prepared, prepare
from ._store import STORE


_ARRAYS = frozenset({ARRAY})


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
        self._usual = self._options(AUTO, False, False, None)
        self._least = 1 if kind.takes else 0
        self.__signature__ = inspect.signature(function)

    def __call__(
        self,
        f: Callable[..., Any],
        x: Any,
        *rest: Any,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        batched: bool = False,
        block_size: int | None = None,
    ) -> Any:
        """Evaluate the operator at `x`."""
        if mode is AUTO and not has_aux and not batched and block_size is None:
            options = self._usual
        else:
            options = self._options(mode, has_aux, batched, block_size)
        if len(rest) < self._least:
            raise self._missing()
        arrays = [x, *rest]
        shape: Any = len(arrays)
        marks: tuple[int, ...] = ()
        given: list[Any] = []
        orders = nodes = None
        fixed: tuple[Any, ...] = ()
        try:
            plain = True
            for array in arrays:  # faster than a set for a few
                plain = plain and type(array) is ARRAY
            if not plain:
                arrays, tree = tree_flatten((x, rest))
                if tree.num_leaves != shape or tree.num_nodes != shape + 2:
                    shape = tree
                    orders = dict_orders(rest[self._least :])
                    nodes = None if is_inert(tree) else tree
                if not _ARRAYS.issuperset(map(type, arrays)):
                    walk = Walk()
                    inputs = sort_inputs(arrays, _counts(tree, self._least), walk)
                    arrays, marks, given = inputs.arrays, inputs.marks, walk.key
                    fixed = inputs.visited
            key, captured = look(f, nodes, fixed)
        except (Opaque, RecursionError):
            return call_slowly(options, f, x, rest)
        found = (options, shape, marks, orders, 0, *given, *key)
        entry = STORE.entries.get(found)
        if entry is None or entry.first is None:
            return call_slowly(options, f, x, rest)
        if entry.shared is not None and not _is_for(entry, captured, arrays):
            return call_slowly(options, f, x, rest)
        entry.used = STORE.clock()
        SLOT.call = (_call_again, options, f, x, rest)
        try:
            result = entry.first.jit(captured, arrays)
        except Mismatch:
            return call_slowly(options, f, x, rest)
        finally:
            SLOT.call = None
        STORE.hits += 1
        return result

    def prepare(
        self,
        f: Callable[..., Any],
        x: Any,
        *rest: Any,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        batched: bool = False,
        block_size: int | None = None,
        on_mismatch: str = "raise",
    ) -> Prepared:
        """Trace and compile the operator once, for this function and signature.

        Args:
            f: The function, held as it is now.
            x: A point; only its structure, shapes and dtypes matter.
            *rest: The direction, if the operator takes one, and further arguments.
            mode: How the derivatives are taken.
            has_aux: Whether `f` returns `(value, aux)`.
            batched: Whether the direction is a batch of directions.
            block_size: How many directions at once, for operators that choose.
            on_mismatch: `"raise"`, `"retrace"` or `"cast"`: what to do when it is
            called
                with another signature.

        Returns:
            An immutable module, called as `prepared(x, [v], *args)`.
        """
        options = self._options(mode, has_aux, batched, block_size)
        if len(rest) < self._least:
            raise self._missing()
        return prepare(self, options, f, x, rest, on_mismatch)

    def _missing(self) -> TypeError:
        return TypeError(
            message(
                self.kind.call(),
                f"the argument `{self.kind.takes}` is missing.",
                expected=self.kind.call(),
                got=f"{self.kind.name}(f, x)",
                fix=f"Give the direction `{self.kind.takes}` after the point.",
            )
        )

    def _options(
        self, mode: AbstractMode, has_aux: bool, batched: bool, block_size: int | None
    ) -> Options:
        key = (mode, bool(has_aux), bool(batched), block_size)
        known = self._known.get(key)
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
                f"`{kind.call()}` has no direction: `batched` is not for it."
            )
        if block_size is not None and (not kind.sized or block_size < 1):
            raise (ValueError if kind.sized else TypeError)(
                message(
                    kind.call(),
                    "`block_size` is the number of columns at once.",
                    expected="a positive integer, for operators that work in blocks",
                    got=repr(block_size),
                    fix="Leave it out: it is chosen from the program.",
                )
            )

    def __repr__(self) -> str:
        """Show the call."""
        return f"<hotk operator {self.kind.call()}>"


def _call_again(options: Options, f: Any, x: Any, rest: Any) -> Call:
    """Walk and sort a direct call once more, because JAX traces its program."""
    return Call(options, f, x, rest, small=0)


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
) -> Callable[[Callable[..., Any]], Operator]:
    """Make an operator of its formula for a function of one argument.

    The formula is called as `formula(f, x, [v], mode=...)`, where `f(x)` returns
    `(y, aux)` and `x` holds the differentiated leaves only. It returns its results and
    `aux`. Its signature and docstring are the operator's.

    Args:
        candidates: From facts and sizes to the modes to try.
        modes: The classes of mode that it accepts.
        wants: `"scalar"` or `"inexact"`: what `f` must return.
        takes: `"v"`, `"u"` or nothing: the direction.
        value: Whether the value of `f` is the first result.
    """

    def make(function: Callable[..., Any]) -> Operator:
        kind = Kind(
            function.__name__,
            takes=takes,
            wants=wants,
            formula=function,
            value=value,
            candidates=candidates,
            modes=modes,
            sized="block_size" in inspect.signature(function).parameters,
        )
        return Operator(kind, function)

    return make
