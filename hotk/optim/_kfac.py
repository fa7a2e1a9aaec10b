"""`kfac`: natural gradients with Kronecker factors, scaled by the exact curvature."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import GetAttrKey
from jaxtyping import ArrayLike, PyTree

from hotk._capture import Closure
from hotk._core import Function, Point, StructureError, message
from hotk.curvature import AbstractLoss
from hotk.linop import KFACOperator, space

from ._explained import explained_for_nnx
from ._kfac_step import CALL, Choices, KFACState, damped_inverses, kfac_step
from ._local import Outcome
from ._parameters import parts_like
from ._step import as_number, of_steps
from ._transformation import Transformation, transformation_of


@of_steps
def kfac(
    curvature: KFACOperator,
    *,
    damping: ArrayLike = 1.0,
    decay: ArrayLike = 0.95,
    factors_every: ArrayLike = 1,
    inverses_every: ArrayLike = 5,
    l2: ArrayLike = 0.0,
    adaptive: bool = True,
    momentum: bool = True,
    factors_fraction: float = 1.0,
    model_fraction: float = 1.0,
    seed: ArrayLike = 0,
) -> Transformation[KFACState]:
    r"""Minimize by Kronecker-factored approximate curvature: K-FAC.

    A step is $\alpha d + \mu p$, where $p$ is the last step and $d = -(K + \lambda
    I)^{-1} g$, with the Kronecker factors $K$ of the model averaged over updates [1]
    (sections 5 and 6.3). The coefficients minimize the quadratic model $g^T s +
    \tfrac12 s^T (G + \lambda I) s$ over the plane of $d$ and $p$, with the exact
    Gauss-Newton or Fisher matrix $G$ of the batch [1] (section 7): so there is no
    learning rate. In every fifth update $\lambda$ is compared with what it achieved [1]
    (section 6.5): it becomes $0.95^5$ times as large if the objective changed by more
    than three quarters of what the model says, and grows by as much for less than a
    quarter.

    An update takes the time of about five gradients, and that of the inverses, which is
    cubic in the widths of the layers, in each `inverses_every`-th one.

    Args:
        curvature: The factors at the start, on a batch of any size: these are the first
            of the averages. Its options (`approximation`, `estimate`, `samples`) are
            those of all updates.
        damping: The first $\lambda$.
        decay: Of the averages, by update: factors of k updates ago count
            $\text{decay}^k$ as much as the new ones, however often they are computed.
            At first the averages are means of all factors so far.
        factors_every: Factors are computed in every so many updates.
        inverses_every: Inverses are computed in every so many updates, and in the first
            three.
        l2: The number $\eta$ of a term $\tfrac\eta2 \|x\|^2$ of the objective. It is
            added to the curvature; its gradient belongs to the updates.
        adaptive: Whether $\lambda$ changes.
        momentum: Whether the last step is one of the directions.
        factors_fraction: The fraction of a batch that factors are computed from, as
            $\tau_1$ in [1] (section 8): 0.25 takes every fourth example. Every k-th is
            taken, where k is the whole number next to its inverse.
        model_fraction: The fraction of a batch whose matrix $G$ the quadratic model
            has, as $\tau_2$ in [1], taken in the same way. Gradients, and the changes
            of the objective, are those of the whole batch.
        seed: Of the targets that are drawn with `estimate="sampled"`; the count of
            updates is folded in.

    Returns:
        A transformation for `optax.apply_updates`. Its update takes `model_fn=`,
        `loss_fn=` and `inputs=`, a tuple: the objective is `loss_fn(model_fn(params,
        *inputs))`, with a loss of `hotk.curvature` and the examples in the first axis
        of the inputs. Where the gradient or the outputs are not finite, the step is
        zero and the averages stay; where only the step is not, $\lambda$ grows
        fourfold.

    Raises:
        TypeError: If one of these, or `params`, is missing in an update.
        ValueError: If a fraction is not in (0, 1].
        StructureError: If the parameters, or the uses that a model makes of them, are
            not those of `curvature`.

    Example:
        >>> X, y = jnp.eye(5, 3), jnp.arange(5.0)[:, None]
        >>> model = lambda w, X: X @ w
        >>> w, loss = jnp.zeros((3, 1)), hotk.curvature.SquaredError(y)
        >>> K = hotk.KFACOperator(model, loss, w, X)
        >>> transform = hotk.optim.kfac(K, damping=1e-6)
        >>> g = jax.grad(lambda w: loss(model(w, X)))(w)
        >>> step, state = transform.update(
        ...     g, transform.init(w), w, model_fn=model, loss_fn=loss, inputs=(X,)
        ... )
        >>> (w + step).round(3).ravel().tolist()
        [0.0, 1.0, 2.0]

    References:
        [1] Martens and Grosse (2015). Optimizing neural networks with
            Kronecker-factored approximate curvature. ICML. Sections as in
            https://arxiv.org/abs/1503.05671
    """
    if not isinstance(curvature, KFACOperator):
        raise TypeError(
            f"`kfac(curvature)`: `curvature` is a {type(curvature).__name__}. Give the "
            "factors at the start: `hotk.KFACOperator(model, loss, params, inputs)`."
        )
    numbers = {
        "damping": damping,
        "decay": decay,
        "factors_every": factors_every,
        "inverses_every": inverses_every,
        "l2": l2,
        "seed": seed,
    }
    arrays = {key: as_number("kfac", key, value) for key, value in numbers.items()}
    strides = (
        round(1 / factors_fraction),
        round(1 / model_fraction),
    )
    choices = Choices(curvature.options, adaptive, momentum, *strides)

    def init(params: optax.Params) -> optax.OptState:
        points, moves, treedef = _parts("kfac(K).init(params)", params, curvature.like)
        part = treedef.unflatten(
            jnp.asarray(a) if yes else None
            for a, yes in zip(points, moves, strict=True)
        )
        dtype = space.scalar_dtype(part)
        first = jnp.asarray(arrays["damping"], dtype)
        shift = first + arrays["l2"].astype(dtype)
        state = KFACState(
            jnp.zeros((), int),
            first,
            curvature.blocks,
            damped_inverses(curvature.blocks, part, shift),
            space.zeros(part),
            jnp.zeros(2, dtype),
            jnp.zeros((), dtype),
            Outcome.accepted,
        )
        return jax.tree.map(jnp.asarray, state)  # the items of enumerations as well

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        *,
        model_fn: Function | None = None,
        loss_fn: AbstractLoss | None = None,
        inputs: PyTree = None,
        **extra: Any,
    ) -> tuple[Any, Any]:
        del extra
        model, loss = _check_given(params, model_fn, loss_fn, inputs)
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        assert isinstance(state, KFACState)
        points, moves, treedef = _parts(CALL, params, state.step)
        slopes = parts_like(CALL, params, updates)
        triples = list(zip(points, slopes, moves, strict=True))
        part = treedef.unflatten(a if yes else None for a, _, yes in triples)
        rest = treedef.unflatten(None if yes else a for a, _, yes in triples)
        gradient = treedef.unflatten(
            jnp.asarray(g).astype(jnp.asarray(a).dtype) if yes else None
            for a, g, yes in triples
        )
        of_part = lambda part, *args: model(eqx.combine(part, rest), *args)
        closure = Closure.of(of_part)
        inputs = jax.tree.map(jnp.asarray, inputs)
        part = jax.tree.map(jnp.asarray, part)
        given = closure, Closure.of(loss), part, inputs, gradient, state, arrays
        with explained_for_nnx(params):
            step, made = kfac_step(*given, choices)
        steps = treedef.flatten_up_to(step)
        for i, (_, g, yes) in enumerate(triples):
            if not yes:  # not selected, or without a gradient
                steps[i] = jnp.zeros_like(g) if eqx.is_array_like(g) else g
        return treedef.unflatten(steps), made

    return transformation_of(init, update)


def _check_given(
    params: object, model: Function | None, loss: AbstractLoss | None, inputs: object
) -> tuple[Function, AbstractLoss]:
    given: Mapping[str, object] = {
        "params": params,
        "model_fn": model,
        "loss_fn": loss,
        "inputs": inputs,
    }
    missing = [f"`{name}`" for name, value in given.items() if value is None]
    if model is None or loss is None or missing:
        raise TypeError(
            message(
                CALL,
                f"{' and '.join(missing)} missing.",
                expected="the parameters, `model_fn=`, `loss_fn=` and `inputs=`: the "
                "objective is `loss_fn(model_fn(params, *inputs))`",
                got=", ".join(f"`{k}`" for k, v in given.items() if v is not None),
                fix="Give all four; the loss is one of `hotk.curvature`, such as "
                "`SoftmaxCrossEntropy(labels)`. With an optimizer of flax nnx pass "
                "them to `hotk.optim.nnx_step`.",
            )
        )
    return model, loss


def _parts(call: str, params: Point, like: PyTree) -> tuple[list[Any], list[bool], Any]:
    """Return the leaves of parameters, which of them move, and their structure."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(params)
    own, given = _by_name(like), _by_name(params)
    moves = [name in own for name in given]
    moving = [(name, a) for name, a in given.items() if name in own]
    if len(given) == len(pairs) and moving == list(own.items()):
        return [leaf for _, leaf in pairs], moves, treedef
    raise StructureError(
        message(
            call,
            "`params` are not those of the curvature.",
            **_difference(own, given),
            fix="Make the transformation from a `KFACOperator` at parameters of the "
            "same names and shapes, in the same order.",
        )
    )


