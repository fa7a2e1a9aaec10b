"""Stories of what Python does by hidden names: found stale, each once."""

import abc
import dataclasses
import inspect
import logging
import os
import sys
from os import getenv
from sys import _getframe
from typing import NamedTuple, get_type_hints

import jax
import jax.numpy as jnp

from tests.promises.telling import X, cubic, notebook, run_cell, story


@story
def a_private_slot_is_read():
    class Model:
        __slots__ = ("__scale",)

        def __init__(self, scale):
            self.set(scale)

        def set(self, scale):
            self.__scale = scale

        def loss(self, x):
            return cubic(self.__scale, x)

    model = Model(2.0)
    yield model.loss
    model.set(3.0)
    yield model.loss
    model.set(jnp.full(3, 4.0))
    yield model.loss
    model.set(jnp.full(3, 5.0))
    yield model.loss


@story
def a_private_slot_of_an_attribute_of_a_class_is_read():
    class Rate:
        __slots__ = ("__rate",)

        def set(self, rate):
            self.__rate = rate

        def get(self):
            return self.__rate

    class Model:
        rate = Rate()

        def loss(self, x):
            return cubic(self.rate.get(), x)

    model = Model()
    model.rate.set(2.0)
    yield model.loss
    model.rate.set(3.0)
    yield model.loss


@story
def a_slot_of_a_class_with_a_private_name_is_read():
    class _Model:
        __slots__ = ("__scale",)

        def set(self, scale):
            self.__scale = scale

        def loss(self, x):
            return cubic(self.__scale, x)

    class Model(_Model):
        __slots__ = ()

    model = Model()
    model.set(2.0)
    yield model.loss
    model.set(3.0)
    yield model.loss


def _package(name):
    made = type(sys)(name)
    made.__path__ = []
    return made


@story
def a_module_imported_while_it_runs_is_named_as_one_of_python():
    package, math = _package("hotk_story"), type(sys)("hotk_story.math")
    math.scale = 2.0
    sys.modules |= {"hotk_story": package, "hotk_story.math": math}
    try:
        names = {"__name__": "hotk_story.main", "__package__": "hotk_story"}
        cell = notebook(
            """
            def f(x):
                from .math import scale
                return jnp.sum(scale * x**3)
            """,
            **names,
        )
        yield cell["f"]
        math.scale = 3.0
        yield cell["f"]
    finally:
        del sys.modules["hotk_story"], sys.modules["hotk_story.math"]


@story
def the_hash_of_a_class_is_replaced():
    class Key:
        def __hash__(self):
            return 2

        def __eq__(self, other):
            return True

    key = Key()

    def f(x):
        return cubic(float(hash(key)), x)

    yield f
    Key.__hash__ = lambda self: 5
    yield f


@story
def what_a_class_matches_by_position_is_replaced():
    class Pair:
        __match_args__ = ("a", "b")

        def __init__(self):
            self.a, self.b = 2.0, 5.0

    pair = Pair()

    def f(x):
        match pair:
            case Pair(first, _):
                return cubic(first, x)

    yield f
    Pair.__match_args__ = ("b", "a")
    yield f


class Grown(tuple):
    factor = 2.0

    def __new__(cls, *items):
        return tuple.__new__(cls, [cls.factor * item for item in items])


class Fields(NamedTuple):
    scale: float

    def loss(self, x):
        return cubic(self.scale, x)


@story
def a_subclass_of_tuple_is_made_anew():
    rates = (1.0, 2.0)

    def f(x):
        return cubic(Grown(*rates)[1], x)

    yield f
    before = Grown.__new__
    Grown.__new__ = lambda cls, *items: tuple.__new__(cls, [7.0 * i for i in items])
    try:
        yield f
    finally:
        Grown.__new__ = before


