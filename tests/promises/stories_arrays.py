"""Stories of NumPy: buffers that change in place, and what a tracer cannot imitate."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from tests.promises.telling import X, cubic, notebook, story


# ----- Buffers


@story
def a_captured_buffer_is_overwritten():
    a = np.full(3, 2.0)

    def f(x):
        return cubic(a, x)

    yield f
    a[:] = 3.0
    yield f
    a[1] = 5.0
    yield f
    a *= 2.0
    yield f


@story
def a_global_buffer_is_overwritten():
    cell = notebook("a = np.full(3, 2.0)\ndef f(x): return jnp.sum(a * x**3)")
    yield cell["f"]
    cell["a"][:] = 3.0
    yield cell["f"]


@story
def a_buffer_inside_something_is_overwritten():
    a = np.full(3, 2.0)
    box, table = types.SimpleNamespace(a=a), {"a": [a]}

    def in_a_default(x, a=a):
        return cubic(a, x)

    functions = (
        in_a_default,
        lambda x: cubic(box.a, x),
        lambda x: cubic(table["a"][0], x),
        jax.tree_util.Partial(cubic, a),
    )
    yield from functions
    a[:] = 3.0
    yield from functions


@story
def a_buffer_that_is_a_constant_argument_is_overwritten():
    a = np.full(3, 2.0)
    yield cubic_of_argument, X, a
    a[:] = 3.0
    yield cubic_of_argument, X, a


@story
def the_buffer_of_the_point_is_overwritten():
    x = np.array([1.0, 2.0, 3.0])

    def f(x):
        return jnp.sum(x**3)

    yield f, x
    x[:] = [3.0, 2.0, 1.0]
    yield f, x


def cubic_of_argument(x, c):
    return cubic(c, x)


@story
def the_base_of_a_view_is_overwritten():
    base = np.arange(1.0, 7.0)
    frozen = base[::2]
    frozen.flags.writeable = False
    spread = np.broadcast_to(base[:1], (3,))
    windows = np.lib.stride_tricks.sliding_window_view(base, 3)

    functions = (
        lambda x: cubic(frozen, x),
        lambda x: cubic(spread, x),
        lambda x: jnp.sum(jnp.sin(windows @ x)),
        lambda x: cubic(base.reshape(2, 3).T[:, 0], x),
    )
    yield from functions
    base[:] = base[::-1].copy()
    yield from functions


@story
def the_memory_behind_an_array_is_overwritten():
    memory = bytearray(np.full(3, 2.0).tobytes())
    a = np.frombuffer(memory)

    def f(x):
        return cubic(a, x)

    yield f
    memory[:] = np.full(3, 3.0).tobytes()
    yield f


@story
def an_array_is_given_another_shape_in_place():
    a = np.arange(6.0)

    def f(x):
        return jnp.sum(x**3) * len(a)

    yield f
    a.resize((2, 3), refcheck=False)
    yield f


@story
def a_read_only_array_is_replaced():
    def make(value):
        a = np.full(3, value)
        a.flags.writeable = False
        return lambda x: cubic(a, x)

    yield make(2.0)
    yield make(3.0)


@story
def arrays_have_unusual_layouts():
    dense = np.arange(1.0, 10.0).reshape(3, 3)

    def make(a):
        return lambda x: jnp.sum(jnp.sin(a @ x))

    yield make(dense)
    yield make(dense.T)
    yield make(dense[::-1, ::-1])
    yield make(np.asfortranarray(dense))
    yield make(np.broadcast_to(dense[0], (3, 3)))
    yield make(dense.astype(np.float32).astype(np.float64) + 1.0)


@story
def an_array_without_axes_is_overwritten():
    a = np.array(2.0)

    def f(x):
        return cubic(a, x)

    def g(x):
        return cubic(float(a), x)

    yield f
    yield g
    a[...] = 3.0
    yield f
    yield g


@story
def a_mask_and_an_index_are_overwritten():
    mask, index = np.array([True, False, True]), np.array([0, 2])

    def f(x):
        return jnp.sum(x[mask] ** 3)

    def g(x):
        return jnp.sum(x[index] ** 3)

    yield f
    yield g
    mask[:], index[:] = [False, True, True], [1, 1]
    yield f
    yield g


# ----- What NumPy does and a tracer does not


@story
def an_array_is_asked_for_its_numbers():
    a = np.array([2.0, 3.0, 4.0])

    def by_list(x):
        return cubic(a.tolist()[0], x)

    def by_float(x):
        return cubic(float(a[0]), x)

    def by_item(x):
        return cubic(a[0].item(), x)

    def by_ufunc(x):
        return cubic(np.sin(a), x)

    def by_numpy_reduction(x):
        return cubic(np.linalg.norm(a), x)

    def by_branch(x):
        return cubic(2.0 if a[0] > 2.5 else 3.0, x)

    def by_membership(x):
        return cubic(2.0 if 2.0 in a else 3.0, x)

    def by_bytes(x):
        return cubic(float(sum(a.tobytes())), x)

    def by_search(x):
        return cubic(1.0 + float(a.searchsorted(2.5)), x)

    def by_iteration(x):
        return cubic(sum(float(entry) for entry in a), x)

    def by_text(x):
        return cubic(float(len(f"{a[0]:.3g}")) + float(str(a[0])), x)

    def by_enumeration(x):
        return sum(jnp.sum(x**k) for k, entry in enumerate(a, 2) if entry > 2.5)

    functions = (
        by_list,
        by_float,
        by_item,
        by_ufunc,
        by_numpy_reduction,
        by_branch,
        by_membership,
        by_bytes,
        by_search,
        by_iteration,
        by_text,
        by_enumeration,
    )
    for f in functions:
        a[:] = [2.0, 3.0, 4.0]
        yield f
        a[:] = [3.0, 1.0, 0.5]
        yield f


@story
def an_array_is_asked_what_it_is():
    def by_instance(a):
        return lambda x: cubic(2.0 if isinstance(a, np.ndarray) else 3.0, x)

    def by_jax_instance(a):
        return lambda x: cubic(2.0 if isinstance(a, jax.Array) else 3.0, x)

    def by_type(a):
        return lambda x: cubic(2.0 if type(a) is np.ndarray else 3.0, x)

    def by_dtype(a):
        return lambda x: cubic(2.0 if a.dtype == np.float32 else 3.0, x)

    def by_attribute(a):
        return lambda x: cubic(2.0 if hasattr(a, "flags") else 3.0, x)

    def by_match(a):
        def f(x):
            match a:
                case np.ndarray():
                    return jnp.sum(x**3)
                case _:
                    return jnp.sum(x**4)

        return f

    def by_flags(a):
        return lambda x: cubic(2.0 if getattr(a, "flags", a) is a else 3.0, x)

    for make in (
        by_instance,
        by_jax_instance,
        by_type,
        by_dtype,
        by_attribute,
        by_match,
        by_flags,
    ):
        yield make(np.ones(3))
        yield make(jnp.ones(3))
        yield make(np.ones(3, np.float32))
        yield make(jnp.ones(3, jnp.float32))


@story
def a_constant_argument_is_asked_what_it_is():
    def by_instance(x, a):
        return cubic(2.0 if isinstance(a, np.ndarray) else 3.0, x)

    def by_ufunc(x, a):
        return cubic(jnp.asarray(np.sin(a)), x)

    def by_branch(x, a):
        return cubic(2.0 if a[0] > 1.5 else 3.0, x)

    for f in (by_instance, by_ufunc, by_branch):
        yield f, X, np.full(3, 2.0)
        yield f, X, jnp.full(3, 2.0)
        yield f, X, np.full(3, 1.0)


@story
def numpy_counts_in_other_dtypes_than_jax():
    """Two NumPy arrays of 32 bits give 64 in NumPy, 32 (or an error) in JAX."""

    def make(i, a):
        return lambda x: cubic(i + a, x)

    with jax.numpy_dtype_promotion("standard"):
        i, a = np.arange(3, dtype=np.int32), np.full(3, 0.1, np.float32)
        yield make(i, a)
        yield make(i + np.int32(1), a)


@story
def numpy_promotes_what_jax_refuses_to():
    def make(i, a):
        return lambda x: cubic(i * a, x)

    yield make(np.arange(3), np.full(3, 2.0))
    yield make(np.arange(3), np.full(3, 3.0))
    yield make(np.arange(3, dtype=np.int8), np.full(3, 3.0))


@story
def numpy_has_bounds():
    def make(a):
        def f(x):
            try:
                return cubic(a[7], x)
            except IndexError:
                return jnp.sum(jnp.sin(x))

        return f

    yield make(np.ones(3))
    yield make(np.ones(8))
    yield make(np.full(8, 3.0))


@story
def numpy_broadcasts_what_jax_refuses_to():
    def make(a, b):
        return lambda x: jnp.sum(jnp.sin((a + b) @ x))

    yield make(np.ones((3, 3)), np.arange(3.0))
    yield make(np.ones((3, 3)), np.arange(1.0, 4.0))


@story
def numpy_divides_integers_and_jax_does_too():
    def make(n):
        return lambda x: cubic((n // 2).astype(float) + (n % 3) ** 2.0, x)

    yield make(np.array([-3, 5, 7]))
    yield make(np.array([4, -5, 8]))


@story
def arrays_of_dtypes_that_jax_has_not():
    def make(number):
        return lambda x: cubic(number(), x)

    for value in (2.0, 3.0):
        wide = np.full(3, value, np.longdouble)
        objects = np.array([value, "a", None], object)
        words = np.array(["a" * int(value), "b"])
        record = np.array([(1, value)], [("n", int), ("c", float)])
        dates = np.array(["2000-01-01", f"200{int(value)}-01-01"], "datetime64[D]")
        swapped = np.full(3, value, ">f8")
        half = np.full(3, value, np.float16)
        yield make(lambda a=wide: a.astype(float))
        yield make(lambda a=objects: a[0])
        yield make(lambda a=words: float(len(a[0])))
        yield make(lambda a=record: float(a["c"][0]))
        yield make(lambda a=dates: float((a[1] - a[0]).astype(int)))
        yield make(lambda a=swapped: a.astype(float))
        yield make(lambda a=half: a.astype(float))


@story
def arrays_of_those_dtypes_are_overwritten():
    objects = np.array([[2.0], "a", None], object)
    record = np.array([(1, 2.0)], [("n", int), ("c", float)])

    def f(x):
        return cubic(objects[0][0], x)

    def g(x):
        return cubic(float(record["c"][0]), x)

    yield from (f, g)
    objects[0][0], record["c"] = 3.0, 3.0
    yield from (f, g)


@story
def a_masked_array_changes_its_mask():
    a = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])

    def f(x):
        return cubic(a.filled(0.0), x)

    def g(x):
        return cubic(float(a.sum()), x)

    yield from (f, g)
    a.mask[0] = True
    yield from (f, g)


@story
def an_array_of_its_own_class_behaves_otherwise():
    class Scaled(np.ndarray):
        factor = 2.0

        def total(self):
            return self.factor * float(self.sum())

    a = np.ones(3).view(Scaled)

    def f(x):
        return cubic(a.total(), x)

    yield f
    a.factor = 3.0
    yield f
    a[:] = 5.0
    yield f


@story
def a_numpy_scalar_has_another_type():
    def make(c):
        return lambda x: cubic(float(c), x) * c.dtype.itemsize

    yield make(np.float64(2.0))
    yield make(np.float32(2.0))
    yield make(np.float16(2.0))
    yield make(np.int64(2))
    yield make(np.int8(2))


@story
def a_dtype_decides():
    def make(dtype):
        return lambda x: jnp.sum(x.astype(dtype).astype(float) ** 3) * 1.1

    yield make(jnp.float64)
    yield make(jnp.float32)
    yield make("float64")
    yield make(np.dtype("float16"))


@story
def numpy_views_the_bits():
    def make(a):
        return lambda x: cubic(float(a.view(np.uint8).sum()), x)

    yield make(np.full(3, 2.0))
    yield make(np.full(3, 3.0))


@story
def memory_overlaps_or_not():
    def make(a, b):
        return lambda x: cubic(2.0 if np.shares_memory(a, b) else 3.0, x)

    a = np.ones(4)
    yield make(a, a[1:])
    yield make(a, a[1:].copy())
