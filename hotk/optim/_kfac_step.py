"""One step of `kfac`: averages of factors, a direction, and how far along it."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from hotk._capture import Closure
from hotk._core import (
    Function,
    Gradient,
    Point,
    Scalar,
    StructureError,
    Tangent,
    cond,
    describe,
    message,
)
from hotk._prepared import jitted
from hotk._primitive import with_rules
from hotk.curvature import AbstractLikelihood, AbstractLoss
from hotk.linop import BlockDiagonal, KFACOperator, space

from ._local import Numbers, Outcome
from ._transformation import show_state


CALL = "kfac(K).update(updates, state, params, model_fn=, loss_fn=, inputs=)"

# The damping is changed by `_CHANGE` to the power of the updates since the last change.
_ADAPTED_EVERY = 5
_CHANGE = 0.95
_LEAST_DAMPING = 1e-10


class KFACState(NamedTuple):
    r"""What the last step of `kfac` was, and the averages that the next one needs.

    Attributes:
        count: Updates so far.
        damping: $\lambda$, as it was adapted.
        factors: The averages of the Kronecker factors, block by block.
        inverses: The inverses of these, damped.
        step: The last step.
        coefficients: Those of the new direction and of the last step in it.
        ratio: The change of the objective over that of the quadratic model, when it
            was last computed.
        outcome: An `Outcome`.
    """

    # A field of this name, as in the states of optax, hides the method of a tuple.
    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    damping: Scalar
    factors: PyTree
    inverses: PyTree
    step: PyTree
    coefficients: Float[Array, " 2"]
    ratio: Scalar
    outcome: Outcome

    __repr__ = show_state


class Choices(NamedTuple):
    """What chooses the program of a step.

    Attributes:
        factors: The options of `KFACOperator`.
        adaptive: Whether the damping changes.
        momentum: Whether the last step is a direction.
        of_factors: Every which example of a batch the factors are computed from.
        of_model: Every which example the quadratic model is that of.
    """

    factors: Any
    adaptive: bool
    momentum: bool
    of_factors: int = 1
    of_model: int = 1


def kfac_step(
    of_model: Closure, of_loss: Closure, *given: PyTree
) -> tuple[Tangent, KFACState]:
    """Make a step as one program; see `_step` for the arguments."""
    if of_model.skeleton.opaque is None and of_loss.skeleton.opaque is None:
        return _compiled_step(of_model, of_loss, *given)
    # It may have changed since the last update in what no key can tell.
    *arrays, choices = given
    run: Any = _step
    anew = lambda *arrays: run(of_model, of_loss, *arrays, choices)
    return jax.jit(anew)(*arrays)


def _step(
    of_model: Closure,
    of_loss: Closure,
    x: Point,
    inputs: tuple[PyTree, ...],
    gradient: Gradient,
    state: KFACState,
    numbers: Numbers,
    choices: Choices,
) -> tuple[Tangent, KFACState]:
    """Return a step, and the state after it."""
    model = of_model.skeleton.function(of_model.leaves)
    loss = of_loss.skeleton.function(of_loss.leaves)
    assert isinstance(loss, AbstractLoss)
    factors = _averaged(model, loss, x, inputs, state, numbers, choices)
    l2 = numbers["l2"].astype(state.damping.dtype)
    shift = state.damping + l2
    due = (state.count < 3) | _is_time(state.count, numbers["inverses_every"])
    inverses = cond(
        due,
        lambda: damped_inverses(factors, x, shift),
        lambda: state.inverses,
    )
    direction = space.times(-1, BlockDiagonal(inverses, x).mv(gradient))
    directions = [direction, state.step] if choices.momentum else [direction]
    some = _Some.of(choices.of_model, loss, inputs)
    z, coefficients, expected = _on_plane(model, some, x, gradient, directions, shift)
    step = space.zeros(x)
    for c, p in zip(coefficients, directions, strict=False):
        step = space.plus(step, p, c)
    given = space.is_finite(gradient, z)
    usual = given & space.is_finite(step)
    step = space.choose(usual, step, space.zeros(step))
    made = KFACState(
        state.count + 1,
        # What was not finite before the step is not for the damping to mend.
        jnp.where(usual | ~given, state.damping, 4 * state.damping),
        space.choose(given & space.is_finite(factors), factors, state.factors),
        space.choose(given & space.is_finite(inverses), inverses, state.inverses),
        step,
        jnp.where(usual, coefficients, 0),
        state.ratio,
        Outcome.where(usual, Outcome.accepted, Outcome.not_finite),
    )
    if choices.adaptive:
        before = loss(z) if choices.of_model == 1 else None
        made = _adapted(model, loss, x, inputs, before, expected, l2, made)
    return step, made


_compiled_step = jitted(static_argnums=7)(_step)


class _Some(NamedTuple):
    """Some examples of a batch.

    Attributes:
        loss: The loss of these.
        inputs: Their inputs.
        weight: What their curvature is multiplied with to stand for that of all.
    """

    loss: AbstractLoss
    inputs: tuple[PyTree, ...]
    weight: float

    @staticmethod
    def of(stride: int, loss: AbstractLoss, inputs: tuple[PyTree, ...]) -> "_Some":
        """Take examples that are evenly spaced, so that all devices have some."""
        if stride == 1:
            return _Some(loss, inputs, 1.0)
        _check_rows(loss)
        every = lambda a: a[::stride] if a.ndim else a
        few = eqx.tree_at(lambda loss: loss.targets, loss, every(loss.targets))
        weight = len(loss.targets) / len(few.targets)
        # A mean over some estimates that over all; a sum has to be scaled.
        weight = weight if loss.reduction == "sum" else 1.0
        return _Some(few, jax.tree.map(every, inputs), weight)


def _check_rows(loss: AbstractLoss) -> None:
    """Refuse a loss with more rows than its targets: which belong together?"""
    count = len(loss.targets)
    rest = eqx.tree_at(lambda loss: loss.targets, loss, None)
    for path, leaf in jax.tree.leaves_with_path(rest):
        if eqx.is_array(leaf) and leaf.shape[:1] == (count,):
            raise StructureError(
                message(
                    CALL,
                    f"some examples of a batch cannot be taken: `loss_fn"
                    f"{jax.tree_util.keystr(path)}` has as many rows as the targets.",
                    expected="a loss with no array but its targets for each example",
                    got=f"{describe(leaf)}, for {count} examples",
                    fix="Leave out `model_fraction=` and `factors_fraction=`, or keep "
                    "it in the targets, as a further axis or column.",
                )
            )


def _averaged(
    model: Function,
    loss: AbstractLoss,
    x: Point,
    inputs: tuple[PyTree, ...],
    state: KFACState,
    numbers: Numbers,
    choices: Choices,
) -> PyTree:
    """Return the averages of factors, with those of this batch if it is time to."""
    start = jax.random.key(numbers["seed"].astype(jnp.uint32))

    def averaged() -> PyTree:
        some = _Some.of(choices.of_factors, loss, inputs)
        new = KFACOperator(
            model,
            some.loss,
            x,
            *some.inputs,
            **choices.factors._asdict(),
            key=jax.random.fold_in(start, state.count),
        ).blocks
        _check_blocks(new, state.factors)
        # those of the start are the first, so this is the one of number `before + 2`
        every = jnp.maximum(numbers["factors_every"], 1)
        before = state.count // every.astype(int)
        weight = jnp.minimum(1 - 1 / (before + 2), numbers["decay"] ** every)
        mix = lambda old, new: _mixed(weight, old, new)
        scale = jnp.asarray(some.weight, state.damping.dtype)
        new = tuple(block.times(scale) for block in new)
        leaves = map(mix, jax.tree.leaves(state.factors), jax.tree.leaves(new))
        return jax.tree.unflatten(jax.tree.structure(state.factors), leaves)

    due = _is_time(state.count, numbers["factors_every"])
    return cond(due, averaged, lambda: state.factors)


def _mixed(weight: Scalar, old: Array, new: Array) -> Array:
    weight = weight.astype(old.dtype)
    return weight * old + (1 - weight) * new.astype(old.dtype)


def _is_time(count: Int[Array, ""], every: Array) -> Array:
    return count % jnp.maximum(every.astype(int), 1) == 0


def damped_inverses(factors: PyTree, like: Point, shift: Scalar) -> PyTree:
    """Return the inverses of blocks, damped."""
    return BlockDiagonal(factors, like).inverse(shift).blocks


def _on_plane(
    model: Function,
    some: _Some,
    x: Point,
    gradient: Gradient,
    directions: list[Tangent],
    shift: Scalar,
) -> tuple[Array, Float[Array, " 2"], Scalar]:
    """Minimize the quadratic model over a line or a plane.

    Returns:
        The outputs of the model, the coefficients of the directions, and the change of
        the quadratic model.
    """
    loss = some.loss
    at = with_rules(lambda x: model(x, *some.inputs), derive=False)
    z, push = jax.linearize(at, x)
    along = [push(p) for p in directions]
    is_likelihood = isinstance(loss, AbstractLikelihood)
    product = loss.fisher_product if is_likelihood else loss.hessian_product
    curved = [some.weight * product(z, u) for u in along]
    dtype = shift.dtype
    entry = lambda i, j: (
        jnp.vdot(along[i], curved[j]).real.astype(dtype)
        + shift * space.inner(directions[i], directions[j]).astype(dtype)
    )
    b = [space.inner(gradient, p).astype(dtype) for p in directions]
    a = entry(0, 0)
    # Where a direction is zero, as the last step is at first, its coefficient is too.
    alone = jnp.stack([jnp.where(a > 0, -b[0] / jnp.where(a > 0, a, 1), 0), 0 * a])
    if len(directions) == 1:
        return z, alone, alone[0] * b[0] / 2
    mixed, other = entry(0, 1), entry(1, 1)
    det = a * other - mixed**2
    # parallel but for rounding: the last step tells nothing new
    is_plane = det > 10 * jnp.finfo(dtype).eps * a * other
    both = jnp.stack([mixed * b[1] - other * b[0], mixed * b[0] - a * b[1]])
    found = jnp.where(is_plane, both / jnp.where(is_plane, det, 1), alone)
    return z, found, jnp.vdot(found, jnp.stack(b)) / 2


def _adapted(
    model: Function,
    loss: AbstractLoss,
    x: Point,
    inputs: tuple[PyTree, ...],
    before: Scalar | None,
    expected: Scalar,
    l2: Scalar,
    made: KFACState,
) -> KFACState:
    """Compare the damping with what it achieved, in every so many updates."""

    def compared() -> tuple[Scalar, Scalar]:
        dtype = made.damping.dtype
        after = space.plus(x, made.step)
        squares = space.inner(made.step, space.plus(x, after))  # |after|^2 - |x|^2
        start = loss(model(x, *inputs)) if before is None else before
        change = loss(model(after, *inputs)) - start
        change = change.astype(dtype) + l2 / 2 * squares.astype(dtype)
        ratio = change / jnp.where(expected < 0, expected, -jnp.inf)
        factor = _CHANGE**_ADAPTED_EVERY
        good, bad = ratio > 0.75, ~(ratio >= 0.25)  # what is not a number is bad
        scale = jnp.where(good, factor, jnp.where(bad, 1 / factor, 1.0))
        return jnp.maximum(made.damping * scale, _LEAST_DAMPING), ratio

    due = _is_time(made.count, jnp.asarray(_ADAPTED_EVERY))
    due = due & (made.outcome == Outcome.accepted)
    damping, ratio = cond(due, compared, lambda: (made.damping, made.ratio))
    return made._replace(damping=damping, ratio=ratio)


def _check_blocks(new: PyTree, old: PyTree) -> None:
    layouts = lambda blocks: [(type(block), block.layout) for block in blocks]
    shapes = lambda blocks: [jnp.shape(a) for a in jax.tree.leaves(blocks)]
    if layouts(new) == layouts(old) and shapes(new) == shapes(old):
        return
    kinds = lambda blocks: ", ".join(block.kind for block in blocks)
    raise StructureError(
        message(
            CALL,
            "the model does not use its parameters as that of the curvature.",
            expected=f"the blocks {kinds(old)}",
            got=kinds(new),
            fix="Give the model that the `KFACOperator` was made of, with inputs that "
            "differ in the number of examples alone.",
        )
    )
