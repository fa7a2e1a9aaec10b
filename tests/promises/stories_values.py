"""Stories of what a closure holds: arrays, numbers, containers."""

import array
import collections
import contextvars
import dataclasses
import enum
import threading
import types
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tests.promises.telling import X, cubic, story


# ----- Cells


@story
def a_fresh_closure_holds_another_array():
    def make(c):
        return lambda x: cubic(c, x)

    yield make(jnp.array([1.0, 2.0, 3.0]))
    yield make(jnp.array([1.0, 2.0, 4.0]))


@story
def a_fresh_closure_holds_another_float():
    def make(c):
        return lambda x: cubic(c, x)

    yield make(2.0)
    yield make(3.0)
    yield make(2.0)


@story
def the_cell_of_the_same_function_is_bound_again():
    c = jnp.full(3, 2.0)

    def f(x):
        return cubic(c, x)

    yield f
    c = jnp.full(3, 3.0)
    yield f
    c = 4.0
    yield f
    c = jnp.array(5.0)
    yield f


@story
def the_contents_of_a_cell_are_replaced_from_outside():
    c = 2.0

    def f(x):
        return cubic(c, x)

    yield f
    f.__closure__[0].cell_contents = 3.0
    yield f


@story
def a_cell_two_functions_deep_is_bound_again():
    c = 2.0

    def outer():
        def inner(x):
            return cubic(c, x)

        return inner

    def f(x):
        return outer()(x)

    yield f
    c = 3.0
    yield f


@story
def an_empty_cell_is_filled():
    def f(x):
        try:
            return cubic(c, x)
        except NameError:
            return jnp.sum(x**2)

    yield f
    c = 3.0
    yield f
    del c
    yield f


@story
def two_cells_exchange_their_contents():
    def make(a, b):
        return lambda x: jnp.sum(a * jnp.sin(b * x))

    yield make(2.0, 3.0)
    yield make(3.0, 2.0)
    yield make(jnp.array(2.0), jnp.array(3.0))
    yield make(jnp.array(3.0), jnp.array(2.0))


@story
def an_array_becomes_a_number_of_the_same_value_and_back():
    def make(c):
        return lambda x: cubic(c, x) * (2.0 if isinstance(c, float) else 3.0)

    yield make(jnp.array(2.0))
    yield make(2.0)
    yield make(jnp.array(2.0))


@story
def a_captured_function_is_another_one():
    def make(g):
        return lambda x: jnp.sum(g(x))

    yield make(jnp.sin)
    yield make(jnp.cos)
    yield make(jax.nn.softplus)
    yield make(jax.nn.gelu)
    yield make(lambda x: x**3)
    yield make(lambda x: x**4)


@story
def a_captured_class_is_another_one():
    class Two:
        scale = 2.0

    class Three:
        scale = 3.0

    def make(cls):
        return lambda x: cubic(cls.scale, x)

    yield make(Two)
    yield make(Three)


@story
def a_sentinel_is_passed_or_not():
    missing = object()

    def make(value):
        return lambda x: cubic(2.0 if value is missing else 3.0, x)

    yield make(missing)
    yield make(object())
    yield make(missing)
    yield make(None)


@story
def two_names_are_one_array_or_two():
    def make(a, b):
        return lambda x: cubic(2.0 if a is b else 3.0, x) + jnp.sum(a * b * x**2)

    a = jnp.ones(3)
    yield make(a, a)
    yield make(a, a.copy())
    yield make(a, a)


@story
def two_names_are_one_list_or_two():
    def make(a, b):
        return lambda x: cubic(2.0 if a is b else 3.0, x)

    a = [1.0]
    yield make(a, a)
    yield make(a, list(a))


@story
def one_array_is_reached_by_two_ways():
    def make(a, record):
        return lambda x: cubic(2.0 if record["a"] is a else 3.0, x)

    a = jnp.ones(3)
    yield make(a, {"a": a})
    yield make(a, {"a": jnp.ones(3)})


@story
def a_flag_decides_what_is_computed():
    def make(flag):
        def f(x):
            if flag:
                return jnp.sum(x**3)
            return jnp.sum(jnp.sin(x))

        return f

    yield make(True)
    yield make(False)
    yield make(jnp.array(True))
    yield make(jnp.array(False))
    yield make(True)


