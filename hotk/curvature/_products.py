"""Products with Gauss-Newton and Fisher matrices."""

from collections.abc import Callable

from jaxtyping import PyTree

from hotk._core import Function, Gradient, Point, RandomKey, Scalar, Tangent, Where
from hotk._second import hvp

from ._fisher import EmpiricalFisher, Fisher, SampledFisher
from ._gauss_newton import GaussNewton
from ._losses import AbstractLikelihood, AbstractLoss


def ggnvp(
    model: Function,
    loss: Callable[[PyTree], Scalar],
    x: Point,
    v: Tangent,
    *args: PyTree,
    batched: bool = False,
    where: Where = None,
) -> Gradient:
    r"""Compute the Gauss-Newton-vector product $J^T \nabla^2 L(z)\, J\, v$.

    Here $z$ is the output of the model and $J$ its Jacobian at `x`. The factors are
    those of the loss: a mean over examples has 1/N. The generalized Gauss-Newton matrix
    is positive semi-definite where the loss is convex, and no matrix is formed. For
    many products at one signature prepare it once: `hotk.hvp.prepare` of
    `hotk.curvature.GaussNewton(model, loss)`.

    Args:
        model: Function `model(x, *args)` that returns a tree of floating arrays.
        loss: Function of that tree that returns one real number.
        x: Point: any pytree. Floating leaves are differentiated.
        v: Direction, with the structure, shapes and dtypes of `x`.
        *args: Further arguments of the model.
        batched: Whether the leaves of `v` have a leading axis, one direction each.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.

    Returns:
        The product: a tree with the structure, shapes and dtypes of `x`, `None` at
        leaves that are not differentiated; with a leading axis if `batched`.

    Raises:
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        ModeError: If the model has no forward or no reverse derivative.
        OutputError: If the loss is not one real floating-point number.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.zeros(2))
        >>> x, v = jnp.array([1.0, 2.0]), jnp.ones(2)
        >>> hotk.ggnvp(lambda w: w**2, loss, x, v).tolist()
        [2.0, 8.0]

    References:
        Schraudolph (2002). Fast curvature matrix-vector products for second-order
            gradient descent. Neural Computation 14(7), 1723-1738. Section 3.
    """
    return hvp(GaussNewton(model, loss), x, v, *args, batched=batched, where=where)


def fvp(
    model: Function,
    loss: AbstractLikelihood,
    x: Point,
    v: Tangent,
    *args: PyTree,
    batched: bool = False,
    where: Where = None,
) -> Gradient:
    r"""Compute the Fisher-vector product with the exact Fisher matrix.

    It is $c \sum_n J_n^T E_y[\nabla \ell \nabla \ell^T] J_n v$, the mean over the
    model's own distribution of targets; c is 1/N for a mean over N examples, 1 for a
    sum. See `hotk.curvature.Fisher`.

    Args:
        model: Function `model(x, *args)` that returns outputs, examples first.
        loss: A likelihood of `hotk.curvature`.
        x: Point: any pytree. Floating leaves are differentiated.
        v: Direction, with the structure, shapes and dtypes of `x`.
        *args: Further arguments of the model.
        batched: Whether the leaves of `v` have a leading axis, one direction each.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.

    Returns:
        The product: a tree with the structure, shapes and dtypes of `x`, `None` at
        leaves that are not differentiated; with a leading axis if `batched`.

    Raises:
        TypeError: If the loss is not a likelihood of `hotk.curvature`.
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        ModeError: If the model has no forward or no reverse derivative.

    Example:
        >>> loss = hotk.curvature.SigmoidCrossEntropy(jnp.array([0.0]))
        >>> hotk.fvp(lambda w: w, loss, jnp.zeros(1), jnp.ones(1)).tolist()
        [0.25]

    References:
        Martens (2020). New insights and perspectives on the natural gradient method.
            JMLR 21(146), 1-76. Section 5.
    """
    return hvp(Fisher(model, loss), x, v, *args, batched=batched, where=where)


