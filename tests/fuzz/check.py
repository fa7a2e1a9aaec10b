"""hotk against raw JAX on one program; a disagreement is a failure or is explained."""

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


class Reference(NamedTuple):
    """Value, gradient and Hessian of raw JAX, with the point as one vector."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


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


def reference(f: Callable, z: np.ndarray, nesting: str, jit: bool) -> Reference:
    """Differentiate a function of a vector with raw JAX, dense."""
    gradient = jax.grad if nesting in REVERSE_FIRST else jax.jacfwd

    def every(z):
        return f(z), gradient(f)(z), _HESSIANS[nesting](f)(z)

    return Reference(*map(np.asarray, (jax.jit(every) if jit else every)(z)))


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
    expect: Callable[[Reference, np.ndarray], np.ndarray]
    state: str = "now"
    may_refuse: bool = False


def _product(r: Reference, v: np.ndarray) -> np.ndarray:
    return r.hessian @ v


def calls(program: Program, hotk, rng) -> Iterator[Call]:
    """List the calls to compare; the later ones meet what the first ones cached."""
    make = maker(program)
    now, later = (captured(program, state) for state in ("now", "later"))
    f, f2 = make(hotk, *now), make(hotk, *later)
    (x, v, args), (x2, v2, args2) = (
        [built(part) for part in (p.x, p.v, f"({p.args})")]
        for p in (point(program, "now"), point(program, "later"))
    )

    def product(call, at):
        return lambda: flat(call(*at))

    yield Call(
        "hotk.hvp(f, x, v, *args)",
        product(hotk.hvp, (f, x, v, *args)),
        _product,
    )
    yield Call(
        "hotk.hvp(f2, x2, v2, *args2)",
        product(hotk.hvp, (f2, x2, v2, *args2)),
        _product,
        "later",
    )
    prepared = "hotk.hvp.prepare(f, x, v, *args)"
    yield Call(
        f"{prepared}(x, v, *args)",
        lambda: flat(hotk.hvp.prepare(f, x, v, *args)(x, v, *args)),
        _product,
    )
    nesting = str(rng.choice(NESTINGS))
    yield Call(
        f"hotk.hvp(f, x, v, *args, mode=hotk.{nesting})",
        lambda: flat(hotk.hvp(f, x, v, *args, mode=getattr(hotk, nesting))),
        _product,
        may_refuse=nesting not in allowed(program),
    )
    yield _one_of_the_rest(hotk, f, x, v, args, rng)
    yield _inside_a_transformation(hotk, f2, x2, v2, args2, rng)
    arrays = [a for a in now if isinstance(a, np.ndarray)]
    if arrays:
        new = [a for a in later if isinstance(a, np.ndarray)]

        def mutated():
            old = [a.copy() for a in arrays]
            try:
                for a, b in zip(arrays, new, strict=True):
                    a[...] = b
                return flat(hotk.hvp(f, x, v, *args))
            finally:
                for a, b in zip(arrays, old, strict=True):
                    a[...] = b

        yield Call(
            "# after writing the later values into the NumPy arrays of f in place\n"
            "hotk.hvp(f, x, v, *args)",
            mutated,
            _product,
            "mutated",
        )


def _one_of_the_rest(hotk, f, x, v, args, rng) -> Call:
    def triple():
        value, gradient, product = hotk.value_gradient_and_hvp(f, x, v, *args)
        return np.concatenate([np.ravel(value), flat(gradient), flat(product)])

    def batch():
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), _arrays(v))
        out = hotk.hvp(f, x, many, *args, batched=True)
        leaves = [np.asarray(leaf).reshape(2, -1) for leaf in jax.tree.leaves(out)]
        return np.concatenate(leaves, 1)

    choices = [
        Call(
            "hotk.value_gradient_and_hvp(f, x, v, *args)",
            triple,
            lambda r, v: np.concatenate([[r.value], r.gradient, r.hessian @ v]),
        ),
        Call(
            "hotk.hessian(f, x, *args)",
            lambda: _dense(hotk.hessian(f, x, *args)),
            lambda r, v: r.hessian,
        ),
        Call(
            "hotk.hessian(f, x, *args, block_size=2)",
            lambda: _dense(hotk.hessian(f, x, *args, block_size=2)),
            lambda r, v: r.hessian,
        ),
        Call(
            "hotk.hessian_diagonal(f, x, *args)",
            lambda: flat(hotk.hessian_diagonal(f, x, *args)),
            lambda r, v: np.diagonal(r.hessian),
        ),
        Call(
            "hotk.quadratic_form(f, x, v, *args)",
            lambda: np.asarray(hotk.quadratic_form(f, x, v, *args)),
            lambda r, v: v @ r.hessian @ v,
        ),
        Call(
            "hotk.value_and_gradient(f, x, *args)",
            lambda: np.concatenate(
                [flat(part) for part in hotk.value_and_gradient(f, x, *args)]
            ),
            lambda r, v: np.concatenate([[r.value], r.gradient]),
        ),
        Call(
            "hotk.jvp(f, x, v, *args)",
            lambda: np.asarray(hotk.jvp(f, x, v, *args)),
            lambda r, v: r.gradient @ v,
        ),
        Call(
            "hotk.hvp(f, x, batch, *args, batched=True)  # batch: v and 2 v",
            batch,
            lambda r, v: np.stack([r.hessian @ v, 2 * r.hessian @ v]),
        ),
    ]
    return choices[rng.integers(len(choices))]


def _inside_a_transformation(hotk, f, x, v, args, rng) -> Call:
    v = _arrays(v)

    def jitted():
        return flat(jax.jit(lambda v: hotk.hvp(f, x, v, *args))(v))

    def mapped():
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), v)
        out = jax.vmap(lambda v: hotk.hvp(f, x, v, *args))(many)
        leaves = [np.asarray(leaf).reshape(2, -1) for leaf in jax.tree.leaves(out)]
        return np.concatenate(leaves, 1)

    def pushed():
        return flat(jax.jvp(lambda v: hotk.hvp(f, x, v, *args), (v,), (v,))[1])

    choices = [
        Call("jax.jit(lambda v: hotk.hvp(f2, x2, v, *args2))(v2)", jitted, _product),
        Call(
            "jax.vmap(lambda v: hotk.hvp(f2, x2, v, *args2))(batch)"
            "  # batch: v2 and -v2",
            mapped,
            lambda r, v: np.stack([r.hessian @ v, -r.hessian @ v]),
        ),
        Call(
            "jax.jvp(lambda v: hotk.hvp(f2, x2, v, *args2), (v2,), (v2,))[1]",
            pushed,
            _product,
        ),
    ]
    return choices[rng.integers(len(choices))]._replace(state="later")


def _arrays(tree):
    """Make Python numbers in a direction arrays, and drop what has no direction."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if not isinstance(leaf, int) else None, tree
    )