@story
def a_captured_array_is_asked_for_its_value():
    def make(c):
        def f(x):
            if c > 0:
                return cubic(c, x)
            return jnp.sum(jnp.sin(x))

        return f

    yield make(jnp.array(2.0))
    yield make(jnp.array(-2.0))
    yield make(jnp.array(3.0))
    yield make(jnp.array(2.0))


@story
def a_captured_array_is_a_number_of_rounds():
    def make(n):
        def f(x):
            for _ in range(int(n)):
                x = jnp.sin(x)
            return jnp.sum(x)

        return f

    yield make(jnp.array(1))
    yield make(jnp.array(3))
    yield make(jnp.array(1))


@story
def a_captured_array_decides_a_shape():
    def make(n):
        return lambda x: jnp.sum(jnp.ones(int(n))) * jnp.sum(x**3)

    yield make(jnp.array(2))
    yield make(jnp.array(5))


@story
def a_captured_array_decides_among_others_that_only_scale():
    def make(flag, a, b):
        return lambda x: cubic(a if flag else b, x)

    a, b = jnp.full(3, 2.0), jnp.full(3, 3.0)
    yield make(jnp.array(True), a, b)
    yield make(jnp.array(False), a, b)
    yield make(jnp.array(False), b, a)
    yield make(jnp.array(False), b, b)


@story
def a_captured_random_key_is_another_one():
    def make(key):
        return lambda x: cubic(jax.random.normal(key, (3,)), x)

    yield make(jax.random.key(0))
    yield make(jax.random.key(1))
    yield make(jax.random.PRNGKey(1))
    yield make(jax.random.PRNGKey(2))
    yield make(jax.random.key(2, impl="rbg"))


@story
def a_captured_array_has_another_shape_dtype_or_weak_type():
    def make(c):
        return lambda x: (
            jnp.sum(jnp.mean(c).astype(x.dtype) * x**3)
            * (2.0 if c.aval.weak_type else 3.0)
        )

    yield make(jnp.full(3, 2.0))
    yield make(jnp.arange(4.0))
    yield make(jnp.full(3, 2.0, jnp.float32))
    yield make(jnp.asarray(2.0))
    yield make(jnp.array(2.0, jnp.float64))


@story(holds=False)
def a_captured_array_is_deleted():
    c = jnp.full(3, 2.0)

    def f(x):
        return cubic(c, x)

    yield f
    c.delete()
    yield f
    c = jnp.full(3, 3.0)
    yield f


# ----- Containers


@story
def a_captured_list_of_numbers_is_changed():
    scales = [2.0, 3.0]

    def f(x):
        return cubic(sum(scales), x)

    yield f
    scales[0] = 5.0
    yield f
    scales.append(1.0)
    yield f
    scales.clear()
    yield f


@story
def a_captured_list_of_arrays_is_changed():
    scales = [jnp.full(3, 2.0), jnp.ones(3)]

    def f(x):
        return cubic(sum(scales), x)

    yield f
    scales[0] = jnp.full(3, 7.0)
    yield f
    scales.append(jnp.full(3, 7.0))
    yield f


@story
def a_captured_dict_is_changed():
    table = {"c": jnp.full(3, 2.0)}

    def f(x):
        return cubic(table["c"], x) + table.get("power", 0.0) * jnp.sum(x**4)

    yield f
    table["c"] = jnp.full(3, 3.0)
    yield f
    table["power"] = 2.0
    yield f
    del table["power"]
    yield f


@story
def a_dict_of_layers_is_walked_in_its_order():
    layers = {"z": jnp.sin, "a": lambda y: 2.0 * y, "m": jnp.tanh}

    def f(x):
        for layer in layers.values():
            x = layer(x)
        return jnp.sum(x)

    yield f
    layers["z"] = layers.pop("z")
    yield f
    layers["m"] = layers.pop("m")
    yield f


@story
def a_dict_of_weights_is_walked_in_its_order():
    weights = {"z": jnp.full(3, 2.0), "a": jnp.full(3, 3.0)}

    def f(x):
        for weight in weights.values():
            x = jnp.sin(weight * x)
        return jnp.sum(x)

    yield f
    weights["z"] = weights.pop("z")
    yield f


@story
def a_dict_that_is_a_constant_argument_is_walked_in_its_order():
    def f(x, weights):
        for weight in weights.values():
            x = jnp.sin(weight * x)
        return jnp.sum(x)

    yield f, X, {"z": jnp.full(3, 2.0), "a": jnp.full(3, 3.0)}
    yield f, X, {"a": jnp.full(3, 3.0), "z": jnp.full(3, 2.0)}


