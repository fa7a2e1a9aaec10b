"""hotk against raw JAX on one program; a disagreement is a failure or is explained."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import prelude
from .program import (
    Program,
    built,
    captured,
    flat,
    flat_function,
    maker,
    point,
)


REVERSE_FIRST = {"FORWARD_OVER_REVERSE", "REVERSE_OVER_REVERSE"}
NESTINGS = (
    "FORWARD_OVER_REVERSE",
    "REVERSE_OVER_REVERSE",
    "REVERSE_OVER_FORWARD",
    "FORWARD_OVER_FORWARD",
)


class Failure(NamedTuple):
    """A disagreement: the call that shows it, and the two values."""

    program: Program
    call: str
    expected: Any
    got: Any


class Verdict(NamedTuple):
    """What came of one program."""

    failure: Failure | None
    compared: int
    explained: tuple[str, ...]


def allowed(program: Program) -> tuple[str, ...]:
    """Name the nestings in which raw JAX differentiates the program."""
    if "while" in program.kinds:
        return NESTINGS[3:]
    if "custom_vjp" in program.kinds:
        return NESTINGS[:2]
    return NESTINGS


_HESSIANS = {
    "FORWARD_OVER_REVERSE": lambda f: jax.jacfwd(jax.grad(f)),
    "REVERSE_OVER_REVERSE": lambda f: jax.jacrev(jax.grad(f)),
    "REVERSE_OVER_FORWARD": lambda f: jax.jacrev(jax.jacfwd(f)),
    "FORWARD_OVER_FORWARD": lambda f: jax.jacfwd(jax.jacfwd(f)),
}


def _product(gradient: Callable, z, v):
    """Push a direction through a gradient; the gradient comes out too."""
    return jax.jvp(gradient, (z,), (v,))


class Reference:
    """Raw JAX on one program in one state at one point, joined to one vector.

    What a call does not ask for is not computed: to compile is what takes the time.
    """

    def __init__(self, f: Callable, z, v, nesting: str, jit: bool) -> None:
        self.f, self.z, self.v, self.nesting = f, z, v, nesting
        self.jit = jax.jit if jit else lambda f: f

    @functools.cached_property
    def value(self) -> np.ndarray:
        return np.asarray(self.f(self.z))

    @functools.cached_property
    def _first_and_second(self) -> tuple[np.ndarray, np.ndarray]:
        f, last = self.f, "FORWARD_OVER_FORWARD"
        inner = jax.grad if self.nesting in REVERSE_FIRST else jax.jacfwd
        if self.nesting in ("FORWARD_OVER_REVERSE", last):
            both = self.jit(lambda z, v: _product(inner(f), z, v))
        else:
            both = self.jit(
                lambda z, v: (inner(f)(z), jax.grad(lambda z: inner(f)(z) @ v)(z))
            )
        first, second = both(self.z, self.v)
        return np.asarray(first), np.asarray(second)

    @property
    def gradient(self) -> np.ndarray:
        return self._first_and_second[0]

    @property
    def product(self) -> np.ndarray:
        return self._first_and_second[1]

    @functools.cached_property
    def hessian(self) -> np.ndarray:
        return np.asarray(self.jit(_HESSIANS[self.nesting](self.f))(self.z))


def tolerance(program: Program) -> float:
    return 2e-4 if "single" in program.kinds else 1e-8


def agree(got, expected, rtol: float) -> bool:
    """Compare two vectors by their largest entry; NaN and infinity must coincide."""
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        return False
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return False
    scale = np.max(np.abs(expected[finite]), initial=1.0)
    return bool(np.all(np.abs(got[finite] - expected[finite]) <= rtol * scale))


def _dense(hessian) -> np.ndarray:
    """Turn a tree of trees into one matrix; there is one row per leading entry."""
    is_row = hessian if not isinstance(hessian, dict | tuple | list) else None
    if is_row is not None:
        size = int(np.sqrt(np.size(hessian)))
        return np.reshape(hessian, (size, size))
    blocks = [np.asarray(leaf) for leaf in jax.tree.leaves(hessian)]
    count = int(np.sqrt(len(blocks)))
    rows = [blocks[i * count : (i + 1) * count] for i in range(count)]
    sizes = [int(np.sqrt(rows[i][i].size)) for i in range(count)]
    return np.block(
        [
            [np.reshape(rows[i][j], (sizes[i], sizes[j])) for j in range(count)]
            for i in range(count)
        ]
    )


class Call(NamedTuple):
    """One way through hotk: source text, what it computes, what must come out."""

    source: str
    run: Callable[[], np.ndarray]
    expect: Callable[[Reference], np.ndarray]
    state: str = "now"
    refusals: tuple[type[Exception], ...] = ()


def _expect_product(r: Reference) -> np.ndarray:
    return r.product


class _Bound(NamedTuple):
    """A program in one state, with a point."""

    f: Callable
    x: Any
    v: Any
    args: tuple[Any, ...]
    captured: list[Any]


def _bind(program: Program, operators, state: str) -> _Bound:
    """Build a program in a state; `mutated` is the later NumPy arrays, else `now`."""
    values = captured(program, "later" if state == "later" else "now")
    if state == "mutated":
        values = [
            new if isinstance(old, np.ndarray) else old
            for old, new in zip(values, captured(program, "later"), strict=True)
        ]
    at = point(program, "later" if state == "later" else "now")
    x, v, args = (built(part) for part in (at.x, at.v, f"({at.args})"))
    return _Bound(maker(program)(operators, *values), x, v, args, values)


def calls(program: Program, hotk, rng, extra: str) -> Iterator[Call]:
    """List the calls to compare; the later ones meet what the first ones cached.

    Args:
        program: The program.
        hotk: The library, or one with a planted flaw.
        rng: Chooses among the calls that each compile.
        extra: Which of those: `"one"`, `"all"`, or the one with this source.
    """
    f, x, v, args, values = now = _bind(program, hotk, "now")
    f2, x2, v2, args2, _ = later = _bind(program, hotk, "later")
    yield Call(
        "hotk.hvp(f, x, v, *args)",
        lambda: flat(hotk.hvp(f, x, v, *args)),
        _expect_product,
    )
    yield Call(
        "hotk.hvp(f2, x2, v2, *args2)",
        lambda: flat(hotk.hvp(f2, x2, v2, *args2)),
        _expect_product,
        "later",
    )
    yield Call(
        "hotk.hvp.prepare(f, x, v, *args)(x, v, *args)",
        lambda: flat(hotk.hvp.prepare(f, x, v, *args)(x, v, *args)),
        _expect_product,
    )
    others = [
        *_nestings(program, hotk, now),
        *_operators(program, hotk, now),
        *_inside_transformations(program, hotk, later),
    ]
    if any(isinstance(value, np.ndarray) for value in values):
        others.append(_after_mutation(program, hotk, now))
    if extra == "one":
        yield others[rng.integers(len(others))]
    else:
        yield from (call for call in others if extra in ("all", call.source))


def _nestings(program: Program, hotk, bound: _Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound
    for name in NESTINGS:
        yield Call(
            f"hotk.hvp(f, x, v, *args, mode=hotk.{name})",
            lambda mode=name: flat(hotk.hvp(f, x, v, *args, mode=getattr(hotk, mode))),
            _expect_product,
            refusals=() if name in allowed(program) else (hotk.ModeError,),
        )


def _after_mutation(program: Program, hotk, bound: _Bound) -> Call:
    f, x, v, args, values = bound
    arrays = [a for a in values if isinstance(a, np.ndarray)]
    later = [a for a in captured(program, "later") if isinstance(a, np.ndarray)]

    def mutated():
        old = [a.copy() for a in arrays]
        try:
            for a, b in zip(arrays, later, strict=True):
                a[...] = b
            return flat(hotk.hvp(f, x, v, *args))
        finally:
            for a, b in zip(arrays, old, strict=True):
                a[...] = b

    return Call(
        "# after writing the later values into the NumPy arrays of f in place\n"
        "hotk.hvp(f, x, v, *args)",
        mutated,
        _expect_product,
        "mutated",
    )


def _operators(program: Program, hotk, bound: _Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound

    def triple():
        value, gradient, product = hotk.value_gradient_and_hvp(f, x, v, *args)
        return np.concatenate([np.ravel(value), flat(gradient), flat(product)])

    def batch():
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), _arrays(v))
        return _rows(hotk.hvp(f, x, many, *args, batched=True))

    yield Call(
        "hotk.value_gradient_and_hvp(f, x, v, *args)",
        triple,
        lambda r: np.concatenate([[r.value], r.gradient, r.product]),
    )
    yield Call(
        "hotk.hessian(f, x, *args)",
        lambda: _dense(hotk.hessian(f, x, *args)),
        lambda r: r.hessian,
    )
    yield Call(
        "hotk.hessian(f, x, *args, block_size=2)",
        lambda: _dense(hotk.hessian(f, x, *args, block_size=2)),
        lambda r: r.hessian,
    )
    yield Call(
        "hotk.hessian_diagonal(f, x, *args)",
        lambda: flat(hotk.hessian_diagonal(f, x, *args)),
        lambda r: np.diagonal(r.hessian),
    )
    yield Call(
        "hotk.quadratic_form(f, x, v, *args)",
        lambda: np.asarray(hotk.quadratic_form(f, x, v, *args)),
        lambda r: r.v @ r.product,
    )
    yield Call(
        "hotk.value_and_gradient(f, x, *args)",
        lambda: np.concatenate(
            [flat(part) for part in hotk.value_and_gradient(f, x, *args)]
        ),
        lambda r: np.concatenate([[r.value], r.gradient]),
    )
    yield Call(
        "hotk.jvp(f, x, v, *args)",
        lambda: np.asarray(hotk.jvp(f, x, v, *args)),
        lambda r: r.gradient @ r.v,
        refusals=(hotk.ModeError,) if "custom_vjp" in program.kinds else (),
    )
    yield Call(
        "hotk.hvp(f, x, batch, *args, batched=True)  # batch: v and 2 v",
        batch,
        lambda r: np.stack([r.product, 2 * r.product]),
    )


def _inside_transformations(program: Program, hotk, bound: _Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound
    v = _arrays(v)
    # what needs a captured array's value raises in a jit of raw JAX as well
    refusals = (jax.errors.JAXTypeError,) if "python" in program.kinds else ()

    def mapped():
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), v)
        return _rows(jax.vmap(lambda v: hotk.hvp(f, x, v, *args))(many))

    yield Call(
        "jax.jit(lambda v: hotk.hvp(f2, x2, v, *args2))(v2)",
        lambda: flat(jax.jit(lambda v: hotk.hvp(f, x, v, *args))(v)),
        _expect_product,
        "later",
        refusals,
    )
    yield Call(
        "jax.vmap(lambda v: hotk.hvp(f2, x2, v, *args2))(batch)  # v2 and -v2",
        mapped,
        lambda r: np.stack([r.product, -r.product]),
        "later",
        refusals,
    )
    yield Call(
        "jax.jvp(lambda v: hotk.hvp(f2, x2, v, *args2), (v2,), (v2,))[1]",
        lambda: flat(jax.jvp(lambda v: hotk.hvp(f, x, v, *args), (v,), (v,))[1]),
        _expect_product,
        "later",
        refusals,
    )


def _rows(tree) -> np.ndarray:
    """Join the leaves of a batch of two, one row for each."""
    leaves = [np.asarray(leaf).reshape(2, -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves, 1)


def _arrays(tree):
    """Make Python numbers in a direction arrays, and drop what has no direction."""
    return jax.tree.map(
        lambda leaf: None if isinstance(leaf, int) else jnp.asarray(leaf), tree
    )


class _References:
    """Raw JAX on one program: a state and a nesting at a time, each at most once."""

    def __init__(self, program: Program, rng) -> None:
        self.program = program
        self.known: dict[tuple[str, str], Reference] = {}
        names = allowed(program)
        self.preferred = names[rng.integers(len(names))]

    def __call__(self, state: str, nesting: str | None = None, shift=None) -> Reference:
        nesting = nesting or self.preferred
        known = self.known.get((state, nesting))
        if known is not None and shift is None:
            return known
        f, x, v, args, _ = _bind(self.program, prelude.raw, state)
        # what needs a captured array's value cannot be jitted by JAX
        jit = "python" not in self.program.kinds
        z = flat(x) if shift is None else flat(x) + shift
        made = Reference(flat_function(f, x, args), z, flat(v), nesting, jit)
        if shift is None:
            self.known[state, nesting] = made
        return made


def check(program: Program, hotk, *, seed: int = 0, extra: str = "one") -> Verdict:
    """Compare the calls of one program; stop at the first failure."""
    rng = np.random.default_rng([seed, program.seed])
    references = _References(program, rng)
    explained, compared = [], 0
    for call in calls(program, hotk, rng, extra):
        expected = call.expect(references(call.state))
        try:
            got = call.run()
        except Exception as error:
            if isinstance(error, call.refusals):
                continue
            failure = Failure(program, call.source, expected, error)
            return Verdict(failure, compared, tuple(explained))
        compared += 1
        if agree(got, expected, tolerance(program)):
            continue
        reason = explanation(references, call, got, expected)
        if reason is None:
            failure = Failure(program, call.source, expected, got)
            return Verdict(failure, compared, tuple(explained))
        explained.append(reason)
    return Verdict(None, compared, tuple(explained))


def explanation(references: _References, call: Call, got, expected) -> str | None:
    """Say why raw JAX itself has no one answer here, or None if it has."""
    program = references.program
    rtol = tolerance(program)
    others = [
        call.expect(references(call.state, nesting)) for nesting in allowed(program)
    ]
    one_answer = all(agree(other, expected, rtol) for other in others)
    if not one_answer and any(agree(got, other, rtol) for other in others):
        return "the nestings of raw JAX disagree"
    rng = np.random.default_rng(0)
    scale = np.max(np.abs(expected), initial=1.0)
    count = references(call.state).z.size
    for size in (1e-9, 1e-7):
        for _ in range(3):
            shift = size * rng.choice([-1.0, 1.0], count)
            near = call.expect(references(call.state, shift=shift))
            if not np.max(np.abs(near - expected)) <= 1e4 * size * scale:
                return "the function is not smooth at the point"
    return None