_Shapes: TypeAlias = dict[tuple[str, ...], tuple[int, ...]]


def _difference(own: _Shapes, given: _Shapes) -> dict[str, str]:
    """Return `expected` and `got` of a message: the first parameter that differs."""
    for name, shape in own.items():
        if given.get(name) != shape:
            inside = [part for part in given if part[: len(name)] == name]
            got = [f"shape {given[part]} at `{_place(part)}`" for part in inside]
            expected = f"shape {shape} at `{_place(name)}`"
            return {"expected": expected, "got": ", ".join(got) or "no such parameter"}
    orders = (", ".join(map(_place, shapes)) for shapes in (own, given))
    return dict(zip(("expected", "got"), orders, strict=True))


def _place(name: tuple[str, ...]) -> str:
    return "params" + "".join(f"[{part}]" for part in name)


def _by_name(tree: PyTree) -> _Shapes:
    """Return the shapes of leaves by their names, whatever the nodes are.

    So variables of nnx, the arrays in their place and a module are the same parameters.
    """
    named = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        if isinstance(path[-1] if path else None, GetAttrKey):
            path = path[:-1] if path[-1].name == "value" else path
        parts = (jax.tree_util.keystr((key,), simple=True) for key in path)
        named[tuple(parts)] = np.shape(leaf)
    return named