@story
def the_keys_of_a_dict_cannot_be_sorted():
    table = {1: jnp.full(3, 2.0), "a": jnp.full(3, 3.0), None: 1.0}

    def f(x):
        return cubic(table[1] + table["a"] * table[None], x)

    yield f
    table[None] = 2.0
    yield f
    table[1] = jnp.ones(3)
    yield f


@story
def containers_inside_containers_are_changed():
    model = {"layers": [{"scale": (jnp.full(3, 2.0), [1.0])}]}

    def f(x):
        array, (number,) = model["layers"][0]["scale"]
        return cubic(array * number, x)

    yield f
    model["layers"][0]["scale"][1][0] = 5.0
    yield f
    model["layers"][0]["scale"] = (jnp.full(3, 3.0), [1.0])
    yield f
    model["layers"].insert(0, {"scale": (jnp.ones(3), [1.0])})
    yield f


@story
def a_container_is_nested_deeply():
    nest = innermost = [2.0]
    for _ in range(500):
        nest = [nest]

    def f(x):
        inner = nest
        while isinstance(inner[0], list):
            inner = inner[0]
        return cubic(inner[0], x)

    yield f
    innermost[0] = 3.0
    yield f


@story
def a_list_contains_itself():
    loop: list[Any] = [2.0]
    loop.append(loop)

    def f(x):
        return cubic(loop[1][1][0], x)

    yield f
    loop[0] = 3.0
    yield f


@story
def a_dict_contains_the_function_that_reads_it():
    registry: dict[str, Any] = {"c": 2.0}

    def f(x):
        return cubic(registry["c"], x) * (2.0 if registry["f"] is f else 3.0)

    registry["f"] = f
    yield f
    registry["c"] = 3.0
    yield f
    registry["f"] = None
    yield f


@story
def a_captured_set_grows():
    scales = {2.0, 3.0}

    def f(x):
        return cubic(sum(scales), x)

    yield f
    scales.add(5.0)
    yield f


@story
def a_captured_named_tuple_is_replaced():
    class Scale(NamedTuple):
        value: Any
        name: str

    scale = Scale(jnp.full(3, 2.0), "a")

    def f(x):
        return cubic(scale.value, x) * len(scale.name)

    yield f
    scale = scale._replace(value=jnp.full(3, 3.0))
    yield f
    scale = scale._replace(name="abc")
    yield f


@story
def a_captured_ordered_dict_is_reordered():
    layers = collections.OrderedDict(a=jnp.full(3, 2.0), b=jnp.full(3, 3.0))

    def f(x):
        for weight in layers.values():
            x = jnp.sin(weight * x)
        return jnp.sum(x)

    yield f
    layers.move_to_end("a")
    yield f


@story
def the_factory_of_a_default_dict_is_replaced():
    table = collections.defaultdict(lambda: 2.0)

    def f(x):
        c = table["missing"]
        del table["missing"]
        return cubic(c, x)

    yield f
    table.default_factory = lambda: 3.0
    yield f


@story
def a_captured_deque_rotates():
    scales = collections.deque([2.0, 3.0, jnp.array(4.0)])

    def f(x):
        return cubic(scales[0], x)

    yield f
    scales.rotate()
    yield f
    scales.appendleft(5.0)
    yield f


@story
def a_captured_counter_counts():
    counter = collections.Counter("a")

    def f(x):
        return cubic(float(counter["a"]), x)

    yield f
    counter["a"] += 4
    yield f


@story
def a_map_in_a_captured_chain_of_maps_is_changed():
    first: dict[str, float] = {}
    chain = collections.ChainMap(first, {"c": 2.0})

    def f(x):
        return cubic(chain["c"], x)

    yield f
    first["c"] = 3.0
    yield f


@story
def the_dict_behind_a_read_only_view_is_changed():
    table = {"c": 2.0}
    view = types.MappingProxyType(table)

    def f(x):
        return cubic(view["c"], x)

    yield f
    table["c"] = 3.0
    yield f


@story
def the_views_of_a_dict_follow_it():
    table = {"c": 2.0}
    values, keys = table.values(), table.keys()

    def f(x):
        return cubic(sum(values), x) * len(keys)

    yield f
    table["c"] = 3.0
    yield f
    table["d"] = 3.0
    yield f


