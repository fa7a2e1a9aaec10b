"""Check the derivatives of a function, and its rules: for tests of your own.

Import it as `import hotk.testing`.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import hotk
from hotk.rule import disabled


_NESTINGS = (
    hotk.FORWARD_OVER_REVERSE,
    hotk.REVERSE_OVER_REVERSE,
    hotk.REVERSE_OVER_FORWARD,
    hotk.FORWARD_OVER_FORWARD,
)


class Row(NamedTuple):
    """One comparison.

    Attributes:
        what: What was compared.
        error: The largest difference over the largest entry, or over the size below
            which nothing can be compared; `None` if the mode does not exist.
        allowed: How large the error may be.
        note: Why there is nothing to compare.
    """

    what: str
    error: float | None
    allowed: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is small enough; what could not be compared has passed."""
        return self.error is None or self.error <= self.allowed


class Checked(NamedTuple):
    """What `check` found.

    Attributes:
        rows: The comparisons.
    """

    rows: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        """Whether all of them passed."""
        return all(row.passed for row in self.rows)

    def __str__(self) -> str:
        """Write one line a comparison."""
        width = max(len(row.what) for row in self.rows)
        lines = []
        for row in self.rows:
            error = f"{row.error:.1e}" if row.error is not None else row.note
            state = "" if row.error is None else (" ok" if row.passed else " FAILED")
            lines.append(f"{row.what:<{width}}  {error}{state}")
        return "\n".join(lines)


def check(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    order: int = 2,
    rtol: float | None = None,
    key: Any = None,
) -> Checked:
    """Compare the derivatives of a real function in every way that there is.

    Along a random direction: the gradient with a difference of values, in both modes;
    the Hessian-vector product with a difference of gradients, in all four nestings, for
    symmetry and linearity, and with the quadratic form in Taylor mode; both with the
    rules of `hotk.rule` switched off, called twice, under `jax.jit` and under
    `jax.vmap`. Modes that do not exist are said, and are no failure.

    Args:
        f: Function `f(x, *args)` that returns one real number, with or without rules.
        x: Point: any pytree. Best in float64, where differences have eight digits.
        *args: Further arguments of `f`, held fixed: rules for them are not checked;
            put them into `x` for that.
        order: 1 for gradients alone, 2 for Hessians as well.
        rtol: Largest error of a comparison of derivatives, over the largest entry;
            100 roundings by default. Differences are allowed the power 2/3 of a
            rounding, times 100.
        key: Key of the random directions.

    Returns:
        The comparisons, which print as a table.

    Raises:
        AssertionError: If one fails; the message is the table.

    Example:
        >>> import hotk.testing
        >>> square = hotk.rule.custom(lambda x: x**2)
        >>> _ = square.def_jvp(lambda primals, tangents: 3 * primals[0] * tangents[0])
        >>> try:
        ...     hotk.testing.check(square, 2.0)
        ... except AssertionError as error:
        ...     print("gradient and differences" in str(error))
        True
    """
    key = jax.random.key(0) if key is None else key
    x = jax.tree.map(lambda a: jnp.asarray(a) if _is_number(a) else a, x)
    eps = _rounding(x)
    exact = 100 * eps if rtol is None else rtol
    rough = 100 * eps ** (2 / 3)
    first, second = (_direction(k, x) for k in jax.random.split(key))
    rows = [*_first_order(f, x, args, first, exact, rough)]
    if order > 1:
        rows += _second_order(f, x, args, first, second, exact, rough)
    found = Checked(tuple(rows))
    if not found.passed:
        raise AssertionError(f"derivatives do not agree\n{found}")
    return found


def _first_order(
    f: Any, x: Any, args: Any, v: Any, exact: float, rough: float
) -> Iterator[Row]:
    gradient = hotk.gradient(f, x, *args)
    slope = _dot(gradient, v)
    whole, size = _difference(f, x, args, v)
    errors = [_far(slope, whole, size)]
    for part in _parts(v):  # an error in a small array is not to be lost in a large one
        change, least = _difference(f, x, args, part)
        errors.append(_far(_dot(gradient, part), change, least))
    yield Row("gradient and differences", max(errors), rough)
    for mode in (hotk.Forward(), hotk.Reverse()):
        name = f"gradient, {mode} mode"
        take = lambda mode=mode: _dot(hotk.gradient(f, x, *args, mode=mode), v)
        yield _row(name, take, slope, exact, size)
    take = _without_rules(lambda: _dot(hotk.gradient(f, x, *args), v))
    yield _row("gradient without rules", take, slope, max(exact, rough), size)


