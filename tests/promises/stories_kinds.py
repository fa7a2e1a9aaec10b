"""Stories of what is captured: values and containers of Python, things of libraries."""

import argparse
import array
import collections
import datetime
import decimal
import functools
import operator
import pathlib
import re
import string
import types
import uuid
import weakref

import jax
import jax.numpy as jnp
import numpy as np
from jax import checkpoint, grad, jit, value_and_grad, vmap
from jax.lax import cond, scan

from tests.promises.telling import cubic, module_on_disk, story


# ----- Functions of JAX by their names


@story
def a_function_uses_names_imported_from_jax():
    def make(c):
        def f(x):
            rows = vmap(lambda a, b: a * b**3)(c, x)
            total, _ = scan(lambda s, row: (s + row, None), 0.0, rows)
            slope = grad(lambda y: checkpoint(lambda z: cubic(c, z))(y))(x)
            value, _ = value_and_grad(lambda y: cubic(c, y))(x)
            return total + jnp.sum(slope) + value

        return f

    for scale in (1.0, 2.0, 3.0):
        yield make(jnp.full(3, scale))


@story
def a_function_that_jax_returned_holds_an_array():
    def make(c):
        batched = vmap(lambda row: cubic(c, row))
        return lambda x: batched(x[None])[0]

    for scale in (1.0, 2.0, 3.0):
        yield make(jnp.full(3, scale))


@story
def a_function_that_jax_returned_reads_a_changing_number():
    numbers = {"n": 1.0}
    batched = vmap(lambda row: cubic(numbers["n"], row))

    def f(x):
        return batched(x[None])[0]

    yield f
    numbers["n"] = 2.0
    yield f
    numbers["n"] = 3.0
    yield f


@story
def a_partial_of_scan_over_a_changing_body():
    def make(c, n):
        run = functools.partial(scan, lambda s, row: (s + n * row[0] * row[1] ** 3, 0))
        return lambda x: run(0.0, (c, x))[0]

    yield make(jnp.ones(3), 1.0)
    yield make(jnp.full(3, 2.0), 1.0)
    yield make(jnp.full(3, 2.0), 4.0)


@story
def a_function_that_is_jitted_where_it_is_made():
    def make(c, n):
        @functools.partial(jit, static_argnums=1)
        def inner(x, power):
            return n * cubic(c, x) ** power

        return lambda x: inner(x, 1)

    yield make(jnp.ones(3), 1.0)
    yield make(jnp.full(3, 2.0), 1.0)
    yield make(jnp.full(3, 2.0), 5.0)


@story
def two_fresh_jitted_functions_have_other_options():
    def body(x, n):
        return cubic(2.0 if isinstance(n, int) else 3.0, x)

    def make(inner):
        return lambda x: inner(x, 1)

    yield make(jit(body, static_argnums=1))
    yield make(jit(body))


@story
def a_branch_by_name_over_a_changing_array():
    def make(c):
        return lambda x: cond(
            c[0] > 1, lambda y: cubic(c, y), lambda y: -cubic(c, y), x
        )

    for scale in (1.0, 2.0, 3.0):
        yield make(jnp.full(3, scale))


# ----- Containers of the standard library


def of_a_container(holder, read, changes):
    def f(x):
        return cubic(read(holder), x)

    yield f
    for change in changes:
        change(holder)
        yield f


@story
def a_counter_counts_on():
    yield from of_a_container(
        collections.Counter("aab"), lambda h: h["a"], [lambda h: h.update("a")] * 2
    )


@story
def a_deque_forgets_its_first():
    yield from of_a_container(
        collections.deque([1.0, 2.0], 2),
        lambda h: h[0],
        [lambda h: h.append(5.0), lambda h: h.append(7.0)],
    )


@story
def a_deque_may_hold_less():
    numbers = collections.deque([1.0, 2.0])
    short = collections.deque([1.0, 2.0], 2)

    def make(held):
        def f(x):
            held.append(9.0)
            first = held[0]
            held.pop()
            if len(held) == 1:
                held.appendleft(1.0)
            return cubic(first, x)

        return f

    yield make(numbers)
    yield make(short)


@story
def what_a_defaultdict_makes_is_changed():
    def change(h):
        h.default_factory = lambda: 7.0

    holder = collections.defaultdict(lambda: 2.0, a=1.0)
    yield from of_a_container(
        holder,
        lambda h: h["a"] * h.default_factory(),
        [change, lambda h: h.update(a=3.0)],
    )