@story
def user_lists_and_dicts_are_changed():
    scales, table = collections.UserList([2.0]), collections.UserDict(c=2.0)

    def f(x):
        return cubic(scales[0] * table["c"], x)

    yield f
    scales[0] = 3.0
    yield f
    table["c"] = 5.0
    yield f


@story
def a_captured_namespace_is_changed():
    settings = types.SimpleNamespace(c=jnp.full(3, 2.0), power=3)

    def f(x):
        return jnp.sum(settings.c * x**settings.power)

    yield f
    settings.c = jnp.full(3, 3.0)
    yield f
    settings.power = 4
    yield f


@story
def raw_memory_is_changed():
    numbers = array.array("d", [2.0, 3.0])
    raw = bytearray(b"\x02\x03")
    view = memoryview(raw)

    def f(x):
        return cubic(numbers[0] * view[0], x)

    yield f
    numbers[0] = 5.0
    yield f
    raw[0] = 7
    yield f


@story
def a_list_of_its_own_class_behaves_otherwise():
    class Doubling(list):
        factor = 2.0

        def __getitem__(self, i):
            return self.factor * super().__getitem__(i)

    scales = Doubling([2.0, jnp.array(3.0)])

    def f(x):
        return cubic(scales[0] + scales[1], x)

    yield f
    scales.factor = 5.0
    yield f
    list.__setitem__(scales, 0, 7.0)
    yield f


@story
def a_dict_of_its_own_class_answers_for_missing_keys():
    class Lenient(dict):
        default = 2.0

        def __missing__(self, key):
            return self.default

    table = Lenient(a=1.0)

    def f(x):
        return cubic(table["c"], x)

    yield f
    table.default = 3.0
    yield f
    table["c"] = 5.0
    yield f


@story
def a_tuple_of_its_own_class_has_an_attribute():
    class Scales(tuple):
        pass

    scales = Scales((2.0, jnp.array(3.0)))
    scales.factor = 2.0

    def f(x):
        return cubic(scales.factor * scales[0] * scales[1], x)

    yield f
    scales.factor = 5.0
    yield f


@story
def a_number_and_a_string_of_their_own_classes_have_attributes():
    class Length(float):
        unit = 1.0

    class Name(str):
        weight = 1.0

    length, name = Length(2.0), Name("a")

    def f(x):
        return cubic(length * length.unit * name.weight, x)

    yield f
    length.unit = 3.0
    yield f
    name.weight = 5.0
    yield f


@story
def an_integer_of_its_own_class_multiplies_otherwise():
    class Odd(int):
        def __mul__(self, other):
            return 3.0 * other

    def make(n):
        return lambda x: cubic(n * 2.0, x)

    yield make(5)
    yield make(Odd(5))
    yield make(5)


@story
def a_captured_dataclass_is_changed():
    @dataclasses.dataclass
    class Settings:
        scale: Any
        power: int = 3

    settings = Settings(jnp.full(3, 2.0))

    def f(x):
        return jnp.sum(settings.scale * x**settings.power)

    yield f
    settings.scale = jnp.full(3, 3.0)
    yield f
    settings.power = 4
    yield f
    settings = Settings(2.0)
    yield f


@story
def a_frozen_dataclass_holds_something_that_is_not():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        scales: Any

    settings = Settings([2.0])

    def f(x):
        return cubic(settings.scales[0], x)

    yield f
    settings.scales[0] = 3.0
    yield f
    object.__setattr__(settings, "scales", [5.0])
    yield f


@story
def a_frozen_dataclass_does_not_compare_a_field():
    @dataclasses.dataclass(frozen=True)
    class Settings:
        name: str
        scale: float = dataclasses.field(compare=False)

    def make(settings):
        return lambda x: cubic(settings.scale, x)

    yield make(Settings("a", 2.0))
    yield make(Settings("a", 3.0))


@story
def a_dataclass_with_slots_is_changed():
    @dataclasses.dataclass(slots=True)
    class Settings:
        scale: float

    settings = Settings(2.0)

    def f(x):
        return cubic(settings.scale, x)

    yield f
    settings.scale = 3.0
    yield f


@story
def another_member_of_an_enum_is_captured():
    class Kind(enum.Enum):
        TWO = 2.0
        THREE = 3.0

    def make(kind):
        return lambda x: cubic(kind.value, x) * (2.0 if kind is Kind.TWO else 1.0)

    yield make(Kind.TWO)
    yield make(Kind.THREE)
    yield make(Kind.TWO)


