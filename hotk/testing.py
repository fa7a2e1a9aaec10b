"""Check the derivatives of a function, and its rules: for tests of your own."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

import hotk
from hotk.curvature import AbstractLikelihood
from hotk.rule import (
    Backend as Backend,
    check_backend as check_backend,
    disabled,
)
from hotk.verify import Verified as Verified, verified as verified


Function: TypeAlias = Callable[..., PyTree]

_NESTINGS = (
    hotk.FORWARD_OVER_REVERSE,
    hotk.REVERSE_OVER_REVERSE,
    hotk.REVERSE_OVER_FORWARD,
    hotk.FORWARD_OVER_FORWARD,
)


class Row(NamedTuple):
    """One comparison of `hotk.testing.check`.

    Attributes:
        what: What was compared.
        error: The largest difference over the largest entry, or over the size below
            which nothing can be compared; `None` if the mode does not exist.
        allowed: How large the error may be.
        note: Why nothing was compared.
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
    """What `hotk.testing.check` returns: its comparisons, which print as a table.

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
    f: Function,
    x: PyTree,
    *args: PyTree,
    order: int = 2,
    rtol: float | None = None,
    key: Key[Array, ""] | None = None,
) -> Checked:
    """Check the derivatives of a real function in every mode, and its rules.

    Along a random direction it compares the gradient with a difference of values, in
    both modes, and the Hessian-vector product with a difference of gradients, in all
    four nestings, for symmetry and linearity, and with the quadratic form in Taylor
    mode. Both are also computed with the rules of `hotk.rule` switched off, called
    twice, under `jax.jit` and under `jax.vmap`. A mode that does not exist is listed
    and is no failure. It takes some twenty compilations.

    Args:
        f: Function `f(x, *args)` that returns one real number, with or without rules.
        x: Point: any pytree. Best in float64, where differences have eight digits.
        *args: Further arguments of `f`, held fixed: rules for them are not checked;
            put them into `x` for that.
        order: 1 for gradients alone, 2 for Hessians as well.
        rtol: Largest error of a comparison of derivatives, over the largest entry;
            100 times machine epsilon by default. Differences are allowed 100 times its
            power 2/3.
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
    eps = _epsilon(x)
    exact = 100 * eps if rtol is None else rtol
    rough = 100 * eps ** (2 / 3)
    v, u = (_direction(k, x) for k in jax.random.split(key))
    rows = [*_first_order(f, x, args, v, exact, rough)]
    if order > 1:
        rows += _second_order(f, x, args, v, u, exact, rough)
    rows += _of_backend()
    checked = Checked(tuple(rows))
    if not checked.passed:
        raise AssertionError(f"derivatives do not agree\n{checked}")
    return checked


@functools.cache
def _of_backend() -> tuple[Row, ...]:
    """Return a row that tells if XLA is wrong in programs that hotk does not compile.

    It does not fail: the derivatives that are checked are not wrong because of it.
    """
    found = check_backend(1)
    note = f"wrong in programs of your own without {found.flag}"
    return () if found.passed else (Row("XLA", None, 0.0, note),)


