"""Calls under settings, under named axes, and interleaved with prepared ones."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .call import Bound, Call, arrays_of, expect_product, rows
from .program import Program, flat


def contexts(program: Program, hotk, now: Bound, later: Bound) -> Iterator[Call]:
    """List calls for which another context has to be told from the first one."""
    yield from _under_settings(hotk, now)
    yield from _interleaved(program, hotk, now, later)
    yield from _under_axes(program, hotk, now)


def _under_settings(hotk, bound: Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound
    prepared = lambda: flat(hotk.hvp.prepare(f, x, v, *args)(x, v, *args))
    direct = lambda: flat(hotk.hvp(f, x, v, *args))
    # Each computes the same numbers here, by another program.
    settings = {
        'jax.default_matmul_precision("highest")': lambda: jax.default_matmul_precision(
            "highest"
        ),
        "jax.debug_nans(False)": lambda: jax.debug_nans(False),
        'jax.numpy_dtype_promotion("standard")': lambda: jax.numpy_dtype_promotion(
            "standard"
        ),
        "jax.threefry_partitionable(False)": lambda: jax.threefry_partitionable(False),
    }
    ways = {
        "hotk.hvp(f, x, v, *args)": direct,
        "hotk.hvp.prepare(f, x, v, *args)(x, v, *args)": prepared,
    }
    for text, setting in settings.items():
        for source, way in ways.items():

            def run(setting=setting, way=way):
                way()
                with setting():
                    inside = way()
                return np.stack([inside, way()])

            yield Call(
                f"with {text}:\n    {source}  # then outside again",
                run,
                lambda r: np.stack([r.product, r.product]),
            )


def _interleaved(program: Program, hotk, now: Bound, later: Bound) -> Iterator[Call]:
    refusals = (jax.errors.JAXTypeError,) if "python" in program.kinds else ()
    f, x, v, args, _ = now
    f2, x2, v2, args2, _ = later

    def bound():
        return flat(hotk.hvp.prepare(f, x, v, *args).bind(f2)(x2, v2, *args2))

    def interleaved():
        prepared = hotk.hvp.prepare(f, x, v, *args)
        one = flat(prepared(x, v, *args))
        hotk.hvp(f2, x2, v2, *args2)
        jax.eval_shape(lambda v: arrays_of(hotk.hvp(f2, x2, v, *args2)), arrays_of(v2))
        two = flat(hotk.hvp(f, x, v, *args))
        return np.stack([one, two, flat(prepared(x, v, *args))])

    def prepared_inside():
        made = []

        @jax.jit
        def outer(v):
            made.append(hotk.hvp.prepare(f2, x2, arrays_of(v2), *args2))
            return arrays_of(made[0](x2, v, *args2))

        return flat(outer(arrays_of(v2)))

    yield Call(
        "p = hotk.hvp.prepare(f, x, v, *args)\n"
        "p(x, v, *args)  # then `hotk.hvp` of f2, also under jit, of f, and p again",
        interleaved,
        lambda r: np.stack([r.product] * 3),
        refusals=refusals,
    )
    yield Call(
        "hotk.hvp.prepare(f, x, v, *args).bind(f2)(x2, v2, *args2)",
        bound,
        expect_product,
        "later",
        (hotk.PreparationError,),
    )
    yield Call(
        "jax.jit(lambda v: hotk.hvp.prepare(f2, x2, v2, *args2)(x2, v, *args2))(v2)",
        prepared_inside,
        expect_product,
        "later",
        refusals,
    )


def _under_axes(program: Program, hotk, bound: Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound
    v = arrays_of(v)
    refusals = (jax.errors.JAXTypeError,) if "python" in program.kinds else ()

    def g(x, *args):
        return f(x, *args) * jax.lax.psum(1.0, "i")

    def mapped(size, call):
        many = jax.tree.map(lambda leaf: jnp.stack([leaf] * size), v)
        found = jax.vmap(lambda v: arrays_of(call(v)), axis_name="i")(many)
        return rows(jax.tree.map(lambda leaf: leaf[:2], found))[0] / size

    def direct():
        call = lambda v: hotk.hvp(g, x, v, *args)
        return np.stack([mapped(2, call), mapped(3, call)])

    def prepared():
        call = lambda v: hotk.hvp.prepare(g, x, v, *args)(x, v, *args)
        return np.stack([mapped(2, call), mapped(3, call)])

    for name, run in (("", direct), (".prepare", prepared)):
        yield Call(
            "g = lambda x, *args: f(x, *args) * lax.psum(1.0, 'i')\n"
            f"jax.vmap(lambda v: hotk.hvp{name}(g, x, v, *args), axis_name='i')(batch)"
            "  # of 2, then of 3",
            run,
            lambda r: np.stack([r.product, r.product]),
            refusals=refusals,
        )