@story
def the_attribute_of_an_enum_member_is_changed():
    class Kind(enum.Enum):
        A = "a"

    Kind.A.weight = 2.0

    def f(x):
        return cubic(Kind.A.weight, x)

    def g(x, kind=Kind.A):
        return cubic(kind.weight, x)

    yield f
    yield g
    Kind.A.weight = 3.0
    yield f
    yield g


# ----- References, contexts, threads


@story
def the_target_of_a_weak_reference_changes_and_dies():
    class Box:
        scale = 2.0

    box = Box()
    reference = weakref.ref(box)

    def f(x):
        return cubic(reference().scale if reference() is not None else 7.0, x)

    yield f
    box.scale = 3.0
    yield f
    del box
    yield f


@story
def the_target_of_a_weak_proxy_changes():
    class Box:
        scale = 2.0

    box = Box()
    proxy = weakref.proxy(box)

    def f(x):
        return cubic(proxy.scale, x)

    yield f
    box.scale = 3.0
    yield f


@story
def a_weak_dict_loses_a_value():
    class Box:
        scale = 2.0

    box = Box()
    table = weakref.WeakValueDictionary(box=box)

    def f(x):
        return cubic(table["box"].scale if "box" in table else 3.0, x)

    yield f
    box.scale = 5.0
    yield f
    del box
    yield f


@story
def a_context_variable_is_set():
    scale = contextvars.ContextVar("scale", default=2.0)

    def f(x):
        return cubic(scale.get(), x)

    yield f
    scale.set(3.0)
    yield f


@story
def the_bound_getter_of_a_context_variable_is_captured():
    scale = contextvars.ContextVar("scale", default=2.0)
    get = scale.get

    def f(x):
        return cubic(get(), x)

    yield f
    scale.set(3.0)
    yield f


@story
def what_a_thread_has_for_itself_is_changed():
    local = threading.local()
    local.scale = 2.0

    def f(x):
        return cubic(local.scale, x)

    yield f
    local.scale = 3.0
    yield f


# ----- The point


@story
def the_point_is_a_list_that_is_changed():
    x = [jnp.array([1.0, 2.0]), 3.0]

    def f(x):
        return jnp.sum(x[0] ** 3) * x[1] ** 2

    yield f, x
    x[1] = 4.0
    yield f, x
    x[0] = jnp.array([5.0, 6.0])
    yield f, x


@story
def a_label_at_the_point_is_changed():
    x = {"w": jnp.array([1.0, 2.0]), "kind": "cubic", "n": 3}

    def f(x):
        return x["n"] * jnp.sum(x["w"] ** (3 if x["kind"] == "cubic" else 4))

    yield f, x
    x["kind"] = "quartic"
    yield f, x
    x["n"] = 5
    yield f, x
    x["n"] = True
    yield f, x


@story
def a_function_at_the_point_reads_something_else_that_changes():
    scale = 2.0
    x = {"w": jnp.array([1.0, 2.0]), "act": lambda y: scale * y**3}

    def f(x):
        return jnp.sum(x["act"](x["w"]))

    yield f, x
    scale = 3.0
    yield f, x
    x["act"] = jnp.sin
    yield f, x


@story
def a_constant_argument_is_changed():
    table = {"c": jnp.full(3, 2.0), "power": 3, "kind": "a", "g": jnp.sin}

    def f(x, table):
        y = table["c"] * table["g"](x) ** table["power"]
        return jnp.sum(y) * (1.0 if table["kind"] == "a" else 2.0)

    yield f, X, table
    table["c"] = jnp.full(3, 3.0)
    yield f, X, table
    table["kind"] = "b"
    yield f, X, table
    table["g"] = jnp.cos
    yield f, X, table
    table["power"] = 2
    yield f, X, table


@story
def a_function_among_the_constants_reads_something_that_changes():
    scale = 2.0

    def f(x, g, numbers):
        return jnp.sum(g(x)) * numbers[0]

    numbers = [jnp.array(1.0)]
    yield f, X, lambda y: scale * y**3, numbers
    scale = 3.0
    yield f, X, lambda y: scale * y**3, numbers
    numbers[0] = jnp.array(5.0)
    yield f, X, lambda y: scale * y**3, numbers
    yield f, X, lambda y: scale * y**4, numbers
