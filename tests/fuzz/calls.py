"""The calls of a program: direct, prepared, by other operators, in transformations."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .call import Bound, Call, arrays_of, bind, dense, expect_product, rows
from .contexts import contexts
from .fresh import on_fresh
from .loops import inside_loops
from .program import Program, captured, flat
from .reference import NESTINGS, allowed


def calls(program: Program, hotk, rng, extra: str) -> Iterator[Call]:
    """List the calls to compare; the later ones meet what the first ones cached.

    Args:
        program: The program.
        hotk: The library, or one with a planted flaw.
        rng: Chooses among the calls that each compile.
        extra: Which of those: `"one"`, `"all"`, or the one with this source.
    """
    f, x, v, args, values = now = bind(program, hotk, "now")
    f2, x2, v2, args2, _ = later = bind(program, hotk, "later")
    fresh = on_fresh(program, hotk, bind(program, hotk, "now"))
    if extra == "one":
        yield fresh[rng.integers(len(fresh))]
    else:
        yield from (c for c in fresh if extra == "all" or extra.startswith(c.source))
    yield Call(
        "hotk.hvp(f, x, v, *args)",
        lambda: flat(hotk.hvp(f, x, v, *args)),
        expect_product,
    )
    yield Call(
        "hotk.hvp(f2, x2, v2, *args2)",
        lambda: flat(hotk.hvp(f2, x2, v2, *args2)),
        expect_product,
        "later",
    )
    yield Call(
        "hotk.hvp.prepare(f, x, v, *args)(x, v, *args)",
        lambda: flat(hotk.hvp.prepare(f, x, v, *args)(x, v, *args)),
        expect_product,
    )
    both = (("now", now), ("later", later))
    others = [
        *_nestings(program, hotk, now),
        *_operators(program, hotk, now),
        *_inside_transformations(program, hotk, later),
        *inside_loops(program, hotk, later),
        *contexts(program, hotk, now, later),
    ]
    if any(isinstance(value, np.ndarray) for value in values):
        others.append(_after_mutation(program, hotk, now))
    others = [call._replace(touches=both) for call in others]
    if extra == "one":
        yield others[rng.integers(len(others))]
    else:
        yield from (c for c in others if extra == "all" or extra.startswith(c.source))


def _nestings(program: Program, hotk, bound: Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound
    for name in NESTINGS:
        yield Call(
            f"hotk.hvp(f, x, v, *args, mode=hotk.{name})",
            lambda mode=name: flat(hotk.hvp(f, x, v, *args, mode=getattr(hotk, mode))),
            expect_product,
            refusals=() if name in allowed(program) else (hotk.ModeError,),
        )


def _after_mutation(program: Program, hotk, bound: Bound) -> Call:
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
        expect_product,
        "mutated",
    )


def _operators(program: Program, hotk, bound: Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound

    def triple():
        value, gradient, product = hotk.value_gradient_and_hvp(f, x, v, *args)
        return np.concatenate([np.ravel(value), flat(gradient), flat(product)])

    def batch():
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), arrays_of(v))
        return rows(hotk.hvp(f, x, many, *args, batched=True))

    yield Call(
        "hotk.value_gradient_and_hvp(f, x, v, *args)",
        triple,
        lambda r: np.concatenate([[r.value], r.gradient, r.product]),
    )
    yield Call(
        "hotk.hessian(f, x, *args)",
        lambda: dense(hotk.hessian(f, x, *args)),
        lambda r: r.hessian,
    )
    yield Call(
        "hotk.hessian(f, x, *args, block_size=2)",
        lambda: dense(hotk.hessian(f, x, *args, block_size=2)),
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


def _inside_transformations(program: Program, hotk, bound: Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound
    v = arrays_of(v)
    # what needs a captured array's value raises in a jit of raw JAX as well
    refusals = (jax.errors.JAXTypeError,) if "python" in program.kinds else ()

    def mapped():
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), v)
        return rows(jax.vmap(lambda v: hotk.hvp(f, x, v, *args))(many))

    yield Call(
        "jax.jit(lambda v: hotk.hvp(f2, x2, v, *args2))(v2)",
        lambda: flat(jax.jit(lambda v: hotk.hvp(f, x, v, *args))(v)),
        expect_product,
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
        expect_product,
        "later",
        refusals,
    )