def _second_order(
    f: Any, x: Any, args: Any, v: Any, u: Any, exact: float, rough: float
) -> Iterator[Row]:
    product = hotk.hvp(f, x, v, *args)
    gradient = lambda x, *args: hotk.gradient(f, x, *args)
    change, size = _difference(gradient, x, args, v)
    yield Row("product and differences", _far(product, change, size), rough)
    for mode in _NESTINGS:
        take = lambda mode=mode: hotk.hvp(f, x, v, *args, mode=mode)
        yield _row(f"product, {mode}", take, product, exact, size)
    other = hotk.hvp(f, x, u, *args)
    yield Row("symmetry", _far(_dot(product, u), _dot(other, v), size), 10 * exact)
    both = jax.tree.map(lambda a, b: 2 * a - b, v, u)
    sums = jax.tree.map(lambda a, b: 2 * a - b, product, other)
    yield Row("linearity", _far(hotk.hvp(f, x, both, *args), sums, size), 10 * exact)
    yield Row("called twice", _far(hotk.hvp(f, x, v, *args), product, size), 0.0)
    jitted = jax.jit(lambda v: hotk.hvp(f, x, v, *args))
    yield _row("under jit", lambda: jitted(v), product, exact, size)
    pair = jax.tree.map(lambda a, b: jnp.stack([a, b]), u, v)
    mapped = jax.vmap(lambda v: hotk.hvp(f, x, v, *args))
    take = lambda: jax.tree.map(lambda a: a[1], mapped(pair))
    yield _row("under vmap", take, product, exact, size)
    moving, kept = eqx.partition(x, eqx.is_inexact_array)
    points = jax.tree.map(lambda a: jnp.stack([a, a]), moving)
    over_x = jax.vmap(lambda m: hotk.hvp(f, eqx.combine(m, kept), v, *args))
    take = lambda: jax.tree.map(lambda a: a[1], over_x(points))
    yield _row("under vmap of the point", take, product, exact, size)
    if not any(jnp.iscomplexobj(a) for a in _moving(x)):
        form = _dot(v, product)
        take = lambda: hotk.quadratic_form(f, x, v, *args, mode=hotk.Taylor())
        yield _row("quadratic form, Taylor", take, form, exact, abs(form) + size)
    take = _without_rules(lambda: hotk.hvp(f, x, v, *args))
    yield _row("product without rules", take, product, max(exact, rough), size)


def _parts(v: Any) -> Iterator[Any]:
    """Yield the direction with one of its arrays alone, at most eight times."""
    leaves, treedef = jax.tree.flatten(v)
    for i in range(min(len(leaves), 8) if len(leaves) > 1 else 0):
        pairs = enumerate(leaves)
        yield treedef.unflatten(a if i == k else jnp.zeros_like(a) for k, a in pairs)


def _without_rules(take: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with disabled():
            return take()

    return run


def _row(
    what: str, take: Callable[[], Any], expected: Any, allowed: float, size: float
) -> Row:
    try:
        made = take()
    except hotk.ModeError:
        return Row(what, None, allowed, "does not exist")
    return Row(what, _far(made, expected, size), allowed)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (float, complex, np.ndarray, np.generic))


def _moving(x: Any) -> list[Any]:
    return [a for a in jax.tree.leaves(x) if eqx.is_inexact_array(a)]


def _rounding(x: Any) -> float:
    return max(float(jnp.finfo(a.dtype).eps) for a in _moving(x))


def _direction(key: Any, x: Any) -> Any:
    """Draw a direction with entries of the size of those of the point."""
    leaves, treedef = jax.tree.flatten(x)
    keys = jax.random.split(key, max(len(leaves), 1))
    return treedef.unflatten(
        jax.random.normal(k, a.shape, a.dtype) if eqx.is_inexact_array(a) else None
        for k, a in zip(keys, leaves, strict=True)
    )


def _dot(a: Any, b: Any) -> Any:
    pairs = zip(_moving(a), _moving(b), strict=True)
    return sum(float(np.sum(np.asarray(p * q)).real) for p, q in pairs)


def _difference(function: Any, x: Any, args: Any, v: Any) -> tuple[list[Any], float]:
    """Differentiate along `v` by a central difference of fourth order.

    Returns also a size below which derivatives have few digits: how much the function
    changes in a step, over the step, and a hundredth of its largest value.
    """
    size = max((float(jnp.max(jnp.abs(a), initial=0)) for a in _moving(x)), default=0.0)
    h = _rounding(x) ** 0.2 * max(1.0, size) / 4

    def at(t: float) -> Any:
        step = lambda a, d: a if d is None else a + jnp.asarray(t * h, a.dtype) * d
        return _moving(function(jax.tree.map(step, x, v, is_leaf=_is_none), *args))

    ends = [at(t) for t in (-2.0, -1.0, 1.0, 2.0)]
    columns = list(zip(*ends, strict=True))
    change = [(a - 8 * b + 8 * c - d) / (12 * h) for a, b, c, d in columns]
    stacks = [np.stack([np.asarray(a, complex) for a in column]) for column in columns]
    steps = [float(np.max(np.abs(a - a[:1]), initial=0)) / h for a in stacks]
    sizes = [float(np.max(np.abs(a), initial=0)) / 100 for a in stacks]
    return change, max((*steps, *sizes), default=0.0)


def _is_none(node: Any) -> bool:
    return node is None


def _far(a: Any, b: Any, least: float) -> float:
    """Return the largest difference over the largest entry, or over `least`."""
    first = [np.ravel(np.asarray(leaf, complex)) for leaf in jax.tree.leaves(a)]
    second = [np.ravel(np.asarray(leaf, complex)) for leaf in jax.tree.leaves(b)]
    p, q = np.concatenate(first), np.concatenate(second)
    size = max(np.max(np.abs(p), initial=least), np.max(np.abs(q), initial=0))
    far = float(np.max(np.abs(p - q), initial=0))
    return far / size if size else far
