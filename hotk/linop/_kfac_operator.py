"""`KFACOperator`: Kronecker-factored curvature of a model, found in its program."""

import contextlib
import functools
from collections.abc import Iterator
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._capture import Closure
from hotk._core import (
    DtypeError,
    Function,
    HotkError,
    ModeError,
    Point,
    RandomKey,
    StructureError,
    Vector,
    Where,
    describe,
    describe_tree,
    is_known,
    manual_axes,
    message,
    names_ours,
)
from hotk._prepared import jitted
from hotk.curvature import AbstractLikelihood, AbstractLoss

from . import space
from ._block_diagonal import AbstractBlockDiagonal
from ._frozen import Selected, arrays_of, freeze, moving
from .kfac import (
    CALL,
    AbstractBlock,
    Approximation,
    Estimate,
    KFACOptions,
    blocks_of,
    mixes_examples,
    mixes_in_batch,
    nearby,
)


@final
class KFACOperator(AbstractBlockDiagonal):
    r"""The Kronecker-factored approximation of the curvature of a model (K-FAC).

    The Gauss-Newton or Fisher matrix of `loss(model(x, *args))`, block by block: the
    block of the weights of a layer is $A \otimes G$ with $A = E[a a^T]$, the second
    moment of what the layer reads, and $G = \sum g g^T$, that of the gradients by what
    it returns, with the factor 1/N if the loss is a mean over N examples [1]. Products,
    inverses and determinants take the cost of the factors. Curvature between blocks is
    left out.

    No layers are registered: the traced program of the model says where each parameter
    is used. Found are matrix products with any axes, convolutions with groups, strides
    and dilations, biases, scales and lookups in a table of rows; through reshapes,
    transposes, slices, multiples, jitted functions, checkpoints, `vmap` and `scan` over
    layers or time. A bias is joined to its product where nothing else reads the
    product. Two uses of the same matrix have one block; if one is the transpose of the
    other, as of an embedding that is the last layer as well, the block is the nearest
    Kronecker product of the sum of both [3]. All other parameters have a dense block up
    to 512 entries and a diagonal beyond, from gradients of single examples. A factor of
    more than 8192 rows is diagonal, and so is that of an embedding. `print(K)` shows
    what was found.

    Weights that are used at several positions of an example, as in convolutions, on the
    tokens of a text or in the steps of a scan, are treated in one of two ways [2].
    `"expand"` takes positions for examples, as is exact for a loss that is a sum over
    positions and a linear model. `"reduce"` sums the gradients over positions first, as
    is exact for a linear model whose outputs are means over positions.

    It equals the blocks of the Gauss-Newton matrix for one example without weight
    sharing, and for a linear model with a loss whose Hessian is the same for all
    examples, such as squared errors.

    Examples are run one by one under `vmap`, so the model may not depend on their
    number: that is checked with two of them. Factors are in `float32` at least.
    A moving average of factors is arithmetic on the arrays of two operators of the same
    structure, `jax.tree.map(lambda a, b: 0.95 * a + 0.05 * b, old, new)` or
    `optax.incremental_update(new, old, 0.05)`. The sum `K1 + K2` is that of the
    matrices, as of all operators.

    Attributes:
        blocks: The blocks: `KroneckerBlock` with the factors `A` and `G`, `DenseBlock`
            with `matrix`, `DiagonalBlock` with `diagonal`.
        template: The differentiated part of the point, whose values do not matter.
        options: `approximation`, `estimate` and `samples`, as they were chosen.

    Example:
        >>> model = lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]
        >>> p = {"b": jnp.zeros(3), "v": jnp.ones((3, 1)), "w": jnp.ones((2, 3))}
        >>> loss = hotk.curvature.SquaredError(jnp.zeros((4, 1)))
        >>> K = hotk.KFACOperator(model, loss, p, jnp.ones((4, 2)))
        >>> [block.kind for block in K.blocks]
        ['Kronecker 3 x 3', 'Kronecker 3 x 1']
        >>> jax.tree.map(jnp.shape, K.inverse(damping=0.1) @ p)
        {'b': (3,), 'v': (3, 1), 'w': (2, 3)}

    References:
        [1] Martens and Grosse (2015). Optimizing neural networks with
            Kronecker-factored approximate curvature. ICML.
        [2] Eschenhagen, Immer, Turner, Schneider and Hennig (2023). Kronecker-factored
            approximate curvature for modern neural network architectures. NeurIPS.
            Equations 12 and 18.
        [3] Van Loan and Pitsianis (1993). Approximation with Kronecker products.
            Theorem 11.
    """

    blocks: tuple[AbstractBlock, ...]
    template: Vector
    options: KFACOptions = eqx.field(static=True)

    @functools.partial(names_ours, name="KFACOperator")
    def __init__(
        self,
        model: Function,
        loss: AbstractLoss,
        x: Point,
        *args: PyTree,
        approximation: Approximation = "expand",
        estimate: Estimate = "exact",
        key: RandomKey | None = None,
        samples: int = 1,
        where: Where = None,
    ) -> None:
        r"""Compute the factors of a model and a loss at a point.

        Args:
            model: Function `model(x, *args)` that returns an array of outputs, examples
                first. It must treat each example by itself.
            loss: A loss of `hotk.curvature`: a mean or a sum over examples.
            x: Point: any pytree. Floating leaves are the parameters.
            *args: Further arguments of the model: arrays with the examples in their
                first axis, and numbers and random keys, which are the same for all.
            approximation: `"expand"` or `"reduce"`, for weights that are used at
                several positions.
            estimate: `"exact"`, the Fisher matrix of a likelihood, which is the
                Gauss-Newton matrix where outputs are natural parameters, or the
                Gauss-Newton matrix of another convex loss: one backward pass for each
                output. `"sampled"`: targets are drawn from the model, one backward pass
                for each sample; the choice for many outputs. `"empirical"`: the targets
                of the loss; it does not estimate the Fisher matrix.
            key: A random key for `"sampled"`.
            samples: The number of targets for each example, for `"sampled"`.
            where: Which leaves of `x` are parameters; see `hotk.Where`.

        Raises:
            TypeError: If the loss is not one of `hotk.curvature`, or not a likelihood
                where targets are sampled, or if `key` is missing.
            ValueError: If there is no such option, if the Hessian of the loss may be
                indefinite, or if the output of an example depends on others, as with
                batch normalization. Inside of a transformation the last one is looked
                for at random numbers, and gives NaN if it shows at those given alone.
            StructureError: If arrays of `args` have no common first axis, or the model
                is one of a single example.
            OutputError: If the model does not return one real array with a row an
                example.
            ModeError: If the model computes across devices, an array is divided along
                an explicit axis of a mesh, or the call is inside of `jax.shard_map`.
            DtypeError: If a parameter is complex.
            TooLargeError: If `"exact"` would exceed `hotk.memory_budget()`.
        """
        options = KFACOptions(approximation, estimate, samples)
        _check_options(loss, options, key)
        _refuse_manual_axes()
        _refuse_explicit_axes((x, args))
        count = _count(args)
        rows = lambda k: jax.tree.map(lambda a: a[:k] if np.ndim(a) else a, args)
        with _explained(model, x, args):
            closure, arrays, _, selected = freeze(CALL, model, x, rows(1), where)
            some = lambda k: freeze(CALL, model, x, rows(k), where)[0]
            whole = some(count) if count > 1 else None
            # What a trace does not know is looked at by its program as well.
            known = all(map(is_known, jax.tree.leaves((closure, arrays, args))))
            pair = None if known or count == 1 else some(2)
        parameters = moving(arrays, selected)
        if any(jnp.iscomplexobj(a) for a in jax.tree.leaves(parameters)):
            raise DtypeError(
                message(
                    CALL,
                    "a parameter is complex.",
                    expected="real parameters",
                    got=describe_tree(parameters),
                    fix="Split it into its real and imaginary parts in the point.",
                )
            )
        rest = arrays_of(args)
        given = (closure, pair, Closure.of(loss), arrays, rest, key)
        with _explained(model, x, args):
            self.blocks = _computed(*given, options=options, selected=selected)
        if whole is not None and mixes_in_batch(closure, whole, arrays, rest):
            raise _depends_on_others()
        self.template = parameters
        self.options = options

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite: always `True`."""
        return True


@jitted(static_argnames=("options", "selected"))
def _computed(
    closure: Closure,
    pair: Closure | None,
    loss: Closure,
    x: Point,
    args: tuple[PyTree, ...],
    key: RandomKey | None,
    *,
    options: KFACOptions,
    selected: Selected,
) -> tuple[AbstractBlock, ...]:
    """Return the blocks: NaN if examples are found to be treated together."""
    model = closure.skeleton.function(closure.leaves)
    of_loss = loss.skeleton.function(loss.leaves)
    find = lambda x: moving(x, selected)
    assert isinstance(of_loss, AbstractLoss)
    blocks = blocks_of(model, of_loss, x, find, args, key, options)
    if pair is None:
        return blocks
    mixed = mixes_examples(model, pair.skeleton.function(pair.leaves), nearby(x), args)
    return jax.tree.map(lambda a: jnp.where(mixed, jnp.nan, a), blocks)


def _refuse_explicit_axes(inputs: PyTree) -> None:
    """Refuse arrays whose types say how they are divided among devices."""
    for leaf in jax.tree.leaves(inputs):
        if isinstance(leaf, jax.Array) and space.is_explicit(leaf):
            raise ModeError(
                message(
                    CALL,
                    "an array is divided along an explicit axis of a mesh.",
                    expected="arrays that are divided along automatic axes, or whole",
                    got=f"{describe(leaf)} with {jax.typeof(leaf).sharding.spec}",
                    fix="Make the mesh with `axis_types=(AxisType.Auto,)`, of "
                    "`jax.sharding`.",
                )
            )


@contextlib.contextmanager
def _explained(model: Function, x: Point, args: tuple[PyTree, ...]) -> Iterator[None]:
    """Let errors of a model say that it is called with the examples in an axis."""
    try:
        yield
    except HotkError:
        raise
    except Exception as error:
        row = lambda a, *lead: jax.ShapeDtypeStruct(
            (*lead, *np.shape(a)[1:]), jnp.result_type(a)
        )
        arrays = lambda *lead: [
            jax.tree.map(lambda a: row(a, *lead) if np.ndim(a) else a, arg)
            for arg in args
        ]
        if _works(model, x, arrays(1)) and _works(model, x, arrays(2)):
            raise  # not an error of the model
        if _works(model, x, arrays()):
            axes = [
                "0" if any(map(np.ndim, jax.tree.leaves(a))) else "None" for a in args
            ]
            raise StructureError(
                message(
                    CALL,
                    "the model is one of a single example.",
                    expected="a model of several, with the examples in the first axis",
                    got=f"a model that takes {describe_tree(tuple(arrays()))}",
                    fix=f"Write `jax.vmap(model, in_axes=(None, {', '.join(axes)}))`.",
                )
            ) from error
        error.add_note(
            f"`{CALL}`: the model is called with one row of each argument, here "
            f"{describe_tree(tuple(arrays(1)))}."
        )
        raise


def _works(model: Function, x: Point, args: list[PyTree]) -> bool:
    try:
        eqx.filter_eval_shape(model, x, *args)
    except Exception:
        return False
    return True


def _refuse_manual_axes() -> None:
    """Refuse a call in which a device sees its own examples, and no others."""
    axes = manual_axes()
    if axes:
        raise ModeError(
            message(
                CALL,
                "inside of `shard_map` a device has only its own examples.",
                expected="a call outside of `jax.shard_map`",
                got=f"the axes {', '.join(map(repr, axes))}",
                fix="Call it outside, with arguments that are divided among devices: "
                "JAX distributes the work, and the factors are those of all examples.",
            )
        )


def _depends_on_others() -> ValueError:
    return ValueError(
        message(
            CALL,
            "the output of an example depends on the other examples.",
            expected="the same output for an example alone as among others",
            got="another one",
            fix="Use batch normalization and dropout as in inference: with averages "
            "that are kept, and without random numbers. In flax nnx that is "
            "`model.eval()`.",
        )
    )


def _check_options(loss: object, options: KFACOptions, key: RandomKey | None) -> None:
    approximation, estimate, _ = options
    if approximation not in ("expand", "reduce"):
        raise ValueError(
            f"`{CALL}`: approximation {approximation!r} is not 'expand' or 'reduce'."
        )
    if estimate not in ("exact", "sampled", "empirical"):
        raise ValueError(
            f"`{CALL}`: estimate {estimate!r} is not 'exact', 'sampled' or 'empirical'."
        )
    if not isinstance(loss, AbstractLoss):
        raise TypeError(
            message(
                CALL,
                "`loss` is not known to be a mean or a sum over examples.",
                expected="a loss of `hotk.curvature`, or a class of `AbstractLoss`",
                got=getattr(loss, "__name__", type(loss).__name__),
                fix="For `jnp.mean((z - y) ** 2) / 2` write "
                "`hotk.curvature.SquaredError(y)`, for a cross entropy with integer "
                "labels `hotk.curvature.SoftmaxCrossEntropy(labels)`. For any other "
                "loss use `hotk.GGNOperator`.",
            )
        )
    is_likelihood = isinstance(loss, AbstractLikelihood)
    if estimate == "sampled" and not is_likelihood:
        raise TypeError(
            f"`{CALL}`: `{type(loss).__name__}` has no distribution of targets to "
            'sample from. Use `estimate="exact"`, or a likelihood of `hotk.curvature`.'
        )
    if estimate == "sampled" and key is None:
        raise TypeError(
            f'`{CALL}`: `estimate="sampled"` needs a random key: '
            "`key=jax.random.key(0)`, another one for each call."
        )
    if estimate == "exact" and not is_likelihood and not loss.convex:
        raise ValueError(
            f"`{CALL}`: the Hessian of `{type(loss).__name__}` may be indefinite, as "
            "no Kronecker factors are. Set `convex = True` in its class if it is "
            'convex, or use `estimate="empirical"`.'
        )


def _count(args: tuple[PyTree, ...]) -> int:
    arrays = [a for a in jax.tree.leaves(args) if np.ndim(a) > 0]
    lengths = {len(a) for a in arrays}
    if len(lengths) == 1 and lengths != {0}:
        return lengths.pop()
    raise StructureError(
        message(
            CALL,
            "arrays of `args` have the examples in their first axis.",
            expected="one number of rows, at least one",
            got=describe_tree(args) if arrays else "no array",
            fix="Pass the inputs as arguments, `KFACOperator(model, loss, x, inputs)`, "
            "and let the model capture arrays that are the same for all examples.",
        )
    )