def check_likelihood(
    loss: AbstractLikelihood,
    z: PyTree,
    *,
    samples: int = 20_000,
    key: Key[Array, ""] | None = None,
) -> Checked:
    r"""Check that the methods of a likelihood belong to one density.

    It compares `slope` and `hessian_product` with derivatives of `each`, and with
    targets that `sample` draws: the mean of their slopes is zero, and that of $g g^T u$
    is `fisher_product`. The last two are off by chance; they pass within six standard
    errors.

    Args:
        loss: A likelihood: a class of `hotk.curvature.AbstractLikelihood`.
        z: Outputs, examples first. Best in float64.
        samples: How many targets are drawn for each example.
        key: A random key.

    Returns:
        The comparisons, which print as a table.

    Raises:
        AssertionError: If one fails; the message is the table.
        TypeError: If it is not a likelihood, or its class does not say what its Fisher
            matrix is.

    Example:
        >>> import hotk.testing
        >>> loss = hotk.curvature.GammaLoss(jnp.array([0.5, 2.0]), shape=3.0)
        >>> checked = hotk.testing.check_likelihood(loss, jnp.array([0.1, -0.2]))
        >>> checked.passed
        True
    """
    if not isinstance(loss, AbstractLikelihood):
        raise TypeError(
            f"`check_likelihood(loss, z)`: `{type(loss).__name__}` is not a class of "
            "`hotk.curvature.AbstractLikelihood`, so it has no density to draw from."
        )
    one, other = jax.random.split(jax.random.key(0) if key is None else key)
    z = jnp.asarray(z)
    u = _direction(one, z)
    value = lambda z: jnp.sum(loss.each(z))
    scale, exact = loss.factor(z), 1e3 * _epsilon(z)
    slope, along = jax.jvp(jax.grad(value), (z,), (u,))
    rows = [
        Row(
            "slope and derivative", _error(loss.slope(z, loss.targets), slope, 1), exact
        ),
        Row(
            "Hessian and derivative",
            _error(loss.hessian_product(z, u) / scale, along, 1),
            exact,
        ),
    ]
    keys = jax.random.split(other, samples)
    drawn = jax.vmap(lambda k: loss.slope(z, loss.sample(k, z)))(keys)
    axes = tuple(range(2, drawn.ndim))
    products = drawn * jnp.sum(drawn * u[None], axis=axes, keepdims=True)
    expected = loss.fisher_product(z, u) / scale
    for what, each, mean in (
        ("mean slope of drawn targets", drawn, jnp.zeros_like(z)),
        ("Fisher matrix and drawn targets", products, expected),
    ):
        off = jnp.abs(jnp.mean(each, axis=0) - mean)
        allowed = 6 * jnp.std(each, axis=0) / samples**0.5 + exact
        rows.append(Row(what, float(jnp.max(off / allowed)), 1.0))
    checked = Checked(tuple(rows))
    if not checked.passed:
        raise AssertionError(f"this is not a likelihood of one density\n{checked}")
    return checked


def _first_order(
    f: Function,
    x: PyTree,
    args: tuple[PyTree, ...],
    v: PyTree,
    exact: float,
    rough: float,
) -> Iterator[Row]:
    gradient = hotk.gradient(f, x, *args)
    slope = _dot(gradient, v)
    difference, size = _difference(f, x, args, v)
    errors = [_error(slope, difference, size)]
    # Each array by itself as well: an error in a small one is lost in a large one.
    for part in _parts(v):
        change, least = _difference(f, x, args, part)
        errors.append(_error(_dot(gradient, part), change, least))
    yield Row("gradient and differences", max(errors), rough)
    for mode in (hotk.Forward(), hotk.Reverse()):
        name = f"gradient, {mode} mode"
        compute = lambda mode=mode: _dot(hotk.gradient(f, x, *args, mode=mode), v)
        yield _row(name, compute, slope, exact, size)
    compute = _without_rules(lambda: _dot(hotk.gradient(f, x, *args), v))
    yield _row("gradient without rules", compute, slope, max(exact, rough), size)


def _second_order(
    f: Function,
    x: PyTree,
    args: tuple[PyTree, ...],
    v: PyTree,
    u: PyTree,
    exact: float,
    rough: float,
) -> Iterator[Row]:
    product = hotk.hvp(f, x, v, *args)
    gradient = lambda x, *args: hotk.gradient(f, x, *args)
    change, size = _difference(gradient, x, args, v)
    yield Row("product and differences", _error(product, change, size), rough)
    for mode in _NESTINGS:
        compute = lambda mode=mode: hotk.hvp(f, x, v, *args, mode=mode)
        yield _row(f"product, {mode}", compute, product, exact, size)
    other = hotk.hvp(f, x, u, *args)
    yield Row("symmetry", _error(_dot(product, u), _dot(other, v), size), 10 * exact)
    both = jax.tree.map(lambda a, b: 2 * a - b, v, u)
    sums = jax.tree.map(lambda a, b: 2 * a - b, product, other)
    yield Row("linearity", _error(hotk.hvp(f, x, both, *args), sums, size), 10 * exact)
    yield Row("called twice", _error(hotk.hvp(f, x, v, *args), product, size), 0.0)
    jitted = jax.jit(lambda v: hotk.hvp(f, x, v, *args))
    yield _row("under jit", lambda: jitted(v), product, exact, size)
    pair = jax.tree.map(lambda a, b: jnp.stack([a, b]), u, v)
    mapped = jax.vmap(lambda v: hotk.hvp(f, x, v, *args))
    compute = lambda: jax.tree.map(lambda a: a[1], mapped(pair))
    yield _row("under vmap", compute, product, exact, size)
    moving, static = eqx.partition(x, eqx.is_inexact_array)
    points = jax.tree.map(lambda a: jnp.stack([a, a]), moving)
    over_x = jax.vmap(lambda m: hotk.hvp(f, eqx.combine(m, static), v, *args))
    compute = lambda: jax.tree.map(lambda a: a[1], over_x(points))
    yield _row("under vmap of the point", compute, product, exact, size)
    if not any(jnp.iscomplexobj(a) for a in _moving(x)):
        form = _dot(v, product)
        compute = lambda: hotk.quadratic_form(f, x, v, *args, mode=hotk.Taylor())
        yield _row("quadratic form, Taylor", compute, form, exact, abs(form) + size)
    compute = _without_rules(lambda: hotk.hvp(f, x, v, *args))
    yield _row("product without rules", compute, product, max(exact, rough), size)


