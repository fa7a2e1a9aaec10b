"""Stories of arrays that only a class, a static field or a shared tuple reaches."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.promises.telling import X, cubic, notebook, run_cell, story


@story
def a_method_reads_a_global_array():
    cell = notebook("""
        w = jnp.full(3, 2.0)
        class Model:
            def loss(self, x):
                return jnp.sum(w * x**3)
        loss = Model().loss
    """)
    yield cell["loss"]
    run_cell("w = jnp.full(3, 5.0)", cell)
    yield cell["loss"]
    run_cell("w = 2.0", cell)
    yield cell["loss"]


@story
def a_helper_method_reads_a_global_array():
    cell = notebook("""
        w = jnp.full(3, 2.0)
        class Model:
            def scale(self):
                return w
            def loss(self, x):
                return jnp.sum(self.scale() * x**3)
        loss = Model().loss
    """)
    yield cell["loss"]
    run_cell("w = jnp.full(3, 5.0)", cell)
    yield cell["loss"]


@story
def a_method_and_a_helper_read_the_same_global_array():
    cell = notebook("""
        w = jnp.full(3, 2.0)
        class Model:
            def scale(self):
                return self.loss(jnp.ones(3))
            def loss(self, x, deep=False):
                if not deep:
                    return jnp.sum(w * x**3)
                return jnp.sum(w * x**3) + self.loss(x) * self.scale()
        model = Model()
        f = lambda x: model.loss(x, True)
    """)
    yield cell["f"]
    run_cell("w = jnp.full(3, 5.0)", cell)
    yield cell["f"]


@story
def a_function_is_captured_and_an_attribute_of_a_class():
    w = jnp.full(3, 2.0)

    def scaled(x):
        return jnp.sum(w * x**3)

    class Model:
        inner = staticmethod(scaled)

    def f(x):
        return scaled(x) * Model.inner(2 * x)

    yield f
    w = jnp.full(3, 5.0)
    yield f


@story
def a_module_of_equinox_reads_a_global_array():
    cell = notebook(
        """
        w = jnp.full(3, 2.0)
        class Net(eqx.Module):
            scale: jax.Array
            def __call__(self, x):
                return jnp.sum(w * self.scale * x**3)
        net = Net(jnp.ones(3))
        """,
        eqx=eqx,
    )
    yield cell["net"]
    run_cell("w = jnp.full(3, 5.0)", cell)
    yield cell["net"]
    run_cell("net = Net(jnp.full(3, 2.0))", cell)
    yield cell["net"]


@story
def an_array_is_an_attribute_of_a_class():
    class Model:
        scale = jnp.full(3, 2.0)
        table = (jnp.ones(3), {"w": jnp.full(3, 2.0)})

        def loss(self, x):
            return cubic(self.scale * self.table[1]["w"], x)

    model = Model()
    yield model.loss
    Model.scale = jnp.full(3, 3.0)
    yield model.loss
    Model.table[1]["w"] = jnp.full(3, 7.0)
    yield model.loss
    model.scale = jnp.full(3, 4.0)
    yield model.loss


@story
def an_array_of_a_class_decides():
    class Model:
        scale = jnp.array(2.0)

        def loss(self, x):
            if self.scale > 1:
                return cubic(self.scale, x)
            return jnp.sum(x**2)

    model = Model()
    yield model.loss
    Model.scale = jnp.array(3.0)
    yield model.loss
    Model.scale = jnp.array(0.5)
    yield model.loss


@story
def an_array_of_a_class_is_captured_as_well():
    class Model:
        scale = jnp.full(3, 2.0)

    scale = Model.scale

    def f(x):
        return cubic(scale, x) + cubic(Model.scale, 2 * x)

    yield f
    scale = jnp.full(3, 3.0)
    yield f
    Model.scale = scale
    yield f
    scale = Model.scale = jnp.full(3, 4.0)
    yield f


@story
def a_function_of_a_class_is_asked_for_by_identity():
    def first(x):
        return jnp.sum(x**3)

    def copy_of(f):
        made = type(f)(f.__code__, f.__globals__, f.__name__)
        made.__qualname__ = f.__qualname__
        return made

    class Model:
        inner = staticmethod(first)

    captured = first

    def f(x):
        return first(x) * (2.0 if captured is Model.inner else 5.0)

    yield f
    captured = copy_of(first)
    yield f


@story
def a_numpy_array_of_a_class_is_mutated_and_back():
    class Model:
        scale = np.full(3, 2.0)
        counts = np.array([1, 2, 3])

        def loss(self, x):
            return jnp.sum(self.scale * self.counts * x**3)

    model = Model()
    yield model.loss
    Model.scale[:] = 3.0
    yield model.loss
    Model.scale[:] = 2.0
    yield model.loss
    Model.counts[1] = 7
    yield model.loss
    Model.scale = np.full(3, 5.0, np.float32)
    yield model.loss
    Model.scale[1] = 6.0
    yield model.loss


@story
def a_method_reads_a_global_numpy_array_in_loops_and_branches():
    cell = notebook("""
        A = np.array([1.0, 2.0, 3.0])
        b = np.array(2.0)
        class Model:
            def inner(self, x):
                y = jax.checkpoint(lambda y: jnp.sin(A * y))(x)
                y, _ = jax.lax.scan(lambda c, _: (c * A, None), y, None, length=2)
                return jax.lax.cond(True, lambda z: z * A * b, lambda z: z, y)
            def loss(self, x):
                return jnp.sum(self.inner(x))
        loss = Model().loss
    """)
    yield cell["loss"]
    run_cell("A[0] = 5.0", cell)
    yield cell["loss"]
    run_cell("b[()] = 3.0", cell)
    yield cell["loss"]
    run_cell("A[0] = 1.0", cell)
    yield cell["loss"]
    run_cell("A = A[::-1]", cell)
    yield cell["loss"]


@story
def the_function_of_a_static_field_reads_an_array():
    class Net(eqx.Module):
        scale: jax.Array
        act: Callable = eqx.field(static=True)

        def __call__(self, x):
            return cubic(self.scale, self.act(x))

    factor = jnp.full(3, 2.0)
    net = Net(jnp.ones(3), lambda x: factor * x)
    yield net
    factor = jnp.full(3, 3.0)
    yield net
    factor = np.full(3, 4.0)
    yield net
    factor[:] = 5.0
    yield net


@story
def a_partial_of_the_tree_holds_a_function_with_an_array():
    w = jnp.full(3, 2.0)
    f = jax.tree_util.Partial(functools.partial(lambda x: jnp.sum(w * x**3)))
    yield f
    w = jnp.full(3, 5.0)
    yield f


@story
def a_partial_of_the_tree_is_an_argument():
    rate = 2.0
    inner = jax.tree_util.Partial(functools.partial(lambda x: jnp.sum(rate * x**3)))

    def f(x, g):
        return g(x)

    yield f, X, inner
    rate = 5.0
    yield f, X, inner


@story
def an_array_of_a_class_was_donated():
    class Model:
        scale = jnp.full(3, 2.0)

        def loss(self, x):
            return cubic(self.scale, x)

    yield Model().loss
    Model.scale.delete()
    Model.scale = jnp.full(3, 3.0)
    yield Model().loss


@story
def a_method_reads_a_number_of_a_large_numpy_array():
    A = np.ones((1024, 1024))

    class Model:
        def loss(self, x):
            return cubic(A[0, 0], x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    A[0, 0] = 2.0
    yield f


@story(changes=False)
def keys_of_random_numbers_belong_to_a_class():
    class Model:
        key = jax.random.key(0)

        def loss(self, x):
            return cubic(jax.random.normal(self.key, (3,)), x)

    yield Model().loss
    yield Model().loss


@story
def what_a_class_reaches_is_traced():
    # A tracer of the outside as attribute of a class: nothing may be kept of it.
    class Model:
        scale = X

        def loss(self, x):
            return cubic(self.scale, x)

    def f(x, scale):
        Model.scale = scale
        try:
            return Model().loss(x)
        finally:
            Model.scale = X

    yield f, X, 2 * X
    yield f, X, 3 * X
