r"""Rows whose Gram matrix is a curvature: $A^T A$, found in the program of a function.

A loss of a model of single examples has the curvature $J^T H_L J$ with $H_L = U U^T$
block by block, so $A = U^T J$ has few rows where there are few examples. An optimizer
has a function only, which a wrapper, a filter or a loop may have changed: so the value
carries an equation that does nothing, and has the program of the rows among its
parameters. What is not the value of such an equation itself has none.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PyTree

from hotk._capture import rule_key
from hotk._core import (
    Arrays,
    ClosedJaxpr,
    JaxprEqn,
    Leaf,
    Number,
    Path,
    Point,
    RealNumber,
    Scalar,
    Unrecognized,
    bound,
    canonical_form,
    fingerprint,
    inlined,
    inlined_equations,
    needed_for,
    run_jaxpr,
    run_replaced,
    trace_once,
    with_numbers,
)
from hotk._primitive import AbstractRuled, apply_ruled, with_extremes

from ._per_example import PerExample


class SampleRows(NamedTuple):
    r"""A curvature $A^T A$ by its rows.

    Attributes:
        rows: A: a tree like the point, each leaf with one leading axis.
        weights: The w with $\nabla f = A^T w$, up to what no row can tell of the
            gradient; `None` if there is none.
        residuals: Of a sum of squares the function $x \mapsto w$, whose Jacobian is A;
            `None` of other losses.
    """

    rows: PyTree[Float[Array, "m ..."]]
    weights: Float[Array, " m"] | None
    residuals: Callable[[Point], Float[Array, " m"]] | None


class Roots(NamedTuple):
    r"""Square roots of the curvature of a loss, example by example.

    Attributes:
        directions: The $u_{ns}$ with $H_n = \sum_s u_{ns} u_{ns}^T$.
        weights: The $w_{ns}$ with $\nabla_{z_n} L = \sum_s w_{ns} u_{ns}$, or `None`.
    """

    directions: Inexact[Array, "N S *outputs"]
    weights: Inexact[Array, "N S"] | None


def roots_of_squares(
    r: Inexact[Array, "N *outputs"], factor: RealNumber | Float[Array, "N ..."] = 1.0
) -> Roots:
    """Return the roots of half the sum of squares, times a factor.

    Args:
        r: The residuals.
        factor: The factor; of all examples, or one of each.
    """
    flat = r.reshape(len(r), -1)
    root = jnp.broadcast_to(jnp.asarray(factor, r.dtype).reshape(-1), len(r)) ** 0.5
    # of NumPy: it is known when the function is traced, and JAX would compile for it
    unit = np.eye(flat.shape[1], dtype=r.dtype).reshape(-1, *r.shape[1:])
    return Roots(jax.vmap(lambda c: c * unit)(root), root[:, None] * flat)


def roots_of(
    z: Inexact[Array, "N *outputs"],
    gradient: Inexact[Array, "N *outputs"],
    product: Callable[[Array], Array],
) -> Roots:
    """Return the roots of a matrix that is positive semidefinite in each example.

    Args:
        z: The outputs.
        gradient: The gradient of the loss by them.
        product: From a direction to the product with the matrix.
    """
    count, shape = len(z), z.shape[1:]
    unit = roots_of_squares(z).directions
    columns = jax.vmap(product, in_axes=1, out_axes=1)(unit)
    h = columns.reshape(count, unit.shape[1], -1)
    q = gradient.reshape(count, -1)
    if h.shape[1] == 1:  # eigenvalues of numbers are calls of LAPACK as well
        values, vectors = h[:, :, 0], jnp.ones_like(h)
    else:
        values, vectors = jnp.linalg.eigh((h + h.swapaxes(1, 2)) / 2)
    largest = jnp.max(values, axis=1, keepdims=True)
    # what is zero but for rounding has no direction that can be trusted
    real = values > h.shape[1] * jnp.finfo(h.dtype).eps * jnp.maximum(largest, 0)
    root = jnp.sqrt(jnp.where(real, values, 0))
    along = jnp.sum(vectors * q[:, :, None], axis=1)
    weights = jnp.where(real, along / jnp.where(real, root, 1), 0)
    directions = (vectors * root[:, None, :]).swapaxes(1, 2)
    return Roots(directions.reshape(count, -1, *shape), weights)


@dataclasses.dataclass(frozen=True)
class _Mark(AbstractRuled):
    """A number as it is, with the program of the rows that belong to it.

    Attributes:
        key: What the program is known by: marks are compared by value.
        written: The program, with all numbers written into it.
        paths: Where in it the numbers stand that are operands. They are no part of the
            key, or functions that differ in a number alone would share no program.
        constants: How many constants it has, these numbers included.
        weighted: Whether there are weights.
        squares: Whether the number is half the sum of their squares.
        by_example: Whether there is one row for each example, or weights alone.
    """

    key: Hashable
    written: ClosedJaxpr = dataclasses.field(compare=False, repr=False)
    paths: tuple[Path, ...]
    constants: int
    weighted: bool
    squares: bool
    by_example: bool

    # No rule of a user: the derivative of the number is that of the number.
    users_rule = False

    @functools.cached_property
    def program(self) -> ClosedJaxpr:
        """From constants, numbers and leaves of a point to weights and rows."""
        count = self.constants - len(self.paths)
        return with_numbers(self.written, list(self.paths), count)

    def run(self, arrays: Arrays) -> Arrays:
        """Return the number."""
        return [arrays[0]]

    def tangents(
        self, outputs: Arrays, arrays: Arrays, along: list[Leaf | None]
    ) -> list[Leaf | None]:
        """Return the tangent of the number."""
        return [along[0]]


def with_rows(
    value: Scalar,
    model: Callable[..., Any],
    x: Point,
    args: tuple[PyTree, ...],
    roots: Callable[[Any], Roots],
    *,
    squares: bool = False,
) -> Scalar:
    """Return a value that tells the rows of its curvature, if they are known.

    Args:
        value: The value.
        model: The model; one that is no `PerExample` has weights alone, which are
            residuals.
        x: The point.
        args: Further arguments of the model.
        roots: From the outputs, an array with one row for each example where the
            model is a `PerExample`, to the roots of the curvature of the loss.
        squares: Whether the value is half the sum of the squares of their weights.
    """
    if not (isinstance(model, PerExample) or squares):
        return value
    moving, rest = eqx.partition(x, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(moving)
    by_example = isinstance(model, PerExample)
    if by_example and not jax.eval_shape(lambda: model(x, *args)).size:
        return value

    def rows(leaves: Arrays) -> tuple[Array | None, list[Array]]:
        at = eqx.combine(tree.unflatten(leaves), rest)
        found = roots(model(at, *args))
        weights = None if found.weights is None else found.weights.reshape(-1)
        if not isinstance(model, PerExample):
            return weights, []
        pulled = model.pulled_back(found.directions, at, *args)
        # without -1, which the shape of an empty leaf does not tell
        joined = lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])
        return weights, [joined(a) for a in jax.tree.leaves(pulled)]

    try:
        closed, shapes = trace_once(rows, leaves, kept=True)
    except (TypeError, ValueError, NotImplementedError):
        return value  # a model without a reverse mode has no rows
    closed = inlined(closed)  # so that no program inside of it holds an array
    constants, count = closed.consts, len(closed.consts)
    run = lambda *a: run_jaxpr(closed, a[:count], a[count:])
    bare = jax.make_jaxpr(run)(*constants, *leaves)
    key, numbers = _known_by(bare)
    operands = [*constants, *(n.value for n in numbers)]
    paths, weighted = tuple(n.path for n in numbers), shapes[0] is not None
    mark = _Mark(key, bare, paths, len(operands), weighted, squares, by_example)
    marked = apply_ruled(mark, [value, *operands, *leaves])[0]
    return jnp.asarray(marked)


def _known_by(bare: ClosedJaxpr) -> tuple[Hashable, list[Number]]:
    """Return what tells a program from others, and the numbers that do not."""
    try:
        form = canonical_form(bare, 0, rule_key)
    except Unrecognized:
        try:
            return fingerprint(bare, lift=False)[0], []
        except Unrecognized:
            return object(), []
    # An integer may be an index: a pattern is found if it is known.
    floating = [n.kind[0].kind in "fc" for n in form.numbers]
    pairs = list(zip(floating, form.numbers, strict=True))
    return (form.key, *(n.bits for f, n in pairs if not f)), [n for f, n in pairs if f]


class RowsProgram(NamedTuple):
    """The rows of a function at a point, before they are computed.

    Attributes:
        number: How many rows there are.
        programs: What runs: the part of the function before the mark, and the rows.
        compute: Computes them.
    """

    number: int
    programs: tuple[ClosedJaxpr, ClosedJaxpr]
    compute: Callable[[], SampleRows]


def rows_program(f: Callable[[Point], Scalar], x: Point) -> RowsProgram | None:
    """Find the rows of the curvature of a function, or `None` if they are unknown.

    Args:
        f: A function of one argument: a `LeastSquares`, or a Gauss-Newton or Fisher
            function of a `PerExample` and a loss of this module; or one with the same
            value.
        x: The point: a tree of floating arrays.

    Returns:
        The program of the rows; nothing is computed yet.

    Example:
        >>> r = lambda w, e: w @ e - 1.0
        >>> f = hotk.curvature.LeastSquares(r, jnp.array([[1.0, 2.0]]))
        >>> found = hotk.curvature.rows_program(f, jnp.zeros(2)).compute()
        >>> found.rows.tolist(), found.weights.tolist()
        ([[1.0, 2.0]], [-1.0])
    """
    found = _marked(f, x)
    if found is None or not found.mark.by_example:
        return None
    leaves, tree = jax.tree.flatten(x)
    mark, before, run = found.mark, found.before, found.run

    def compute() -> SampleRows:
        inputs = run(*leaves)
        split = lambda *leaves: run(*leaves)[mark.constants :]
        _, pull = jax.vjp(split, *leaves)
        results = _run(mark.program, inputs)
        weights = jnp.asarray(results[0]) if mark.weighted else None
        of_point = jax.vmap(pull)(results[1:] if mark.weighted else results)
        rows = tree.unflatten(of_point)
        return SampleRows(rows, weights, found.residuals if mark.squares else None)

    number = mark.program.out_avals[-1].shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    return RowsProgram(number, (before, mark.program), compute)


def residuals_of(
    f: Callable[[Point], Scalar], x: Point
) -> Callable[[Point], Float[Array, " m"]] | None:
    """Find the residuals of half a sum of squares, or `None` if it is none.

    Args:
        f: A `LeastSquares`, a Gauss-Newton function of `SquaredError`, or one with the
            same value.
        x: The point: a tree of floating arrays.

    Returns:
        From a point to all residuals as one vector.

    Example:
        >>> f = hotk.curvature.LeastSquares(lambda w: {"a": w - 1.0, "b": w[0]})
        >>> hotk.curvature.residuals_of(f, jnp.zeros(2))(jnp.ones(2)).tolist()
        [0.0, 0.0, 1.0]
    """
    found = _marked(f, x)
    return found.residuals if found is not None and found.mark.squares else None


def _run(program: ClosedJaxpr, inputs: Sequence[Leaf]) -> list[Leaf]:
    """Run the program of a mark; in `shard_map` its constants may vary as its rows do.

    JAX lets what is the same on all devices vary once, and refuses it for what does.
    """
    return run_jaxpr(program, program.consts, inputs, keep_rules=True)


class _Marked(NamedTuple):
    """The mark of the value of a function.

    Attributes:
        mark: The mark.
        before: From the point to what the mark is given.
        run: The same as a function.
    """

    mark: _Mark
    before: ClosedJaxpr
    run: Callable[..., Arrays]

    def residuals(self, x: Point) -> Float[Array, " m"]:
        """Return the weights, which of a sum of squares are its residuals."""
        kept = [i == 0 for i in range(len(self.mark.program.out_avals))]
        alone = needed_for(self.mark.program, kept)
        return jnp.asarray(_run(alone, self.run(*jax.tree.leaves(x)))[0])


def _marked(f: Callable[[Point], Scalar], x: Point) -> _Marked | None:
    """Trace a function, and find the mark that its value comes from."""
    leaves, tree = jax.tree.flatten(x)
    closed = jax.make_jaxpr(lambda leaves: f(tree.unflatten(leaves)))(leaves)
    marks = [e for e, _ in inlined_equations(closed.jaxpr) if _mark_of(e) is not None]
    if not marks:
        return None
    found: list[_Mark] = []

    def inputs(*leaves: Leaf) -> list[Leaf]:
        """Return what the equation of the value is given."""
        met: list[tuple[_Mark, list[Leaf], Leaf]] = []

        def handle(equation: JaxprEqn, given: list[Leaf]) -> list[Array]:
            outputs, mark = bound(equation, given), _mark_of(equation)
            if mark is not None:
                met.append((mark, given[1:], outputs[0]))
            return outputs

        [y] = run_replaced(closed, leaves, {"hotk_ruled": handle})
        of_value = [(mark, given) for mark, given, out in met if out is y]
        found.extend(mark for mark, _ in of_value)
        return of_value[0][1] if of_value else []

    before = jax.make_jaxpr(inputs)(*leaves)
    if not found:  # something was added to the value, or it was scaled
        return None
    before = needed_for(before, [True] * len(before.jaxpr.outvars))
    return _Marked(found[0], before, with_extremes(before))


def _mark_of(equation: JaxprEqn) -> _Mark | None:
    if equation.primitive.name != "hotk_ruled":
        return None
    function = equation.params["function"]
    return function if isinstance(function, _Mark) else None
