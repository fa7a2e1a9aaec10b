"""What classes, their fields and their makers hide: found by fooling the guard."""

import dataclasses
import enum
import functools
import gc
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.promises.telling import X, cubic, notebook, story


@story
def a_jitted_function_becomes_none():
    cell = notebook(
        """
        act = jax.jit(lambda t: 2.0 * t)
        def f(x):
            return jnp.sum(x**3 if act is None else act(x**3))
        """
    )
    yield cell["f"]
    cell["act"] = None
    gc.collect()
    yield cell["f"]


@story
def a_function_becomes_a_bound_method():
    def f(w, c=None):
        return jnp.sum(w**3) if c is None else cubic(w, c)

    yield f
    yield types.MethodType(f, jnp.array([3.0, 2.0, 5.0]))


class Row(tuple):
    """A tuple that a user registers, with what it likes."""


jax.tree_util.register_pytree_node(
    Row, lambda row: (tuple(row), None), lambda _, children: Row(children)
)


@story
def a_registered_tuple_grows():
    a = jnp.arange(1.0, 4.0)
    box = types.SimpleNamespace(row=Row((a,)))
    cell = notebook("def f(x): return sum(jnp.sum(w * x**3) for w in row)", row=box.row)
    yield cell["f"]
    cell["row"] = Row((a, a))
    yield cell["f"]


@story
def the_init_of_a_dataclass_is_replaced():
    @dataclasses.dataclass
    class Config:
        rate: float = 2.0

    def f(x):
        return cubic(Config().rate, x)

    yield f
    Config.__init__ = lambda self: setattr(self, "rate", 5.0)
    yield f


@story
def a_default_factory_reads_a_global():
    cell = notebook(
        """
        rate = 2.0
        @dataclasses.dataclass
        class Config:
            rate: float = dataclasses.field(default_factory=lambda: rate)
        def f(x):
            return Config().rate * jnp.sum(x**3)
        """,
        dataclasses=dataclasses,
    )
    yield cell["f"]
    cell["rate"] = 5.0
    yield cell["f"]


@story
def an_attribute_is_named_by_an_enumeration():
    class Name(enum.StrEnum):
        rate = "rate"

    class Bag:
        pass

    bag = Bag()
    bag.__dict__.update({Name.rate: 2.0})

    def f(x):
        return cubic(bag.rate, x)

    yield f
    bag.__dict__.update({Name.rate: 5.0})
    yield f


@story
def the_metadata_of_a_field_grow():
    metadata = {}

    @dataclasses.dataclass
    class Config:
        rate: float = dataclasses.field(default=1.0, metadata=metadata)

    def f(x):
        found = dataclasses.fields(Config)[0].metadata.get("factor", 1.0)
        return cubic(found * Config().rate, x)

    yield f
    metadata["factor"] = 5.0
    yield f


class Layers(NamedTuple):
    by_name: dict


@story
def a_dict_inside_of_an_argument_has_another_order():
    a, b = jnp.ones(3), 2 * jnp.ones(3)

    def f(x, layers):
        for w in layers.by_name.values():
            x = w * x**2 + w
        return jnp.sum(x)

    yield f, X, Layers({"z": a, "a": b})
    yield f, X, Layers({"a": b, "z": a})


@story
def random_numbers_are_made_otherwise():
    def make(on):
        def f(x):
            with jax.threefry_partitionable(on):
                noise = jax.random.normal(jax.random.key(0), (3,), jnp.float64)
                return cubic(noise, x)

        return f

    yield make(True)
    yield make(False)


@story
def a_wrapper_of_a_method_is_captured():
    box = [2.0]

    def inner(x):
        return cubic(box[0], x)

    yield inner.__call__
    box[0] = 5.0
    yield inner.__call__


@story
def a_getter_of_a_tuple_holds_a_list():
    values = [2.0]
    get = (values,).__getitem__

    def f(x):
        return cubic(get(0)[0], x)

    yield f
    values[0] = 5.0
    yield f


@story
def a_ufunc_is_made_of_python():
    box = [2.0]
    times = np.frompyfunc(lambda a: a * box[0], 1, 1)

    def f(x):
        return cubic(float(times(1.0)), x)

    yield f
    box[0] = 5.0
    yield f


@story
def a_class_is_made_by_dataclasses():
    made = dataclasses.make_dataclass("made", [])
    made.rate = 2.0

    def f(x):
        return cubic(made.rate, x)

    yield f
    made.rate = 5.0
    yield f


class Noisy(eqx.Module):
    generator: Any = eqx.field(static=True)

    def __call__(self, x):
        return cubic(self.generator.standard_normal(), x)


@story(holds=False)  # it draws when it is prepared, and again for the comparison
def a_generator_is_a_static_field():
    noisy = Noisy(np.random.default_rng(0))
    yield noisy
    yield noisy


@story
def a_partial_of_a_custom_rule_is_an_argument():
    box = [2.0]

    @jax.custom_jvp
    def scale(x):
        return box[0] * x

    scale.defjvp(lambda p, t: (box[0] * p[0], box[0] * t[0]))
    held = jax.tree_util.Partial(scale)

    def f(x, h):
        return jnp.sum(h(x**3))

    yield f, X, held
    box[0] = 5.0
    yield f, X, held