class _References:
    """Raw JAX on one program, one state and nesting at a time, each at most once."""

    def __init__(self, program: Program, rng):
        self.program, self.make, self.known = program, maker(program), {}
        names = allowed(program)
        self.preferred = names[rng.integers(len(names))]

    def state(self, state: str):
        values = captured(self.program, "now" if state == "mutated" else state)
        if state == "mutated":
            later = captured(self.program, "later")
            values = [
                b if isinstance(a, np.ndarray) else a
                for a, b in zip(values, later, strict=True)
            ]
        at = point(self.program, "later" if state == "later" else "now")
        x, v, args = (built(part) for part in (at.x, at.v, f"({at.args})"))
        return self.make(prelude.raw, *values), x, v, args

    def __call__(self, state: str, nesting: str | None = None, shift=None):
        nesting = nesting or self.preferred
        if shift is not None:
            return self._computed(state, nesting, shift)
        if (state, nesting) not in self.known:
            self.known[state, nesting] = self._computed(state, nesting, 0.0)
        return self.known[state, nesting]

    def _computed(self, state, nesting, shift):
        f, x, _, args = self.state(state)
        # what needs a captured array's value cannot be jitted by JAX
        jit = "python" not in self.program.kinds
        return reference(flat_function(f, x, args), flat(x) + shift, nesting, jit)


def check(program: Program, hotk, seed: int = 0) -> Verdict:
    """Compare every call of one program; stop at the first failure."""
    rng = np.random.default_rng([seed, program.seed])
    references = _References(program, rng)
    explained, compared = [], 0
    for call in calls(program, hotk, rng):
        v = flat(references.state(call.state)[2])
        expected = call.expect(references(call.state), v)
        try:
            got = call.run()
        except Exception as error:
            if call.may_refuse and isinstance(error, hotk.ModeError):
                continue
            failure = Failure(program, call.source, expected, error)
            return Verdict(failure, compared, tuple(explained))
        compared += 1
        if agree(got, expected, tolerance(program)):
            continue
        reason = explanation(references, call, v, got, expected)
        if reason is None:
            failure = Failure(program, call.source, expected, got)
            return Verdict(failure, compared, tuple(explained))
        explained.append(reason)
    return Verdict(None, compared, tuple(explained))


def explanation(references, call: Call, v, got, expected) -> str | None:
    """Say why raw JAX itself has no one answer here, or None if it has."""
    program = references.program
    others = [
        call.expect(references(call.state, nesting), v) for nesting in allowed(program)
    ]
    rtol = tolerance(program)
    one_answer = all(agree(other, expected, rtol) for other in others)
    if not one_answer and any(agree(got, other, rtol) for other in others):
        return "the nestings of raw JAX disagree"
    rng = np.random.default_rng(0)
    scale = np.max(np.abs(expected), initial=1.0)
    for size in (1e-9, 1e-7):
        for _ in range(3):
            shift = size * rng.choice([-1.0, 1.0], v.size)
            near = call.expect(references(call.state, shift=shift), v)
            if not np.max(np.abs(near - expected)) <= 1e4 * size * scale:
                return "the function is not smooth at the point"
    return None