def _parts(v: PyTree) -> Iterator[PyTree]:
    """Yield the direction with one of its arrays alone, at most eight times."""
    leaves, treedef = jax.tree.flatten(v)
    for i in range(min(len(leaves), 8) if len(leaves) > 1 else 0):
        pairs = enumerate(leaves)
        yield treedef.unflatten(a if i == k else jnp.zeros_like(a) for k, a in pairs)


def _without_rules(compute: Callable[[], PyTree]) -> Callable[[], PyTree]:
    def run() -> PyTree:
        with disabled():
            return compute()

    return run


def _row(
    what: str,
    compute: Callable[[], PyTree],
    expected: PyTree,
    allowed: float,
    size: float,
) -> Row:
    try:
        result = compute()
    except hotk.ModeError:
        return Row(what, None, allowed, "does not exist")
    return Row(what, _error(result, expected, size), allowed)


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, (float, complex, np.ndarray, np.generic))


def _moving(x: PyTree) -> list[Array]:
    return [a for a in jax.tree.leaves(x) if eqx.is_inexact_array(a)]


def _epsilon(x: PyTree) -> float:
    return max(float(jnp.finfo(a.dtype).eps) for a in _moving(x))


def _direction(key: Key[Array, ""], x: PyTree) -> PyTree:
    """Draw a normal direction, `None` at leaves that are not differentiated."""
    leaves, treedef = jax.tree.flatten(x)
    keys = jax.random.split(key, max(len(leaves), 1))
    return treedef.unflatten(
        jax.random.normal(k, a.shape, a.dtype) if eqx.is_inexact_array(a) else None
        for k, a in zip(keys, leaves, strict=True)
    )


def _dot(a: PyTree, b: PyTree) -> float:
    pairs = zip(_moving(a), _moving(b), strict=True)
    return sum(float(np.sum(np.asarray(p * q)).real) for p, q in pairs)


def _difference(
    function: Function, x: PyTree, args: tuple[PyTree, ...], v: PyTree
) -> tuple[list[Array], float]:
    """Differentiate along `v` by a central difference of fourth order.

    Returns also a size below which derivatives have few digits: how much the function
    changes in a step, over the step, and a hundredth of its largest value.
    """
    size = max((float(jnp.max(jnp.abs(a), initial=0)) for a in _moving(x)), default=0.0)
    # The step where the error of the formula, h^4, is that of rounding, eps / h.
    h = _epsilon(x) ** 0.2 * max(1.0, size) / 4

    def at(t: float) -> list[Array]:
        step = lambda a, d: a if d is None else a + jnp.asarray(t * h, a.dtype) * d
        return _moving(function(jax.tree.map(step, x, v, is_leaf=_is_none), *args))

    ends = [at(t) for t in (-2.0, -1.0, 1.0, 2.0)]
    columns = list(zip(*ends, strict=True))
    change = [(a - 8 * b + 8 * c - d) / (12 * h) for a, b, c, d in columns]
    stacks = [np.stack([np.asarray(a, complex) for a in column]) for column in columns]
    steps = [float(np.max(np.abs(a - a[:1]), initial=0)) / h for a in stacks]
    sizes = [float(np.max(np.abs(a), initial=0)) / 100 for a in stacks]
    return change, max((*steps, *sizes), default=0.0)


def _is_none(node: object) -> bool:
    return node is None


def _error(a: PyTree, b: PyTree, least: float) -> float:
    """Return the largest difference over the largest entry, or over `least`."""
    p, q = (
        np.concatenate([np.ravel(np.asarray(leaf, complex)) for leaf in leaves])
        for leaves in (jax.tree.leaves(a), jax.tree.leaves(b))
    )
    size = max(np.max(np.abs(p), initial=least), np.max(np.abs(q), initial=0))
    difference = float(np.max(np.abs(p - q), initial=0))
    return difference / size if size else difference