@story(effects=True)
def a_defaultdict_is_filled_by_being_read():
    holder = collections.defaultdict(lambda: 2.0)

    def f(x):
        holder["new"] += 1.0
        return cubic(holder["new"], x)

    yield f
    yield f


@story
def the_first_of_two_mappings_hides_the_second():
    chain = collections.ChainMap({}, {"a": 1.0})
    yield from of_a_container(
        chain,
        lambda h: h["a"],
        [lambda h: h.update(a=2.0), lambda h: h.maps.reverse()],
    )


@story
def what_a_read_only_view_shows_is_changed():
    shown = {"a": 1.0}
    yield from of_a_container(
        types.MappingProxyType(shown),
        lambda h: h["a"],
        [lambda h: shown.update(a=2.0), lambda h: shown.update(a=3)],
    )


@story
def the_array_in_a_read_only_view_is_changed():
    shown = {"a": jnp.ones(3)}
    yield from of_a_container(
        types.MappingProxyType(shown),
        lambda h: h["a"],
        [lambda h: shown.update(a=jnp.full(3, 2.0))] * 2,
    )


@story
def the_wrapped_dict_and_the_wrapped_list_are_changed():
    yield from of_a_container(
        (collections.UserDict(a=1.0), collections.UserList([1.0])),
        lambda h: h[0]["a"] * h[1][0],
        [lambda h: h[0].update(a=2.0), lambda h: h[1].insert(0, jnp.full(3, 4.0))],
    )


@story
def names_in_a_namespace_are_changed():
    yield from of_a_container(
        (types.SimpleNamespace(a=1.0), argparse.Namespace(b=jnp.ones(3))),
        lambda h: h[0].a * h[1].b,
        [lambda h: vars(h[0]).update(a=2.0), lambda h: setattr(h[1], "b", 3.0)],
    )


@story(effects=True)
def a_namespace_is_written_by_the_function():
    counter = types.SimpleNamespace(n=0)

    def f(x):
        counter.n += 1
        return cubic(float(counter.n), x)

    yield f
    yield f


@story
def the_bytes_of_a_buffer_are_changed():
    yield from of_a_container(
        (bytearray(b"a"), array.array("d", [1.0])),
        lambda h: h[0][0] * h[1][0],
        [lambda h: h[0].reverse() or h[0].extend(b"b"), lambda h: h[1].insert(0, 2.0)],
    )
    numbers = array.array("d", [1.0])
    yield from of_a_container(
        numbers, lambda h: h[0], [lambda h: h.__setitem__(0, 5.0)]
    )


@story
def the_labels_in_an_array_of_strings_are_changed():
    yield from of_a_container(
        np.array(["one", "two"]),
        lambda h: float(len(h[0])),
        [lambda h: h.__setitem__(0, "z"), lambda h: h.__setitem__(0, "zz")],
    )


@story
def a_set_of_pairs_is_changed():
    yield from of_a_container(
        {("a", 1.0)}, lambda h: max(h)[1], [lambda h: h.add(("b", 2.0))]
    )


@story
def what_a_weak_reference_refers_to_is_changed():
    class Held:
        pass

    held = Held()
    held.a = jnp.ones(3)
    reference = weakref.ref(held)

    def f(x):
        return cubic(0.0 if reference() is None else reference().a, x)

    yield f
    held.a = jnp.full(3, 2.0)
    yield f
    held.a = 3.0
    yield f
    del held
    yield f


@story
def the_array_in_the_key_of_a_dict_is_changed():
    class Name:
        def __init__(self, a):
            self.a = a

    name = Name(jnp.ones(3))
    names = {name: 2.0}

    def f(x):
        return sum(cubic(key.a * n, x) for key, n in names.items())

    yield f
    name.a = jnp.full(3, 2.0)
    yield f
    name.a = jnp.full(3, 3.0)
    yield f


# ----- Values that cannot change


def of_values(read, *values):
    def make(value):
        return lambda x: cubic(read(value), x)

    yield from map(make, values)


@story
def patterns_differ_in_text_or_flags():
    yield from of_values(
        lambda v: 2.0 if v.match("A") else 1.0,
        *(re.compile("a"), re.compile("a", re.IGNORECASE), re.compile("[A]")),
    )


@story
def paths_differ_in_kind_or_in_the_case_of_a_letter():
    yield from of_values(
        lambda v: float(ord(str(v)[0])) + len(type(v).__qualname__),
        *(pathlib.PureWindowsPath("a"), pathlib.PureWindowsPath("A")),
        *(pathlib.PurePosixPath("a"), pathlib.Path("a")),
    )


