"""The arguments of a call as they are written: by name, by `argnums`, by `kwargs`."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._capture import static
from hotk._core import (
    Argnums,
    Function,
    Keywords,
    Point,
    describe,
    elsewhere,
    message,
)

from ._checks import check_aux, check_output, match_direction
from ._info import Info
from ._options import Definition
from ._prepared import Prepared


_CALL = "hvp(f, x, v, weights=u)"


def weighted_sum(f: Function, out: PyTree, weights: PyTree, has_aux: bool) -> PyTree:
    """Return the sum of the outputs of a function, each times its weight.

    Args:
        f: The function, for messages.
        out: What it returned.
        weights: A tree like its value. They are cast to the dtypes of the outputs:
            where they are arguments of a program, nothing tells NumPy's from JAX's.
        has_aux: Whether the function returns `(value, aux)`; then the sum does, too.

    Raises:
        StructureError: If the weights have another structure or shape.
        OutputError: If the outputs are not floating.
    """
    y, aux = check_aux(_CALL, f, out) if has_aux else (out, None)
    check_output(_CALL, f, y, "inexact")
    parts = match_direction(
        _CALL,
        ("y", "weights"),
        y,
        weights,
        castable=set(map(id, jax.tree.leaves(weights))),
        batched=False,
        differentiated=[True] * len(jax.tree.leaves(y)),
    )
    pairs = zip(parts, jax.tree.leaves(y), strict=True)
    rows = [jnp.sum(u * jnp.asarray(a)) for u, a in pairs]
    dtype = jnp.result_type(*rows)
    total = sum((row.astype(dtype) for row in rows[1:]), start=rows[0].astype(dtype))
    return (total, aux) if has_aux else total


MISSING = object()
_SEVERAL = (tuple, list, range)
_FIX = (
    "Arguments of `f` follow by position, after the direction; those by keyword go in "
    "`kwargs={{{name!r}: ...}}`."
)
_FIXES = {
    "on_mismatch": "It is for `.prepare`; a direct call takes any arguments.",
    "holomorphic": "Complex parameters are taken as pairs of real ones.",
    "allow_int": "Integer leaves inside of a tree pass through.",
}


def _fix(definition: Definition, name: str) -> str:
    own, usual = _FIXES.get(name), _FIX.format(name=name)
    other = elsewhere(definition.name, name)
    return own or (usual if other is None else f"{other} {usual}")


@static
@dataclasses.dataclass(frozen=True)
class ArgumentOrder:
    """Where the differentiated arguments of a function stand.

    Attributes:
        positions: Their positions.
        is_single: Whether the point is the argument itself, or a tuple of several.
        total: How many arguments there are by position.
        has_kwargs: Whether keyword arguments follow as a dict.
        weighted: How weights of the outputs, which come last, are used: `""` if there
            are none, `"value"`, or `"pair"` if the function returns `(value, aux)`.
    """

    positions: tuple[int, ...]
    is_single: bool
    total: int
    has_kwargs: bool
    weighted: Literal["", "value", "pair"] = ""

    def split(self, arguments: Sequence[PyTree]) -> tuple[Point, tuple[PyTree, ...]]:
        """Return what is differentiated, and the others in their order."""
        chosen = tuple(arguments[i] for i in self.positions)
        others = [a for i, a in enumerate(arguments) if i not in self.positions]
        return chosen[0] if self.is_single else chosen, tuple(others)

    def join(self, point: Point, others: Sequence[PyTree]) -> list[PyTree]:
        """Return the arguments by position: the inverse of `split`."""
        chosen = (point,) if self.is_single else point
        by_position = dict(zip(self.positions, chosen, strict=True))
        rest = iter(others)
        return [
            by_position[i] if i in by_position else next(rest)
            for i in range(self.total)
        ]


class Rearranged(eqx.Module):
    """A function whose differentiated arguments come first, as one.

    With weights it is the sum of its outputs, each times its weight.

    Attributes:
        func: The function. Messages find its name by this attribute.
        order: Where its arguments stand.
    """

    func: Function
    order: ArgumentOrder = eqx.field(static=True)

    def __call__(self, point: Point, *others: PyTree) -> PyTree:
        """Call the function with its arguments in their places."""
        weighted = self.order.weighted
        given = others[:-1] if weighted else others
        kwargs = given[-1] if self.order.has_kwargs else {}
        result = self.func(*self.order.join(point, given), **kwargs)
        if not weighted:
            return result
        return weighted_sum(self.func, result, others[-1], weighted == "pair")


class Arguments(NamedTuple):
    """A call, rearranged so that what is differentiated comes first.

    Attributes:
        f: The function.
        x: The point.
        rest: The direction, if the operator takes one, and further arguments.
        order: Where they stood, `None` if they stood so.
    """

    f: Function
    x: Point
    rest: tuple[PyTree, ...]
    order: ArgumentOrder | None


def arguments_of(
    definition: Definition,
    f: Function,
    x: Point,
    rest: tuple[PyTree, ...],
    named: dict[str, PyTree],
    has_aux: bool = False,
) -> Arguments:
    """Sort the arguments of a call.

    Args:
        definition: The operator.
        f: The function.
        x: The first argument, `MISSING` if there is none.
        rest: What follows it.
        named: The direction, if it is given by name, `argnums`, `kwargs`, `weights`.
        has_aux: Whether the function returns `(value, aux)`.

    Raises:
        TypeError: If an argument is missing, or there is no such keyword.
        ValueError: If `argnums` are no positions of arguments.
    """
    call, takes = definition.call(), definition.takes
    argnums, kwargs = named.pop("argnums", None), named.pop("kwargs", None)
    weights = named.pop("weights", None) if definition.weighted else None
    if takes and takes in named:
        rest = (named.pop(takes), *rest)
    for name in named:
        raise TypeError(
            message(
                call,
                f"there is no keyword `{name}`.",
                expected=f"{call[:-1]}, *args, mode=, has_aux=, ...)",
                got=f"{name}=",
                fix=_fix(definition, name),
            )
        )
    ahead = 1 if takes else 0
    if x is MISSING or len(rest) < ahead:
        missing = "x" if x is MISSING else takes
        raise TypeError(
            message(
                call,
                f"the argument `{missing}` is missing.",
                expected=call,
                got=f"{definition.name}({'f' if missing == 'x' else 'f, x'})",
                fix=f"Write `{call}`: "
                + (
                    "an operator takes function and point at once."
                    if missing == "x"
                    else f"`{missing}` follows the point."
                ),
            )
        )
    if argnums is None and kwargs is None and weights is None:
        return Arguments(f, x, rest, None)
    given = (x, *rest[ahead:])
    order = _checked_order(call, argnums, kwargs, len(given))
    if weights is not None:
        weighted = "pair" if has_aux else "value"
        order = dataclasses.replace(order, weighted=weighted)
    if order == ArgumentOrder((0,), True, len(given), False):
        return Arguments(f, x, rest, None)  # the same program as without `argnums`
    point, others = order.split(given)
    tail = () if kwargs is None else (dict(kwargs),)
    tail += () if weights is None else (weights,)
    return Arguments(
        Rearranged(f, order), point, (*rest[:ahead], *others, *tail), order
    )


def rearranged(
    call: str,
    f: Function,
    given: tuple[PyTree, ...],
    argnums: Argnums,
    kwargs: Keywords,
) -> tuple[Function, Point, tuple[PyTree, ...]]:
    """Return a function whose differentiated arguments come first, and its arguments.

    Args:
        call: The call, for messages.
        f: The function.
        given: Its arguments by position.
        argnums: Which of them are differentiated.
        kwargs: Its keyword arguments, which then are the last argument, a dict.

    Raises:
        TypeError: If they are no positions, or no dict of names.
        ValueError: If there are no such arguments.
    """
    order = _checked_order(call, argnums, kwargs, len(given))
    if order == ArgumentOrder((0,), True, len(given), False):
        return f, given[0], given[1:]
    point, others = order.split(given)
    tail = () if kwargs is None else (dict(kwargs),)
    return Rearranged(f, order), point, (*others, *tail)


def _checked_order(
    call: str, argnums: Argnums, kwargs: Keywords, total: int
) -> ArgumentOrder:
    names = [*kwargs] if isinstance(kwargs, Mapping) else []
    named_all = all(isinstance(name, str) for name in names)
    if not isinstance(kwargs, Mapping | None) or not named_all:
        raise TypeError(
            message(
                call,
                "`kwargs` are the keyword arguments of `f`.",
                expected="a dict whose keys are names",
                got=f"a dict of {names}" if names else describe(kwargs),
                fix="Write `kwargs={'name': value}`.",
            )
        )
    return _order(call, argnums, total, kwargs is not None)


def _order(call: str, argnums: Argnums, total: int, has_kwargs: bool) -> ArgumentOrder:
    """Check `argnums` as JAX does, and count those from the end from the beginning."""
    given = 0 if argnums is None else argnums
    is_single = not isinstance(given, _SEVERAL)
    numbers: list[Any] = [*given] if isinstance(given, _SEVERAL) else [given]
    try:  # as JAX takes them: integers of NumPy as well
        whole = [operator.index(n) for n in numbers if not isinstance(n, bool)]
    except TypeError:
        whole = []
    if len(whole) < len(numbers):
        whole = []
    positions = tuple(n + total if n < 0 else n for n in whole)
    fits = bool(positions) and all(0 <= n < total for n in positions)
    if not fits or len({*positions}) < len(positions):
        raise (ValueError if positions else TypeError)(
            message(
                call,
                "`argnums` are the positions of the arguments to differentiate.",
                expected=f"an integer from 0 to {total - 1}, or a tuple of such",
                got=repr(argnums),
                fix=f"`f` is called with {total} arguments by position: count from 0, "
                "without the direction.",
            )
        )
    return ArgumentOrder(positions, is_single, total, has_kwargs)


class PreparedInOrder(eqx.Module):
    """A `Prepared` that is called with the arguments as they stood.

    Attributes:
        prepared: What is called with the differentiated arguments first.
        order: Where they stand.
        ahead: How many directions follow the first argument.
    """

    prepared: Prepared
    order: ArgumentOrder = eqx.field(static=True)
    ahead: int = eqx.field(static=True)

    def __call__(
        self,
        x: PyTree,
        *rest: PyTree,
        kwargs: Mapping[str, PyTree] | None = None,
        weights: PyTree = None,
    ) -> PyTree:
        """Evaluate the operator.

        Args:
            x: The first argument of the function.
            *rest: The direction, if the operator takes one, and further arguments.
            kwargs: The keyword arguments of the function, if it was prepared with some.
            weights: The weights of the outputs, if it was prepared with some.
        """
        given = (x, *rest[self.ahead :])
        if len(given) != self.order.total:
            raise TypeError(
                f"{self!r} takes {self.order.total} arguments of `f` by position, not "
                f"{len(given)}."
            )
        point, others = self.order.split(given)
        tail = () if kwargs is None else (dict(kwargs),)
        tail += () if weights is None else (weights,)
        return self.prepared(point, *rest[: self.ahead], *others, *tail)

    @property
    def arguments(self) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """The arguments that it was prepared for, by position and by keyword."""
        point, *rest = self.prepared.arguments
        named: dict[str, PyTree] = {}
        if self.order.weighted:
            named["weights"] = rest.pop()
        if self.order.has_kwargs:
            named["kwargs"] = rest.pop()
        first, *others = self.order.join(point, rest[self.ahead :])
        return (first, *rest[: self.ahead], *others), named

    def bind(self, f: Function) -> "PreparedInOrder":
        """Give the same program the captured arrays of another function.

        Args:
            f: A function with the same skeleton; see `Prepared.bind`.
        """
        bound = self.prepared.bind(Rearranged(f, self.order))
        return PreparedInOrder(bound, self.order, self.ahead)

    @property
    def info(self) -> Info:
        """Mode and why, equations, flops, bytes, and seconds to trace and compile."""
        return self.prepared.info

    def __repr__(self) -> str:
        """Show the operator, and which arguments are differentiated."""
        weights = ", weights=" if self.order.weighted else ""
        return f"{self.prepared!r}, argnums={self.order.positions}{weights}"
