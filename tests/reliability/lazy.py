"""Functions that keep what they compute, in all the ways in which people write them.

Each of `LAZY` makes a fresh function of the same value, `plain`: it fills some cache
when it is called first. What is kept does not depend on the point.
"""

import dataclasses
import functools
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

import hotk


def grid():
    return jnp.linspace(0.5, 2.0, 3)


def plain(x):
    return jnp.sum(x**3 * jnp.linspace(0.5, 2.0, 3))


@functools.lru_cache
def remembered(count):
    return jnp.linspace(0.5, 2.0, count)


MEMO = {}
LATE = None


def memo_of_a_module():
    remembered.cache_clear()
    return lambda x: jnp.sum(x**3 * remembered(3))


def dict_of_a_module():
    MEMO.clear()

    def f(x):
        if "grid" not in MEMO:
            MEMO["grid"] = grid()
        return jnp.sum(x**3 * MEMO["grid"])

    return f


def late_global():
    global LATE
    LATE = None

    def f(x):
        global LATE
        if LATE is None:
            LATE = grid()
        return jnp.sum(x**3 * LATE)

    return f


def memo_of_a_closure():
    kept = functools.cache(grid)
    return lambda x: jnp.sum(x**3 * kept())


def list_of_a_closure():
    kept = []

    def f(x):
        if not kept:
            kept.append(grid())
        return jnp.sum(x**3 * kept[0])

    return f


def nonlocal_variable():
    kept = None

    def f(x):
        nonlocal kept
        kept = grid() if kept is None else kept
        return jnp.sum(x**3 * kept)

    return f


def dict_as_default():
    def f(x, kept={}):  # noqa: B006
        return jnp.sum(x**3 * kept.setdefault("grid", grid()))

    return f


def attribute_of_the_function():
    def f(x):
        if not hasattr(f, "grid"):
            f.grid = grid()
        return jnp.sum(x**3 * f.grid)

    return f


class Lazy:
    def __init__(self):
        self.grid = None

    def __call__(self, x):
        if self.grid is None:
            self.grid = grid()
        return jnp.sum(x**3 * self.grid)


class Property:
    @functools.cached_property
    def grid(self):
        return grid()

    def loss(self, x):
        return jnp.sum(x**3 * self.grid)


class Slots:
    __slots__ = ("_grid",)

    def __call__(self, x):
        if not hasattr(self, "_grid"):
            self._grid = grid()
        return jnp.sum(x**3 * self._grid)


def attribute_of_a_class():
    class Shared:
        grid = None

        def __call__(self, x):
            if Shared.grid is None:
                Shared.grid = grid()
            return jnp.sum(x**3 * Shared.grid)

    return Shared()


def dict_of_a_class():
    class Shared:
        kept: ClassVar = {}

        def __call__(self, x):
            if "grid" not in self.kept:
                self.kept["grid"] = grid()
            return jnp.sum(x**3 * self.kept["grid"])

    return Shared()


def helper_of_a_class():
    class Holder:
        def __init__(self):
            self.grid = None

        def get(self):
            if self.grid is None:
                self.grid = grid()
            return self.grid

    class Model:
        helper = Holder()

        def __call__(self, x):
            return jnp.sum(x**3 * self.helper.get())

    return Model()


class Module(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        if "module" not in MEMO:
            MEMO["module"] = grid()
        return jnp.sum(self.weight * x**3 * MEMO["module"])


def module_of_equinox():
    MEMO.clear()
    return Module(jnp.ones(3))


def object_in_a_list_of_a_class():
    class Model:
        parts: ClassVar = [Lazy()]

        def __call__(self, x):
            return self.parts[0](x)

    return Model()


def method_with_a_memo():
    class Model:
        @functools.lru_cache  # noqa: B019
        def grid(self, count):
            return jnp.linspace(0.5, 2.0, count)

        def loss(self, x):
            return jnp.sum(x**3 * self.grid(3))

    return Model().loss


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 1.0

    def __call__(self, x):
        if "grid" not in self.__dict__:
            object.__setattr__(self, "grid", grid())
        return jnp.sum(x**3 * self.grid) * self.scale


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Node:
    scale: float = dataclasses.field(metadata={"static": True}, default=1.0)
    grid: jax.Array | None = None

    def __call__(self, x):
        if self.grid is None:
            self.grid = grid()
        return jnp.sum(x**3 * self.grid) * self.scale


def with_rules_inside():
    kept = []

    def f(x):
        if not kept:  # computed by functions that have derivative rules
            kept.append(jnp.logaddexp(grid(), grid()) - jnp.log(2.0))
            kept.append(jax.nn.relu(kept[0]))
            kept.append(jax.vmap(jax.checkpoint(lambda a: a * 1.0))(kept[1]))
        return jnp.sum(x**3 * kept[2])

    return f


def inside_of_a_function_with_rules():
    kept = {}

    @hotk.rule.custom
    def cube(x):
        if "grid" not in kept:
            kept["grid"] = grid()
        return x**3 * kept["grid"]

    @cube.def_jvp
    def slope(primals, tangents):
        return 3 * grid() * primals[0] ** 2 * tangents[0]

    return lambda x: jnp.sum(cube(x))


LAZY = {
    "memo of a module": memo_of_a_module,
    "dict of a module": dict_of_a_module,
    "late global": late_global,
    "memo of a closure": memo_of_a_closure,
    "list of a closure": list_of_a_closure,
    "nonlocal variable": nonlocal_variable,
    "dict as default": dict_as_default,
    "attribute of the function": attribute_of_the_function,
    "attribute of an object": Lazy,
    "cached property": lambda: Property().loss,
    "slot": Slots,
    "attribute of a class": attribute_of_a_class,
    "dict of a class": dict_of_a_class,
    "helper of a class": helper_of_a_class,
    "module of equinox": module_of_equinox,
    "object in a list of a class": object_in_a_list_of_a_class,
    "method with a memo": method_with_a_memo,
    "frozen dataclass": Frozen,
    "registered dataclass": Node,
    "with rules inside": with_rules_inside,
    "inside of a function with rules": inside_of_a_function_with_rules,
}
