"""Operators as type checkers and editors see them.

A decorator such as `like_point` says which results follow from the types of the
function and the point; the parameters are those of the formula, written once. With
`argnums` or `has_aux=True` the results have another structure. A `ParamSpec` cannot say
this of one keyword, so the overloads of these calls do not check the other ones. What
may be a tree of any kind is a `PyTree`: `jax.hessian` of a dictionary is one of
dictionaries, which no annotation derives from the first. A dictionary or a list of
arrays and numbers is the one tree whose numbers are known to become arrays. The
overload for trees of trees leaves `dict[str, Any]` what it is.
"""

from collections.abc import Callable, Sequence
from typing import (
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from jax import Array, ShapeDtypeStruct
from jax.typing import ArrayLike
from jaxtyping import PyTree

from hotk._core import Function, Name, Numeric, Point, Scalar, Tree, X
from hotk._mode import AUTO, AbstractMode

from ._prepared import Prepared


P = ParamSpec("P")
Results = TypeVar("Results", covariant=True)
Arrays = TypeVar("Arrays", covariant=True)

_Argnums: TypeAlias = int | Sequence[int]
_ToArray: TypeAlias = Callable[..., ArrayLike]


class Preparable(Protocol[Arrays, Results]):
    """What all operators have besides a call.

    Of a tree it does not say more than `Results`: its leaves may be those of
    `jax.eval_shape`, so that it is not one of arrays.
    """

    @overload
    def prepare(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        argnums: _Argnums,
        **named: PyTree,
    ) -> Prepared[Results]: ...
    @overload
    def prepare(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        has_aux: Literal[True],
        **named: PyTree,
    ) -> Prepared: ...
    @overload
    def prepare(
        self,
        f: _ToArray,
        x: ArrayLike | ShapeDtypeStruct,
        *rest: PyTree,
        mode: AbstractMode = AUTO,
        on_mismatch: str = "raise",
        **named: PyTree,
    ) -> Prepared[Arrays]: ...
    @overload
    def prepare(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        mode: AbstractMode = AUTO,
        has_aux: bool = False,
        on_mismatch: str = "raise",
        **named: PyTree,
    ) -> Prepared[Results]: ...


class TypedOperator(Preparable[Results, Results], Protocol[P, Results]):
    """An operator with the parameters and results of one formula.

    `Operator.__call__` takes what any operator may take and sorts it itself, as a call
    must cost little; its annotations would show every keyword for every operator.
    """

    def __call__(self, *args: P.args, **keywords: P.kwargs) -> Results:
        """Evaluate the operator at a point."""
        ...


class LikePoint(Preparable[Array, PyTree], Protocol[P]):
    """An operator whose result is like the point, as a gradient and a product."""

    @overload
    def __call__(
        self, f: Function, x: Point, *rest: PyTree, argnums: _Argnums, **named: PyTree
    ) -> PyTree: ...
    @overload
    def __call__(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        has_aux: Literal[True],
        **named: PyTree,
    ) -> tuple[PyTree, PyTree]: ...
    @overload
    def __call__(
        self, f: _ToArray, x: ArrayLike, *args: P.args, **keywords: P.kwargs
    ) -> Array: ...
    @overload
    def __call__(
        self, f: _ToArray, x: dict[Name, Tree], *args: P.args, **keywords: P.kwargs
    ) -> dict[Name, Tree]: ...
    @overload
    def __call__(
        self, f: _ToArray, x: dict[Name, Numeric], *args: P.args, **keywords: P.kwargs
    ) -> dict[Name, Array]: ...
    @overload
    def __call__(
        self, f: _ToArray, x: list[Numeric], *args: P.args, **keywords: P.kwargs
    ) -> list[Array]: ...
    @overload
    def __call__(self, f: _ToArray, x: X, *args: P.args, **keywords: P.kwargs) -> X: ...
    @overload
    def __call__(
        self, f: Function, x: Point, *args: P.args, **keywords: P.kwargs
    ) -> PyTree: ...


class ValueAndLikePoint(
    Preparable[tuple[Scalar, Array], tuple[Scalar, PyTree]], Protocol[P]
):
    """An operator that returns the value as well, as `value_and_gradient`."""

    @overload
    def __call__(
        self, f: Function, x: Point, *rest: PyTree, argnums: _Argnums, **named: PyTree
    ) -> tuple[PyTree, PyTree]: ...
    @overload
    def __call__(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        has_aux: Literal[True],
        **named: PyTree,
    ) -> tuple[tuple[Scalar, PyTree], PyTree]: ...
    @overload
    def __call__(
        self, f: Function, x: ArrayLike, *args: P.args, **keywords: P.kwargs
    ) -> tuple[Scalar, Array]: ...
    @overload
    def __call__(
        self, f: Function, x: dict[Name, Tree], *args: P.args, **keywords: P.kwargs
    ) -> tuple[Scalar, dict[Name, Tree]]: ...
    @overload
    def __call__(
        self, f: Function, x: dict[Name, Numeric], *args: P.args, **keywords: P.kwargs
    ) -> tuple[Scalar, dict[Name, Array]]: ...
    @overload
    def __call__(
        self, f: Function, x: list[Numeric], *args: P.args, **keywords: P.kwargs
    ) -> tuple[Scalar, list[Array]]: ...
    @overload
    def __call__(
        self, f: Function, x: X, *args: P.args, **keywords: P.kwargs
    ) -> tuple[Scalar, X]: ...


class WithAux(Preparable[Results, Results], Protocol[P, Results]):
    """An operator whose result is of one type, a pair with `has_aux=True`."""

    @overload
    def __call__(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        has_aux: Literal[True],
        **named: PyTree,
    ) -> tuple[Results, PyTree]: ...
    @overload
    def __call__(self, *args: P.args, **keywords: P.kwargs) -> Results: ...


class OfArrays(Preparable[Arrays, Results], Protocol[P, Arrays, Results]):
    """An operator whose results are arrays where the function is one of arrays.

    For a tree the results are those of the formula.
    """

    @overload
    def __call__(
        self, f: Function, x: Point, *rest: PyTree, argnums: _Argnums, **named: PyTree
    ) -> Results: ...
    @overload
    def __call__(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        has_aux: Literal[True],
        **named: PyTree,
    ) -> Results: ...
    @overload
    def __call__(
        self, f: _ToArray, x: ArrayLike, *args: P.args, **keywords: P.kwargs
    ) -> Arrays: ...
    @overload
    def __call__(
        self, f: Function, x: Point, *args: P.args, **keywords: P.kwargs
    ) -> Results: ...


class LikeValue(Preparable[Arrays, Results], Protocol[P, Arrays, Results]):
    """An operator whose results are like the value of the function, at any point."""

    @overload
    def __call__(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        has_aux: Literal[True],
        **named: PyTree,
    ) -> Results: ...
    @overload
    def __call__(
        self, f: _ToArray, x: Point, *args: P.args, **keywords: P.kwargs
    ) -> Arrays: ...
    @overload
    def __call__(
        self, f: Function, x: Point, *args: P.args, **keywords: P.kwargs
    ) -> Results: ...


_Of: TypeAlias = TypedOperator[Concatenate[Function, Point, P], Results]


def like_point(operator: _Of[P, PyTree]) -> LikePoint[P]:
    """Type an operator whose result is like the point."""
    return cast("LikePoint[P]", operator)


def value_and_like_point(operator: _Of[P, PyTree]) -> ValueAndLikePoint[P]:
    """Type an operator that returns the value, and what is like the point."""
    return cast("ValueAndLikePoint[P]", operator)


def like_value(operator: _Of[P, Results]) -> LikeValue[P, Array, Results]:
    """Type an operator whose result is like the value of the function."""
    return cast("LikeValue[P, Array, Results]", operator)


def list_like_value(operator: _Of[P, Results]) -> LikeValue[P, list[Array], Results]:
    """Type an operator that returns a list of what is like the value."""
    return cast("LikeValue[P, list[Array], Results]", operator)


def with_aux(operator: TypedOperator[P, Results]) -> WithAux[P, Results]:
    """Type an operator whose result is of one type, whatever the point is."""
    return cast("WithAux[P, Results]", operator)


def array_of_array(operator: _Of[P, Results]) -> OfArrays[P, Array, Results]:
    """Type an operator whose result is one array for a function of arrays."""
    return cast("OfArrays[P, Array, Results]", operator)


def two_of_array(
    operator: _Of[P, Results],
) -> OfArrays[P, tuple[Array, Array], Results]:
    """Type an operator that returns the value as well."""
    return cast("OfArrays[P, tuple[Array, Array], Results]", operator)


def three_of_array(
    operator: _Of[P, Results],
) -> OfArrays[P, tuple[Array, Array, Array], Results]:
    """Type an operator that returns value and gradient as well."""
    return cast("OfArrays[P, tuple[Array, Array, Array], Results]", operator)