@story
def the_way_a_subclass_of_tuple_is_made_is_replaced():
    class Pair(NamedTuple):
        a: float
        b: float

    def f(x):
        return cubic(Pair(2.0, 5.0).a, x)

    yield f
    Pair.__new__ = lambda cls, a, b: tuple.__new__(cls, (b, a))
    yield f


@story
def a_field_of_a_named_tuple_becomes_a_property():
    class Pair(NamedTuple):
        a: float
        b: float

    pair = Pair(2.0, 5.0)

    def f(x):
        return cubic(pair.a, x)

    yield f
    Pair.a = property(lambda self: self.b)
    yield f


@story
def the_replace_of_a_named_tuple_is_replaced():
    class Pair(NamedTuple):
        a: float
        b: float

    pair = Pair(2.0, 5.0)

    def f(x):
        return cubic(pair._replace(b=7.0).b, x)

    yield f
    Pair._replace = lambda self, **kw: self
    yield f


@story
def a_class_is_registered_with_an_abstract_one():
    class Scaled(abc.ABC):  # noqa: B024
        pass

    class Model:
        pass

    model = Model()

    def f(x):
        return cubic(5.0 if isinstance(model, Scaled) else 2.0, x)

    yield f
    Scaled.register(Model)
    yield f


@story
def a_class_gets_another_base():
    class One:
        scale = 2.0

    class Two:
        scale = 5.0

    class Model(One):
        def loss(self, x):
            return cubic(self.scale, x)

    model = Model()
    yield model.loss
    Model.__bases__ = (Two,)
    yield model.loss


@story
def the_bases_of_a_class_are_told():
    class One:
        pass

    class Model(One):
        pass

    class Other(One):
        pass

    def f(x):
        return cubic(5.0 if issubclass(Model, One) else 2.0, x)

    yield f
    Model.__bases__ = (Other.__mro__[-2],)
    Model.__bases__ = (type("Two", (), {}),)
    yield f


@story
def a_method_of_a_dataclass_is_made_by_exec():
    names = {}
    exec("def __neg__(self): return self.scale", names)

    @dataclasses.dataclass
    class Model:
        scale: float

    Model.__neg__ = names["__neg__"]
    model = Model(2.0)

    def f(x):
        return cubic(-model, x)

    yield f
    exec("def __neg__(self): return 3 * self.scale", names)
    Model.__neg__ = names["__neg__"]
    yield f


@story
def the_environment_is_read_by_name():
    def f(x):
        return cubic(float(getenv("HOTK_STORY", "2.0")), x)

    yield f
    os.environ["HOTK_STORY"] = "5.0"
    try:
        yield f
    finally:
        del os.environ["HOTK_STORY"]


@story
def a_frame_is_asked_for_by_name():
    cell = notebook(
        """
        scale = 2.0
        def f(x):
            return jnp.sum(_getframe().f_globals["scale"] * x**3)
        """,
        _getframe=_getframe,
    )
    yield cell["f"]
    run_cell("scale = 3.0", cell)
    yield cell["f"]


@story
def a_frame_is_asked_for_by_a_module():
    cell = notebook(
        """
        scale = 2.0
        def f(x):
            return jnp.sum(currentframe().f_globals["scale"] * x**3)
        """,
        currentframe=inspect.currentframe,
    )
    yield cell["f"]
    run_cell("scale = 3.0", cell)
    yield cell["f"]


@story
def eval_is_taken_from_its_module():
    cell = notebook("""
        import builtins
        scale = 2.0
        def f(x):
            return jnp.sum(builtins.eval("scale") * x**3)
    """)
    yield cell["f"]
    run_cell("scale = 3.0", cell)
    yield cell["f"]


@story
def a_module_of_reflection_is_reached_through_another():
    cell = notebook(
        """
        scale = 2.0
        def f(x):
            return jnp.sum(dataclasses.sys._getframe().f_globals["scale"] * x**3)
        """,
        dataclasses=dataclasses,
    )
    yield cell["f"]
    run_cell("scale = 3.0", cell)
    yield cell["f"]