@story
def moments_are_equal_in_another_zone():
    east = datetime.timezone(datetime.timedelta(hours=1))
    yield from of_values(
        lambda v: float(v.hour),
        datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC),
        datetime.datetime(2020, 1, 1, 13, tzinfo=east),
        datetime.time(12, tzinfo=datetime.UTC),
        datetime.time(13, tzinfo=east),
    )


@story
def a_moment_is_the_second_of_its_hour():
    yield from of_values(
        lambda v: 1.0 + v.fold,
        datetime.datetime(2020, 1, 1),
        datetime.datetime(2020, 1, 1, fold=1),
    )


@story
def spans_zones_and_identifiers_differ():
    yield from of_values(
        lambda v: v.total_seconds(), datetime.timedelta(1), datetime.timedelta(2)
    )
    yield from of_values(lambda v: float(v.int), uuid.UUID(int=1), uuid.UUID(int=2))
    yield from of_values(
        lambda v: float(len(v.template)), string.Template("a"), string.Template("ab")
    )


@story
def equal_decimals_have_other_digits():
    yield from of_values(
        lambda v: float(len(str(v))), decimal.Decimal("1.0"), decimal.Decimal("1.00")
    )


@story
def getters_differ_in_what_they_get():
    yield from of_values(
        lambda v: v([1.0, 2.0]), operator.itemgetter(0), operator.itemgetter(1)
    )
    yield from of_values(
        lambda v: v(3.0 + 4.0j),
        operator.attrgetter("real"),
        operator.attrgetter("imag"),
    )
    yield from of_values(
        lambda v: float(v("abb")),
        operator.methodcaller("count", "a"),
        operator.methodcaller("count", "b"),
    )


@story
def a_structure_of_a_tree_differs_in_a_key():
    yield from of_values(
        lambda v: float(sum(v.unflatten([1, 1]))),
        jax.tree.structure({1: 0, 2: 0}),
        jax.tree.structure({True: 0, 4: 0}),
    )


@story
def a_sentinel_is_another_one():
    nothing = object()

    def make(given):
        def f(x, default=given):
            return cubic(1.0 if default is nothing else 2.0, x)

        return f

    yield make(nothing)
    yield make(object())
    yield make(nothing)


# ----- Objects of classes of installed libraries


LIBRARY = """
class Config:
    def __init__(self, **names):
        self.__dict__.update(names)

class Slotted:
    __slots__ = ("__scale", "rest")
    def __init__(self, scale):
        self.__scale = scale
    def scale(self):
        return self.__scale
    def change(self, scale):
        self.__scale = scale

class Marker:
    pass

DEFAULT, OTHER = Marker(), Marker()

def pick(marker):
    return 1.0 if marker is DEFAULT else 2.0 if marker is OTHER else 3.0

class Names(dict):
    pass
"""


@story
def an_object_of_a_library_is_changed():
    with module_on_disk("kept_things", LIBRARY, folder="site-packages") as library:
        config = library.Config(a=1.0, inner=library.Config(b=[1.0]))

        def f(x):
            return cubic(config.a * config.inner.b[0], x)

        yield f
        config.a = 2.0
        yield f
        config.inner.b[0] = 3.0
        yield f
        config.inner.b[0] = jnp.full(3, 4.0)
        yield f


@story(effects=True)
def an_object_of_a_library_is_written_by_the_function():
    with module_on_disk("written_things", LIBRARY, folder="site-packages") as library:
        config = library.Config(n=0)

        def f(x):
            config.n += 1
            return cubic(float(config.n), x)

        yield f
        yield f


@story
def a_private_slot_of_a_library_is_changed():
    with module_on_disk("slotted_things", LIBRARY, folder="site-packages") as library:
        held = library.Slotted(1.0)

        def f(x):
            return cubic(held.scale(), x)

        yield f
        held.change(2.0)
        yield f
        held.change(jnp.full(3, 3.0))
        yield f


@story
def a_constant_of_a_library_is_another_one():
    with module_on_disk("constant_things", LIBRARY, folder="site-packages") as library:
        for marker in (library.DEFAULT, library.OTHER, library.Marker()):
            yield (lambda m: lambda x: cubic(library.pick(m), x))(marker)


@story
def a_dict_of_the_class_of_a_library_is_changed():
    with module_on_disk("dict_things", LIBRARY, folder="site-packages") as library:
        names = library.Names(a=1.0)
        names.note = 1.0
        yield from of_a_container(
            names,
            lambda h: h["a"] * h.note,
            [lambda h: h.update(a=2.0), lambda h: setattr(h, "note", jnp.ones(3) * 3)],
        )