@story
def an_ordinary_dataclass_is_mutated():
    @dataclasses.dataclass
    class Config:
        rate: float = 2.0
        weights: Any = dataclasses.field(default_factory=lambda: jnp.ones(3))

    config = Config()
    held = functools.partial(lambda c, x: cubic(c.rate * c.weights, x), config)
    yield held
    config.rate = 5.0
    yield held
    config.weights = jnp.arange(3.0)
    yield held


@story(holds=False)  # a prepared operator is loud about another setting
def keys_are_made_by_another_algorithm():
    make = jax.random.key

    def f(x):
        return cubic(jax.random.normal(make(0), (3,), jnp.float64), x)

    before = jax.config.jax_default_prng_impl
    yield f
    try:
        jax.config.update("jax_default_prng_impl", "rbg")
        yield f
    finally:
        jax.config.update("jax_default_prng_impl", before)


@story
def a_flag_without_a_name_has_another_value():
    class Flags(enum.IntFlag):
        ONE = 1

    for flag in (Flags(8), Flags(16)):
        yield functools.partial(lambda flag, x: cubic(float(int(flag)), x), flag)


@story
def a_set_is_iterated_over_in_another_order():
    def f(numbers, x):
        for k in numbers:
            x = 2.0 * x + k * x**2
        return jnp.sum(x)

    first, second = {0, 8}, set()
    second.add(8)
    second.add(0)
    for numbers in (first, second):
        yield functools.partial(f, numbers)


class Scaled(functools.partial):
    """A partial of a user, with a call of its own."""

    def __call__(self, x):
        return self.scale * super().__call__(x)


@story
def a_partial_of_a_class_of_the_user_has_a_scale():
    f = Scaled(cubic, 2.0)
    f.scale = 1.0
    yield f
    f.scale = 5.0
    yield f


@story
def an_attribute_of_a_partial_is_read():
    settings = functools.partial(cubic)
    settings.rate = 2.0

    def f(x):
        return settings(settings.rate, x)

    yield f
    settings.rate = 5.0
    yield f
    settings.rate = jnp.array([1.0, 2.0, 3.0])
    yield f


class Counted(property):
    """A property with a state."""

    rate = 2.0

    def __get__(self, instance, owner=None):
        return self.rate


class Late(staticmethod):
    """A static method that is looked up by itself."""

    rate = 2.0

    def __get__(self, instance, owner=None):
        return lambda x: self.rate * x


def _reader_of(item):
    class Model:
        rate = item

    model = Model()

    def f(x):
        rate = model.rate
        return jnp.sum((rate(x) if callable(rate) else rate * x) ** 3)

    return f


@story
def a_property_of_a_class_of_the_user_has_a_state():
    item = Counted(lambda self: 3.0)
    f = _reader_of(item)
    yield f
    item.rate = 5.0
    yield f
    Counted.rate = 7.0
    yield f
    del item.rate
    yield f
    Counted.rate = 2.0


@story
def a_static_method_of_a_class_of_the_user_has_a_state():
    item = Late(abs)
    f = _reader_of(item)
    yield f
    item.rate = 5.0
    yield f


@story
def a_hidden_attribute_of_an_enumeration_changes():
    class Kind(enum.Enum):
        FIRST = 1

        @property
        def _rate(self):
            return self._scale

    Kind.FIRST._scale = 2.0

    def f(x):
        return cubic(Kind.FIRST._rate, x)

    yield f
    Kind.FIRST._scale = 5.0
    yield f
    Kind._rate = property(lambda self: 7.0)
    yield f


@story
def a_default_of_a_named_tuple_is_written_in_place():
    class Config(NamedTuple):
        rate: Any = np.array([1.0, 2.0, 3.0])
        table: Any = [2.0]  # noqa: RUF012, shared as careless users share it

    default = Config._field_defaults

    def f(x):
        return cubic(Config().rate * Config().table[0], x)

    yield f
    default["rate"][:] = [3.0, 1.0, 4.0]
    yield f
    default["table"][0] = 5.0
    yield f


@story
def a_registered_class_forgets_a_field():
    @dataclasses.dataclass
    class Config:
        rate: Any
        scale: Any = 2.0

    jax.tree_util.register_dataclass(Config, ["rate"], [], drop_fields=["scale"])
    config = Config(jnp.ones(3))

    def f(x):
        return cubic(config.rate * config.scale, x)

    yield f
    config.scale = 5.0
    yield f


@story
def a_registered_class_has_one_attribute_more():
    @dataclasses.dataclass
    class Config:
        rate: Any

    jax.tree_util.register_dataclass(Config, ["rate"], [])
    config = Config(jnp.ones(3))

    def f(x):
        return cubic(config.rate * getattr(config, "scale", 2.0), x)

    yield f
    config.scale = 5.0
    yield f
    config.scale = 7.0
    yield f
