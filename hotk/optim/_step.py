"""`transformation`: an optimizer from the formula of one step.

Each step is one operator of hotk: its program is found by the code and the captured
structure of the objective, so a new closure over a new batch is not compiled again, and
what varies (state, batch, damping, learning rate) are arrays of that program.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, PyTree

from hotk._capture import StaticArrays
from hotk._core import (
    Function,
    Point,
    Scalar,
    Selection,
    StructureError,
    Where,
    configuration,
    describe,
    differentiated,
    from_host,
    leaf_name,
    message,
    names_ours,
    split_point,
)
from hotk._mode import (
    AUTO,
    Auto,
    Nested,
    second_order_candidates,
)
from hotk._prepared import operator
from hotk.linop import space

from ._explained import called, explained_for_nnx
from ._flat import is_better_flat, known as within_loop, on_flat
from ._linear_solver import needs_indices
from ._local import AtPoint, Numbers
from ._parameters import (
    AllParameters,
    all_parameters,
    of_all_parameters,
    parts_like,
    refuse_complex_parameters,
    refuse_other_leaves,
    with_hidden,
)
from ._preconditioner import Preconditioner, preconditioning
from ._scaling import narrowed_to, widened_to
from ._transformation import Transformation, transformation_of


Formula = Callable[..., tuple[Any, Any]]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class BoundFormula(NamedTuple):
    """What is fixed in a program of an optimizer.

    Attributes:
        formula: `formula(f, x, c, mode, **choices)`, where `f` returns `(y, aux)` and
            `c` is a tree of arrays, returns a tree of arrays.
        choices: Keywords of the formula that choose the program.
    """

    formula: Callable[..., Any]
    choices: tuple[tuple[str, Any], ...]


def _never(order: BoundFormula) -> bool:
    del order
    return False


def _run(
    f: Callable[..., Any],
    x: Point,
    c: PyTree,
    *args: PyTree,
    order: BoundFormula,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
) -> PyTree:
    """Run a formula: found by the code of `f`, compiled once."""
    assert isinstance(mode, Nested)
    return order.formula(f, x, c, mode, **dict(order.choices)), None


_operator = functools.partial(
    operator,
    takes="c",
    candidates=second_order_candidates,
    modes=(Nested,),
    choice=BoundFormula,
    curved=_never,
    name="optim",
    iterates=True,
)
run = _operator()(_run)
# The pattern of a sparse matrix depends on the content of indices.
run_with_indices = _operator(static_arrays=StaticArrays.ALL_INTEGERS)(_run)


def _step(
    f: Callable[..., Any],
    x: Point,
    c: tuple[list[Array], optax.OptState, Numbers, tuple[Scalar, list[Array]] | None],
    mode: Nested,
    *,
    formula: Formula,
    flat: bool,
    **choices: Any,
) -> tuple[list[Array], optax.OptState]:
    """Make one step: from `(gradient, state, numbers, known)` to `(step, state)`."""
    updates, state, numbers, known = c
    gradient = like = jax.tree.structure(x).unflatten(updates)
    slope = None if known is None else jax.tree.structure(x).unflatten(known[1])
    if flat:
        f, x, gradient = on_flat(f, x), space.flattened(x), space.flattened(gradient)
        slope = None if slope is None else space.flattened(slope)
    with space.mesh_of(x):
        local = AtPoint(f, x, mode, None if known is None else (known[0], slope))
        step, made = formula(local, gradient, state, numbers, **choices)
    state = jax.tree.map(lambda a, b: a.astype(b.dtype), made, state)
    step = jax.tree.map(lambda a, b: a.astype(b.dtype), step, gradient)
    step = space.choose(space.is_finite(step), step, space.zeros(step))
    return jax.tree.leaves(space.unflattened(step, like) if flat else step), state


def transformation(
    name: str,
    init: Callable[[Any, Mapping[str, Any]], Any],
    formula: Formula,
    numbers: Mapping[str, Any],
    compose: Callable[[Any, Mapping[str, Any], Any], Any] | None = None,
    like_params: Sequence[str] = (),
    preconditioner: Preconditioner | None = None,
    **choices: Any,
) -> Transformation[Any]:
    """Make a transformation of optax from the formula of one step.

    Args:
        name: Its name, for messages.
        init: From the parameters and the numbers to the first state.
        formula: `formula(local, gradient, state, numbers, **choices)` returns the
            scaled gradient, and the next state. It is traced: `local` is the objective
            at the parameters, the rest are arrays. All leaves may be one flat vector,
            there and in the gradient. The state keeps its structure; its
            dtypes are restored here. A step that is not finite becomes zero here, so a
            formula says in its state what happened: a field `outcome`, an `Outcome`. A
            field `curvature`, the smallest that was met, feeds
            `Minimum.smallest_curvature`.
        numbers: What may vary without a compile, by name.
        compose: From `value_fn`, the further keywords of an update and the state to the
            objective, if it is made of other functions.
        like_params: Fields of the state that have the structure of the parameters.
        preconditioner: A preconditioner. What is static of it is a choice of the
            formula, `preconditioning`, and what it captured a number, `captured`.
        **choices: What chooses the program, by name. With
            `linear_solver="sparse"` captured integers are static by content.
    """
    arrays: dict[str, Any] = {
        key: as_number(name, key, value) for key, value in numbers.items()
    }

    def first(params: optax.Params) -> optax.OptState:
        call = f"{name}(...).init(params)"
        _refuse_configuration(call, params, jax.tree.leaves(params))
        # Only what is differentiated has a state; the rest of a module may be anything.
        state = init(jax.tree.map(jnp.asarray, split_point(params)[0]), arrays)
        return jax.tree.map(from_host, state)  # the items of enumerations as well

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        *,
        value_fn: Function | None = None,
        obj_fn: Function | None = None,
        full_params: optax.Params | AllParameters | None = None,
        **extra: Any,
    ) -> tuple[Any, Any]:
        call = f"{name}(...).update(updates, state, params, value_fn=...)"
        value_fn = obj_fn if value_fn is None else value_fn
        known, loop = all_parameters(full_params), within_loop()
        if known is not None and params is not None:
            parts_like(call, params, updates)
            params = with_hidden(params, known.full)
        made_of = value_fn if compose is None else compose(value_fn, extra, state)
        f = objective(call, params, made_of, known, extra)
        assert params is not None  # or `objective` has refused it
        points, treedef = jax.tree.flatten(params)
        leaves = parts_like(call, params, updates)
        _refuse_configuration(call, params, leaves)
        could = differentiated(points, treedef)
        # A gradient that is `None`, as of `eqx.filter_grad`, is one not to step along.
        moves = [a and eqx.is_array_like(g) for a, g in zip(could, leaves, strict=True)]
        moving = [i for i, yes in enumerate(moves) if yes]
        if not any(jnp.size(points[i]) for i in moving):
            return updates, state
        part, _ = split_point(params, moves)
        refuse_complex_parameters(call, part)
        refuse_other_leaves(call, part, [getattr(state, key) for key in like_params])
        gradient = [jnp.asarray(leaves[i]) for i in moving]
        where = None if moves == could else Selection(moves)
        # A preconditioner is an operator on the tree of the parameters.
        as_tree = bool(like_params) or preconditioner is not None
        flat = not as_tree and is_better_flat(part, gradient)
        at = None if loop is None else loop.values_at(made_of, params)
        if at is not None:
            slopes = parts_like(call, params, at[1])
            at = at[0], [jnp.asarray(slopes[i]) for i in moving]
        own = state
        if not space.has_shards(part):  # of which the solver says what it refuses
            own = narrowed_to(call, state, points, could, moves)
        fixed, given = dict(choices), dict(arrays)
        if preconditioner is not None:
            split = preconditioning(name, preconditioner)
            fixed["preconditioning"], given["captured"] = split
        bound = ("flat", flat), ("formula", formula), *fixed.items()
        c = (gradient, own, given, at)
        with called(call), explained_for_nnx(params):
            by_content = needs_indices(choices.get("linear_solver"))
            make = run_with_indices if by_content else run
            made, after = make(
                f, params, c, order=BoundFormula(_step, bound), where=where
            )
        state = widened_to(state, after, points, could, moves)
        for i, step in zip(moving, made, strict=True):
            leaves[i] = step
        return treedef.unflatten(leaves), state

    return transformation_of(first, update)


def _refuse_configuration(call: str, params: Point, given: Sequence[object]) -> None:
    """Refuse numbers of a module that are to be changed: here they are configuration.

    Args:
        call: The call, for messages.
        params: The parameters.
        given: For each leaf of them what stands for it among the arguments.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(params)
    for i in sorted(configuration([leaf for _, leaf in paths], treedef)):
        if eqx.is_array_like(given[i]):
            path, leaf = paths[i]
            raise StructureError(
                message(
                    call,
                    f"`{leaf_name('params', path)}` is a number inside of a dataclass: "
                    "configuration, which does not change.",
                    expected="an array, or no leaf and no gradient in its place",
                    got=repr(leaf),
                    fix="Make it an array, as in `jnp.asarray(0.5)`; or leave it out: "
                    "`eqx.filter(params, eqx.is_inexact_array)` does, and so do the "
                    "gradients of `eqx.filter_grad` and `hotk.gradient`.",
                )
            )


