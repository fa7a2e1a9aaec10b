"""Stories of JAX's settings: what they were at the last call must not matter."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.promises.telling import X, cubic, story


settings = story(holds=False)


@settings
def sixty_four_bits_are_switched():
    x = np.array([0.5, -1.5, 2.0])
    a = np.array([1.0, 2.0, 3.0])

    def f(x):
        return cubic(2.0, x) * jnp.pi

    def g(x):
        return cubic(jnp.asarray(a, x.dtype), x)

    def h(x, c):
        return cubic(c, x)

    for on in (True, False, True):
        with jax.enable_x64(on):
            yield f, x
            yield g, x
            yield h, x, 1.1


@settings
def a_function_asks_for_a_setting():
    def by_x64(x):
        return cubic(2.0 if jax.config.jax_enable_x64 else 3.0, x)

    def by_precision(x):
        return cubic(2.0 if jax.config.jax_default_matmul_precision else 3.0, x)

    def by_promotion(x):
        strict = jax.config.jax_numpy_dtype_promotion == "strict"
        return cubic(2.0 if strict else 3.0, x)

    def by_default_dtype(x):
        return cubic(2.0 if jnp.zeros(()).dtype == jnp.float64 else 3.0, x)

    x = np.ones(3, np.float32)
    functions = (by_x64, by_precision, by_promotion, by_default_dtype)
    for f in functions:
        yield f, x
        with jax.enable_x64(False):
            yield f, x
        with jax.default_matmul_precision("highest"):
            yield f, x
        with jax.numpy_dtype_promotion("standard"):
            yield f, x
        yield f, x


@settings
def a_function_is_told_from_one_that_agreed_with_it_under_other_settings():
    """At the first setting both have one program, at the second they differ."""
    x = np.ones(3, np.float32)

    def asking(x):
        return jnp.sum(x**3) * (2.0 if jax.config.jax_enable_x64 else 3.0)

    def plain(x):
        return jnp.sum(x**3) * 2.0

    for f in (asking, plain):
        yield f, x
        with jax.enable_x64(False):
            yield f, x


@settings
def promotion_becomes_strict():
    i = jnp.arange(3)

    def f(x):
        return cubic(i, x)

    with jax.numpy_dtype_promotion("standard"):
        yield f
    with jax.numpy_dtype_promotion("strict"):
        yield f
    with jax.numpy_dtype_promotion("standard"):
        yield f


@settings
def ranks_may_or_may_not_be_promoted():
    matrix = jnp.ones((3, 3))

    def f(x):
        return jnp.sum(jnp.sin(matrix * x))

    with jax.numpy_rank_promotion("allow"):
        yield f
    with jax.numpy_rank_promotion("raise"):
        yield f


@settings
def nan_raises_or_not():
    def f(x):
        return jnp.sum(jnp.sqrt(x))

    yield f
    with jax.debug_nans(True):
        yield f
    yield f


@settings
def nothing_is_jitted_for_a_while():
    scale = 2.0

    def f(x):
        return cubic(scale, x)

    yield f
    with jax.disable_jit():
        yield f
        scale = 3.0
        yield f
    yield f


@settings
def the_default_device_is_named():
    def f(x):
        return cubic(jnp.ones(3), x)

    yield f, X
    with jax.default_device(jax.devices()[0]):
        yield f, 2.0 * X


@settings
def the_random_generator_is_another_one():
    def f(x):
        return cubic(jax.random.normal(jax.random.PRNGKey(0), (3,)), x)

    yield f
    with jax.default_prng_impl("rbg"):
        yield f


@settings
def the_threefry_is_partitionable_or_not():
    key = jax.random.key(0)

    def f(x):
        return cubic(jax.random.normal(key, (3,)), x)

    yield f
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        yield f


@settings
def the_matrix_products_are_more_precise():
    def f(x):
        return jnp.sum(jnp.sin(jnp.outer(x, x) @ x))

    with jax.default_matmul_precision("highest"):
        yield f, X
    yield f, 2.0 * X


@settings
def the_caches_of_jax_are_cleared():
    scale = 2.0

    def f(x):
        return cubic(scale, x)

    yield f
    jax.clear_caches()
    yield f
    scale = 3.0
    jax.clear_caches()
    yield f