@story
def a_module_of_reflection_is_imported_while_it_runs():
    cell = notebook("""
        scale = 2.0
        def f(x):
            import sys
            from inspect import currentframe
            return jnp.sum(currentframe().f_globals["scale"] * x**3)
    """)
    yield cell["f"]
    run_cell("scale = 3.0", cell)
    yield cell["f"]


@story
def the_text_of_a_function_is_asked_for_by_getattr():
    def inner():
        """2.0"""

    def f(x):
        return cubic(float(getattr(inner, "__doc__")), x)  # noqa: B009

    yield f
    inner.__doc__ = "5.0"
    yield f


@story
def the_name_of_a_function_is_asked_for_by_getattr():
    def inner():
        pass

    what = "__name__"

    def f(x):
        return cubic(float(len(getattr(inner, what))), x)

    yield f
    inner.__name__ = "longer_than_before"
    yield f


@story
def the_text_of_a_class_is_read_through_another_name():
    class Model:
        """2.0"""

    read = getattr

    def f(x):
        return cubic(float(read(Model, "__doc__")), x)

    yield f
    Model.__doc__ = "5.0"
    yield f


@story
def names_are_listed():
    def inner():
        pass

    def f(x):
        return cubic(float(len([n for n in dir(inner) if n[0] != "_"])) + 1, x)

    yield f
    inner.scale = 1.0
    yield f


@story
def the_qualified_name_of_a_class_is_read():
    class Model:
        pass

    def f(x):
        return cubic(float(len(getattr(Model, "__qualname__", ""))), x)

    yield f
    Model.__qualname__ = "A"
    yield f


@story
def a_setting_of_jax_is_read():
    def f(x):
        return cubic(5.0 if jax.config.jax_debug_nans else 2.0, x)

    yield f
    with jax.debug_nans(True):
        yield f
    yield f


@story
def a_setting_of_jax_is_read_through_a_captured_name():
    config = jax.config

    def f(x):
        return cubic(5.0 if config.jax_debug_infs else 2.0, x)

    yield f
    with jax.debug_infs(True):
        yield f


@story
def the_class_of_a_captured_object_has_no_text():
    # Methods are wrapped by what asks `vars` and `getattr` of a class.
    class Model:
        scale = 2.0

    def f(x):
        return cubic(vars(Model)["scale"], x)

    yield f
    Model.scale = 3.0
    yield f


@story
def a_static_value_of_a_class_is_asked_for_by_its_slots():
    class Model:
        __slots__ = ["a"]

    model = Model()
    model.a = 2.0

    def f(x):
        return cubic(sum(getattr(model, name) for name in Model.__slots__), x)

    yield f
    model.a = 3.0
    yield f


@story
def a_method_is_a_captured_tuple_of_the_user():
    pair = Fields(2.0)
    yield pair.loss
    pair = Fields(3.0)
    yield pair.loss


@story(changes=False)
def the_point_is_a_named_tuple():
    def f(point):
        return cubic(2.0, point.scale)

    yield f, Fields(X)
    yield f, Fields(X)


@story
def a_logger_is_asked_for_its_level():
    parent = logging.getLogger("tests.hotk.parent")
    child = logging.getLogger("tests.hotk.parent.child")
    parent.setLevel(logging.WARNING)

    def f(x):
        return cubic(2.0 if child.isEnabledFor(logging.INFO) else 3.0, x)

    yield f
    parent.setLevel(logging.INFO)
    yield f
    child.disabled = True
    yield f
    child.disabled = False
    yield f
    logging.disable(logging.INFO)
    try:
        yield f
    finally:
        logging.disable(logging.NOTSET)
    yield f


@story
def the_annotations_of_a_function_are_counted():
    def described(x: int):
        return x

    def f(x):
        return cubic(len(get_type_hints(described)), x)

    yield f
    described.__annotations__["y"] = int
    yield f