def sampled_fvp(
    model: Function,
    loss: AbstractLikelihood,
    x: Point,
    v: Tangent,
    *args: PyTree,
    key: RandomKey,
    samples: int = 1,
    batched: bool = False,
    where: Where = None,
) -> Gradient:
    r"""Compute the Fisher-vector product with a Monte Carlo estimate of the matrix.

    It is $\frac{c}{S} \sum_n \sum_s J_n^T g_{ns} g_{ns}^T J_n v$ with S targets
    drawn for each example; c is 1/N for a mean over N examples, 1 for a sum. See
    `hotk.curvature.SampledFisher`.

    Args:
        model: Function `model(x, *args)` that returns outputs, examples first.
        loss: A likelihood of `hotk.curvature`.
        x: Point: any pytree. Floating leaves are differentiated.
        v: Direction, with the structure, shapes and dtypes of `x`.
        *args: Further arguments of the model.
        key: A random key; the same key gives the same matrix.
        samples: The number of targets for each example.
        batched: Whether the leaves of `v` have a leading axis, one direction each.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.

    Returns:
        The product: a tree with the structure, shapes and dtypes of `x`, `None` at
        leaves that are not differentiated; with a leading axis if `batched`.

    Raises:
        TypeError: If the loss is not a likelihood of `hotk.curvature`.
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        ModeError: If the model has no forward or no reverse derivative.
        ValueError: If `samples` is not positive.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.zeros(1))
        >>> key = jax.random.key(0)
        >>> x, v = jnp.zeros(1), jnp.ones(1)
        >>> hotk.sampled_fvp(lambda w: w, loss, x, v, key=key).item() > 0
        True

    References:
        Martens (2020). New insights and perspectives on the natural gradient method.
            JMLR 21(146), 1-76. Section 5.
    """
    f = SampledFisher(model, loss, key, samples)
    return hvp(f, x, v, *args, batched=batched, where=where)


def empirical_fvp(
    model: Function,
    loss: AbstractLoss,
    x: Point,
    v: Tangent,
    *args: PyTree,
    batched: bool = False,
    where: Where = None,
) -> Gradient:
    r"""Compute the product of the empirical Fisher matrix with a vector.

    It is $c \sum_n J_n^T g_n g_n^T J_n v$ with the gradients $g_n$ at the targets of
    the data; c is 1/N for a mean over N examples, 1 for a sum. It does not estimate the
    Fisher matrix. See `hotk.curvature.EmpiricalFisher`.

    Args:
        model: Function `model(x, *args)` that returns outputs, examples first.
        loss: A loss of `hotk.curvature`.
        x: Point: any pytree. Floating leaves are differentiated.
        v: Direction, with the structure, shapes and dtypes of `x`.
        *args: Further arguments of the model.
        batched: Whether the leaves of `v` have a leading axis, one direction each.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.

    Returns:
        The product: a tree with the structure, shapes and dtypes of `x`, `None` at
        leaves that are not differentiated; with a leading axis if `batched`.

    Raises:
        TypeError: If the loss is not one of `hotk.curvature`.
        StructureError: If `v` has another structure or shape than `x`.
        DtypeError: If nothing in `x` can be differentiated, or `v` is a JAX array of
            another dtype.
        ModeError: If the model has no forward or no reverse derivative.

    Example:
        >>> loss = hotk.curvature.SquaredError(jnp.array([3.0]))
        >>> hotk.empirical_fvp(lambda w: w, loss, jnp.ones(1), jnp.ones(1)).tolist()
        [4.0]

    References:
        Kunstner, Balles and Hennig (2019). Limitations of the empirical Fisher
            approximation for natural gradient descent. NeurIPS. Equation 3.
    """
    return hvp(EmpiricalFisher(model, loss), x, v, *args, batched=batched, where=where)