def of_steps(factory: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let an unknown keyword of an optimizer raise an error that names ours."""
    return names_ours(factory, makes_steps=True)


def those_given(**numbers: ArrayLike | None) -> dict[str, Any]:
    """Return those numbers that are given."""
    return {name: value for name, value in numbers.items() if value is not None}


def as_number(name: str, key: str, value: ArrayLike) -> Array:
    """Return a hyperparameter as an array, or raise an error that names it."""
    try:
        array = from_host(value)
    except (TypeError, ValueError):
        array = None
    if array is None or array.shape != ():
        raise TypeError(f"`{name}`: `{key}` is {describe(value)}, not a number.")
    return array


def objective(
    call: str,
    params: optax.Params | None,
    f: Function | None,
    known: AllParameters | None,
    extra: Mapping[str, Any],
) -> Callable[[Any], Any]:
    """Return the objective as a function of the parameters alone.

    Args:
        call: The call, for messages.
        params: What a wrapper of optax leaves of the parameters.
        f: What was given as `value_fn` or `obj_fn`.
        known: All parameters, if they are given.
        extra: Further keywords of the update: those that `f` takes are given to it.
    """
    if f is None or params is None:
        missing, fix = "`value_fn`", _WRITE
        if params is None:
            missing, fix = "`params`", "Give the parameters as the third argument."
        elif "residual_fn" in extra:
            fix = _OF_RESIDUALS
        raise TypeError(
            message(
                call,
                f"{missing} is missing: second derivatives are taken of the objective.",
                expected="`update(gradient, state, params, value_fn=objective)`",
                got=f"no {missing}",
                fix=fix,
            )
        )
    return of_all_parameters(call, with_keywords(f, extra), params, known)


_WRITE = (
    "Give the function of the parameters that the gradient is of. With an optimizer of "
    "flax nnx write `hotk.optim.nnx_step(optimizer, model, f)` in place of "
    "`optimizer.update`, with a `TrainState` of flax "
    "`hotk.optim.apply_gradients(state, grads=grads, value_fn=f)`."
)


_OF_RESIDUALS = (
    "Only `levenberg_marquardt` takes `residual_fn=`. For half the sum of squares give "
    "`value_fn=hotk.curvature.LeastSquares(residual_fn)`."
)


def _keywords(f: Function, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return those keywords that a function has among its own."""
    if not extra:
        return {}
    try:
        names = list(inspect.signature(f).parameters)[1:]
    except (TypeError, ValueError):
        return {}
    return {name: extra[name] for name in names if name in extra}


@overload
def with_keywords(f: Function, extra: Mapping[str, Any]) -> Function: ...


@overload
def with_keywords(f: None, extra: Mapping[str, Any]) -> None: ...


def with_keywords(f: Function | None, extra: Mapping[str, Any]) -> Function | None:
    """Return a function, given those keywords of an update that it takes by name."""
    if f is None:
        return None
    taken = _keywords(f, extra)
    return functools.partial(f, **taken) if taken else f
