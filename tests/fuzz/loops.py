"""Calls inside of loops of JAX, and inside of `shard_map`."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .call import Bound, Call, arrays_of, expect_product, rows
from .program import Program, flat


def inside_loops(program: Program, hotk, bound: Bound) -> Iterator[Call]:
    f, x, v, args, _ = bound
    v = arrays_of(v)
    refusals = (jax.errors.JAXTypeError,) if "python" in program.kinds else ()
    add = lambda a, b: jax.tree.map(jnp.add, a, b)
    zero = jax.tree.map(jnp.zeros_like, v)

    def product(v):
        return arrays_of(hotk.hvp(f, x, v, *args))

    def in_while():
        more = lambda c: c[0] < 2
        step = lambda c: (c[0] + 1, add(c[1], product(v)))
        return flat(jax.lax.while_loop(more, step, (0, zero))[1])

    def in_scan():
        many = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), v)
        step = lambda c, v: (c, product(v))
        return rows(jax.lax.scan(step, None, many)[1])

    def sharded():
        mesh = jax.make_mesh((1,), ("i",))
        whole = jax.sharding.PartitionSpec()
        mapped = jax.shard_map(product, mesh=mesh, in_specs=whole, out_specs=whole)
        return flat(mapped(v))

    made = [
        (
            "lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + "
            "hotk.hvp(f2, x2, v2, *args2)), (0, 0 * v2))[1]",
            in_while,
            lambda r: 2 * r.product,
        ),
        (
            "lax.scan(lambda c, v: (c, hotk.hvp(f2, x2, v, *args2)), None, batch)[1]"
            "  # v2 and -v2",
            in_scan,
            lambda r: np.stack([r.product, -r.product]),
        ),
        (
            "jax.shard_map(lambda v: hotk.hvp(f2, x2, v, *args2), mesh=jax.make_mesh("
            "(1,), ('i',)), in_specs=P(), out_specs=P())(v2)",
            sharded,
            expect_product,
        ),
    ]
    for source, run, expect in made:
        yield Call(source, run, expect, "later", refusals)
