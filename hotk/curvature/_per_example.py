"""`PerExample`: a model of one example, on all of them."""

import itertools
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, PyTree

from hotk._core import (
    Function,
    HotkError,
    Point,
    StructureError,
    describe_tree,
    differs_along,
    function_name,
    manual_axes,
    message,
    varying_along,
)
from hotk._primitive import with_rules


def _models(model: Any) -> Any:
    return tuple(model) if isinstance(model, list) else model


@final
class PerExample(eqx.Module):
    r"""The function `x -> [model(x, e) for e in examples]`, as one array.

    Pass it as the model to `GaussNewton`, the Fisher matrices and the optimizers. It
    knows which outputs belong to which example. So each row of its Jacobian costs one
    gradient of one example, and `hotk.optim.levenberg_marquardt` and `natural_gradient`
    can solve their systems in the space of the samples.

    Attributes:
        model: Function `model(x, example, *args)` that returns one floating array, a
            number or of any shape; or several of them as a tuple, whose outputs stand
            one below the other.
        examples: A tree of arrays with one leading axis; for several models a tuple
            with such a tree for each.

    Raises:
        StructureError: If the leading axes of a tree differ, or there are not as many
            trees as models; in a call if the outputs of several models have different
            shapes.

    Example:
        >>> model = hotk.curvature.PerExample(lambda w, e: jnp.sin(w @ e), jnp.eye(2))
        >>> model(jnp.zeros(2)).tolist()
        [0.0, 0.0]
        >>> model.rows(jnp.zeros(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    model: Function | tuple[Function, ...] = eqx.field(converter=_models)
    examples: PyTree[Array]

    def __check_init__(self) -> None:
        """Refuse examples without a common number of rows."""
        parts = _parts(self.model, self.examples)
        if parts is None:
            raise StructureError(
                message(
                    _CALL,
                    "there are not as many trees of examples as models.",
                    expected=f"a tuple of {len(self.model)} trees",  # type: ignore[arg-type]
                    got=describe_tree(self.examples),
                    fix="Give one tree for each model: `PerExample((r1, r2), (e1, "
                    "e2))`.",
                )
            )
        for _, tree in parts:
            if _number(tree) is None:
                raise StructureError(
                    message(
                        _CALL,
                        "the examples have no common leading axis.",
                        expected="a tree of arrays with one leading axis, examples "
                        "first",
                        got=describe_tree(tree),
                        fix="Repeat what all examples share, or let the model capture "
                        "it.",
                    )
                )

    def __call__(self, x: Point, *args: PyTree) -> Inexact[Array, "N *outputs"]:
        """Return the outputs of all examples.

        Args:
            x: The point.
            *args: Further arguments of the model, the same for all examples.
        """
        outputs = [
            _on_each(model, x, tree, args, lambda e, model=model: model(x, e, *args))
            for model, tree in self.parts
        ]
        shapes = [z.shape[1:] for z in outputs]
        if len(set(shapes)) > 1:
            raise StructureError(
                message(
                    "PerExample((r1, r2), (e1, e2))(x)",
                    "the models return arrays of different shapes.",
                    expected=f"outputs of shape {shapes[0]} for each example",
                    got=", ".join(map(str, shapes)),
                    fix="Return one number for each example, or pad with zeros.",
                )
            )
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs)

    @property
    def parts(self) -> list[tuple[Function, PyTree]]:
        """Each model with its examples."""
        parts = _parts(self.model, self.examples)
        assert parts is not None  # or `__check_init__` has refused it
        return parts

    def rows(self, x: Point, *args: PyTree) -> PyTree[Float[Array, "N ..."]]:
        r"""Return the Jacobian $\partial z_n / \partial x$, a row for each output.

        It is `jax.jacrev(model)(x)` by a gradient of each example, where `jacrev` takes
        a pass over all examples for each row.

        Args:
            x: The point: any pytree. Floating leaves are differentiated.
            *args: Further arguments of the model.

        Returns:
            A tree like `x`, `None` at leaves that are not differentiated. A leaf has
            the shape `(N, *outputs, *leaf.shape)`.
        """
        shapes = jax.eval_shape(lambda: self(x, *args))
        size = shapes.size // max(len(shapes), 1)
        unit = jnp.eye(size, dtype=shapes.dtype).reshape(size, *shapes.shape[1:])
        units = jnp.broadcast_to(unit, (len(shapes), *unit.shape))
        rows = self.pulled_back(units, x, *args)
        split = lambda a: a.reshape(*shapes.shape, *a.shape[2:])
        return jax.tree.map(split, rows)

    def pulled_back(
        self, directions: Inexact[Array, "N S *outputs"], x: Point, *args: PyTree
    ) -> PyTree[Float[Array, "N S ..."]]:
        r"""Return $J_n^T u_{ns}$ for S directions at the output of each example.

        Args:
            directions: The directions $u_{ns}$.
            x: The point.
            *args: Further arguments of the model.

        Returns:
            A tree like the floating leaves of `x` with two leading axes.
        """
        moving, rest = eqx.partition(x, eqx.is_inexact_array)
        # A row is that of one example. By parameters that the devices of a `shard_map`
        # hold alike it would be the sum of one of each.
        axes = manual_axes()
        data = jax.tree.leaves(eqx.filter((self.examples, args), eqx.is_array))
        own = [b for b in axes if any(differs_along(a, [b]) for a in data)]
        moving = jax.tree.map(lambda a: varying_along([a], own)[0], moving)

        def of_one(model: Function, e: PyTree, u: Array) -> PyTree:
            at = lambda p: jnp.asarray(model(eqx.combine(p, rest), e, *args))
            z, pull = jax.vjp(with_rules(at, derive=False), moving)
            # Not one number for all examples, which XLA on CPUs reads beyond where it
            # fuses a product with a sum.
            return jax.vmap(lambda v: pull(jnp.where(z == z, v, z))[0])(u)

        counts = [_number(tree) or 0 for _, tree in self.parts]
        ends = list(itertools.accumulate(counts))
        trees = [
            jax.vmap(lambda e, u, model=model: of_one(model, e, u))(
                tree, directions[end - count : end]
            )
            for (model, tree), count, end in zip(self.parts, counts, ends, strict=True)
        ]
        if len(trees) == 1:
            return trees[0]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


_CALL = "PerExample(model, examples)"


def _on_each(
    model: Function,
    x: Point,
    tree: PyTree,
    args: tuple[PyTree, ...],
    of_one: Callable[[PyTree], Array],
) -> Inexact[Array, "N *outputs"]:
    """Map a function over examples; its errors say that it is given one of them."""
    try:
        return jax.vmap(lambda e: jnp.asarray(of_one(e)))(tree)
    except HotkError:
        raise
    except Exception as error:
        one = describe_tree(
            jax.tree.map(
                lambda a: jax.ShapeDtypeStruct(jnp.shape(a)[1:], jnp.result_type(a)),
                tree,
            )
        )
        if _is_of_all(model, x, tree, args):
            raise StructureError(
                message(
                    _CALL,
                    f"`{function_name(model)}` is a function of all examples, and is "
                    "called with one example at a time.",
                    expected=f"a function of one example, {one}",
                    got=f"one of {describe_tree(tree)}",
                    fix="Leave `jax.vmap` and the axis of examples out of it; or let "
                    "it capture the examples, and give no `examples`.",
                )
            ) from error
        error.add_note(
            f"`{_CALL}`: `{function_name(model)}` is called with one example at a "
            f"time, here {one}."
        )
        raise


def _is_of_all(
    model: Function, x: Point, tree: PyTree, args: tuple[PyTree, ...]
) -> bool:
    """Whether a function that fails with one example works with all of them."""
    try:
        found = eqx.filter_eval_shape(model, x, tree, *args)
    except Exception:
        return False
    return getattr(found, "shape", ())[:1] == (_number(tree),)


def _parts(
    model: Function | tuple[Function, ...], examples: PyTree
) -> list[tuple[Function, PyTree]] | None:
    if not isinstance(model, tuple):
        return [(model, examples)]
    if not isinstance(examples, (tuple, list)) or len(examples) != len(model):
        return None
    return list(zip(model, examples, strict=True))


def _number(tree: PyTree) -> int | None:
    """Return how many examples a tree has, `None` if that is not one number."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    if not shapes or not all(shapes):
        return None
    counts = {shape[0] for shape in shapes}
    return counts.pop() if len(counts) == 1 else None
