"""`natural_gradient`: steps with the Fisher matrix of a model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float, Int

from hotk._core import Function, Gradient, Scalar, Where, from_host
from hotk.curvature import Fisher, SampledFisher
from hotk.linop import Identity, Reason, cg, space

from ._extra_args import restricted
from ._local import AtPoint, Numbers, Outcome
from ._objective import loss_of, model_of
from ._preconditioner import (
    Preconditioner,
    PreconditionerState,
    Preconditioning,
    first_preconditioner,
    only_for_iterations,
    preconditioner_at,
    preconditioning,
)
from ._samples import SampleSystem, System, check_system_choice, sample_system
from ._scaling import Rescaled, Scaling, check_scaling, first_scale, is_given
from ._step import of_steps, those_given, transformation
from ._transformation import Chained, Transformation, chained, scale_by_rate, show_state


class NaturalGradientState(NamedTuple):
    """What the last step of `scale_by_natural_gradient` was.

    Attributes:
        count: Updates so far; with the seed it makes the random key.
        iterations: Products with the Fisher matrix; 1 for a factorization in the space
            of the samples.
        curvature: The smallest curvature that was met, damping included.
        residual: The norm of `F p - g` over that of the gradient g.
        outcome: An `Outcome`.
        preconditioner: What is kept of the preconditioner, `None` without one.
        scale: The inverse of the sizes that were given, `None` without them.
    """

    # A field of this name, as in the states of optax, hides the method of a tuple.
    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    iterations: Int[Array, ""]
    curvature: Scalar
    residual: Scalar
    outcome: Outcome
    preconditioner: PreconditionerState | None = None
    scale: Float[Array, " n"] | None = None

    __repr__ = show_state


@of_steps
def scale_by_natural_gradient(
    *,
    damping: ArrayLike = 1e-3,
    tol: ArrayLike = 1e-3,
    max_steps: ArrayLike | None = None,
    samples: int | None = None,
    seed: ArrayLike = 0,
    system: System = "auto",
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
    scaling: Scaling = None,
) -> Transformation[NaturalGradientState]:
    r"""Solve $(F + \lambda I)\,p = g$ with the Fisher matrix of a model.

    F is the exact Fisher matrix of `loss_fn`'s distribution of targets [1] (section
    5), or with `samples` an estimate from that many targets drawn for each example. The
    system is solved by conjugate gradients: no matrix is formed. Departing from [1],
    the damping does not adapt: inject it as a hyperparameter, which may be a schedule.

    With few samples the system can be solved in their space [2] (6): where the model
    tells which outputs belong to which example, F is $A^T A$ with a row for each
    output, or with `samples` for each target that is drawn. One Cholesky factor of $A
    A^T + \lambda I$ gives the step; $\lambda$ grows tenfold until there is one.

    Args:
        damping: $\lambda$.
        tol: The relative residual of the system.
        max_steps: The most products; 2 n if left out.
        samples: Targets to draw for each example; the exact matrix if left out.
        seed: Of the targets; the count of updates is folded in.
        system: `"samples"`, `"parameters"`, or `"auto"`, as for
            `scale_by_levenberg_marquardt`. In the space of the samples `tol` and
            `max_steps` do not count.
        preconditioner: For conjugate gradients a function of the Fisher matrix at a
            point and a random key, as for `scale_by_newton_cg`. With one, systems are
            those of the parameters.
        update_every: How many updates one operator that it returns serves.
        scaling: Typical sizes of the variables: a number, or a tree like the
            parameters, or the head of one, with numbers, `None` for 1 and arrays. With
            their inverse in the diagonal matrix D the system is $(F + \lambda D^2) p =
            g$, which does not depend on the units of the variables; D is the identity
            if left out. With sizes systems are those of the parameters.

    Returns:
        A transformation from the gradient to p. Its update takes `model_fn=`, from the
        parameters to the outputs on the batch, and `loss_fn=`, a likelihood of
        `hotk.curvature`; or `value_fn=hotk.curvature.Fisher(model, loss)`. With
        `examples=` the model is that of one example, `model_fn(params, example)`. Where
        negative curvature is met, which no Fisher matrix has, p is the gradient,
        $D^{-2} g$ with sizes.

    Raises:
        ValueError: If there is no such system, a size is not positive, or sizes are
            beside a preconditioner.
        TypeError: If there is no function, or `params` is missing, in an update.

    Example:
        >>> X = jnp.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
        >>> loss = hotk.curvature.SigmoidCrossEntropy(jnp.array([0.0, 1.0, 1.0]))
        >>> model = lambda w: X @ w
        >>> transform = hotk.optim.natural_gradient(1.0)
        >>> w = jnp.zeros(2)
        >>> g = jax.grad(lambda w: loss(model(w)))(w)
        >>> step, _ = transform.update(
        ...     g, transform.init(w), w, model_fn=model, loss_fn=loss
        ... )
        >>> bool(loss(model(w + step)) < loss(model(w)))
        True

    References:
        [1] Martens (2020). New insights and perspectives on the natural gradient
            method. JMLR 21(146), 1-76.
        [2] Ren and Goldfarb (2019). Efficient subsampled Gauss-Newton and natural
            gradient methods for training neural networks. arXiv:1906.02353.
    """
    check_system_choice("natural_gradient", system)
    numbers = {
        "damping": damping,
        "tol": tol,
        "seed": seed,
        "update_every": update_every,
        **those_given(max_steps=max_steps),
    }

    def compose(
        value_fn: Function | None, extra: Mapping[str, Any], state: NaturalGradientState
    ) -> Function | None:
        model = model_of(extra)
        if model is None:
            return value_fn
        if samples is None:
            return Fisher(model, loss_of(extra))
        start = jax.random.key(jnp.asarray(seed).astype(jnp.uint32))
        key = jax.random.fold_in(start, state.count)
        return SampledFisher(model, loss_of(extra), key, samples)

    preconditioning("natural_gradient", preconditioner)  # refuses what is none
    if preconditioner is not None:
        only_for_iterations("natural_gradient", system)
        system = "parameters"
    beside = None if system != "samples" else "`system='samples'`"
    beside = beside if preconditioner is None else "`preconditioner=`"
    check_scaling("natural_gradient", scaling, None, beside)
    if is_given(scaling):
        system = "parameters"

    def init(params: optax.Params, numbers: Numbers) -> NaturalGradientState:
        del numbers
        state = _natural_first(
            params, first_preconditioner("natural_gradient", preconditioner, params)
        )
        if not is_given(scaling):
            return state
        return state._replace(scale=first_scale("natural_gradient", scaling, params))

    return transformation(
        "natural_gradient",
        init,
        _natural_gradient,
        numbers,
        compose,
        preconditioner=preconditioner,
        system=system,
    )


def _natural_first(
    params: optax.Params, preconditioner: PreconditionerState | None
) -> NaturalGradientState:
    zero = from_host(0, space.scalar_dtype(params))
    none = from_host(0, int)
    return NaturalGradientState(
        none, none, zero, zero, Outcome.accepted, preconditioner
    )


def _natural_gradient(
    local: AtPoint,
    gradient: Gradient,
    state: NaturalGradientState,
    numbers: Numbers,
    *,
    system: System,
    preconditioning: Preconditioning | None = None,
) -> tuple[Any, NaturalGradientState]:
    in_samples = sample_system("natural_gradient", local, system)
    if in_samples is not None:
        return _by_factor(in_samples, gradient, state, numbers)
    steps = numbers.get("max_steps", 2 * max(space.dimension(gradient), 1))
    hessian = local.linearized().hessian
    known = preconditioner_at(
        "natural_gradient", preconditioning, numbers, state.preconditioner, hessian
    )
    model = Rescaled.of(hessian, gradient, state.scale)
    found = cg(
        model.hessian + numbers["damping"] * Identity(),
        model.gradient,
        preconditioner=known.inverse(numbers["damping"]),
        tol=numbers["tol"],
        max_steps=steps,
        verify=False,
    )
    usual = space.is_finite(gradient, found.x) & (found.reason != Reason.not_finite)
    bent = found.reason == Reason.negative_curvature  # of no Fisher matrix
    outcome = Outcome.where(bent, Outcome.steepest, Outcome.accepted)
    outcome = Outcome.where(usual, outcome, Outcome.not_finite)
    step = space.narrowed(space.choose(bent, model.gradient, found.x), gradient)
    step = model.step(step)
    step = space.choose(usual, step, space.zeros(step))
    return step, NaturalGradientState(
        state.count + 1,
        found.iterations,
        found.curvature,
        found.relative,
        outcome,
        known.state,
        state.scale,
    )


def _by_factor(
    system: SampleSystem,
    gradient: Gradient,
    state: NaturalGradientState,
    numbers: Numbers,
) -> tuple[Any, NaturalGradientState]:
    damped = system.damped_as_needed(numbers["damping"])
    p, damping = damped.solve(gradient), damped.damping
    g = space.widened(gradient)
    image = space.plus(system.curvature.back(system.curvature.along(p)), p, damping)
    size, square = space.norm(g), space.inner(p, p)
    usual = space.is_finite(gradient, p)
    curvature = space.inner(p, image) / jnp.where(square > 0, square, 1)
    outcome = Outcome.where(usual, Outcome.accepted, Outcome.not_finite)
    step = space.choose(usual, space.narrowed(p, gradient), space.zeros(gradient))
    return step, NaturalGradientState(
        state.count + 1,
        jnp.ones((), int),
        curvature,
        space.norm(space.minus(image, g)) / jnp.where(size > 0, size, 1),
        outcome,
        state.preconditioner,
    )


@of_steps
def natural_gradient(
    learning_rate: optax.ScalarOrSchedule,
    *,
    damping: ArrayLike = 1e-3,
    tol: ArrayLike = 1e-3,
    max_steps: ArrayLike | None = None,
    samples: int | None = None,
    seed: ArrayLike = 0,
    system: System = "auto",
    preconditioner: Preconditioner | None = None,
    update_every: ArrayLike = 10,
    scaling: Scaling = None,
    where: Where = None,
) -> Chained[NaturalGradientState]:
    """Minimize along natural gradients: `scale_by_natural_gradient` with a rate.

    Args:
        learning_rate: A number or a schedule.
        damping: A number that is added to the diagonal of the Fisher matrix.
        tol: The relative residual of the system.
        max_steps: The most products.
        samples: Targets to draw for each example; the exact matrix if left out.
        seed: Of the targets.
        system: `"auto"`, `"parameters"` or `"samples"`.
        preconditioner: A function of the Fisher matrix and a random key.
        update_every: How many updates one operator that it returns serves.
        scaling: Typical sizes of the variables, or `None`.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.ones(2), reduction="sum")
        >>> f = hotk.curvature.Fisher(lambda w: 2 * w, loss)
        >>> transform = hotk.optim.natural_gradient(1.0, damping=0.0)
        >>> found = hotk.optim.minimize(f, jnp.zeros(2), transform, max_steps=3)
        >>> found.x.round(4).tolist()
        [0.5, 0.5]
    """
    inner = scale_by_natural_gradient(
        damping=damping,
        tol=tol,
        max_steps=max_steps,
        samples=samples,
        seed=seed,
        system=system,
        preconditioner=preconditioner,
        update_every=update_every,
        scaling=scaling,
    )
    return restricted(chained(inner, scale_by_rate(learning_rate)), where)
