"""Stories of objects: attributes, classes, methods, modules of equinox, pytrees."""

import dataclasses
import functools
import types
import unittest.mock
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.promises.telling import X, cubic, notebook, run_cell, story


# ----- Attributes


@story
def the_attribute_of_a_captured_object_is_changed():
    class Model:
        def __init__(self):
            self.scale = jnp.full(3, 2.0)

    model = Model()

    def f(x):
        return cubic(model.scale, x)

    yield f
    model.scale = jnp.full(3, 3.0)
    yield f
    model.scale = 4.0
    yield f
    model.__dict__ = {"scale": 5.0}
    yield f
    model.__dict__["scale"] = 6.0
    yield f


@story
def an_attribute_of_an_attribute_is_changed():
    class Node:
        pass

    model = Node()
    model.layers = [Node()]
    model.layers[0].weights = {"w": jnp.full(3, 2.0)}

    def f(x):
        return cubic(model.layers[0].weights["w"], x)

    yield f
    model.layers[0].weights["w"] = jnp.full(3, 3.0)
    yield f
    model.layers[0] = types.SimpleNamespace(weights={"w": 4.0})
    yield f


@story
def objects_point_at_each_other():
    class Node:
        parent: Any = None
        scale = 1.0

    parent, child = Node(), Node()
    parent.child, child.parent = child, parent

    def f(x):
        return cubic(child.parent.child.scale, x)

    yield f
    child.scale = 3.0
    yield f


@story
def a_property_computes_from_what_changes():
    outside = 1.0

    class Model:
        base = 2.0

        @property
        def scale(self):
            return self.base * outside

    model = Model()

    def f(x):
        return cubic(model.scale, x)

    yield f
    model.base = 3.0
    yield f
    outside = 5.0
    yield f
    Model.scale = property(lambda self: 7.0)
    yield f


@story
def an_object_has_slots():
    class Model:
        __slots__ = ("scale",)

        def __init__(self, scale):
            self.scale = scale

        def loss(self, x):
            return cubic(self.scale, x)

    model = Model(jnp.full(3, 2.0))
    yield model.loss
    model.scale = jnp.full(3, 3.0)
    yield model.loss
    model = Model(5.0)
    yield model.loss


@story
def an_object_has_slots_and_a_dict():
    class Base:
        __slots__ = ("scale",)

    class Model(Base):
        pass

    model = Model()
    model.scale, model.power = 2.0, 3

    def f(x):
        return jnp.sum(model.scale * x**model.power)

    yield f
    model.scale = 3.0
    yield f
    model.power = 4
    yield f


@story
def a_class_attribute_is_changed():
    class Model:
        scale = 2.0

        def loss(self, x):
            return cubic(self.scale, x)

    model = Model()
    yield model.loss
    Model.scale = 3.0
    yield model.loss
    model.scale = 5.0
    yield model.loss
    del model.scale
    yield model.loss
    Model.scale = jnp.full(3, 7.0)
    yield model.loss


@story
def an_attribute_of_a_class_is_read_without_an_object():
    cell = notebook(
        """
        class Config:
            scale = 2.0
            class Inner:
                power = 3
        def f(x): return jnp.sum(Config.scale * x**Config.Inner.power)
        """
    )
    yield cell["f"]
    cell["Config"].scale = 3.0
    yield cell["f"]
    cell["Config"].Inner.power = 4
    yield cell["f"]


@story
def an_attribute_of_a_base_class_is_changed():
    class Grandparent:
        scale = 2.0

    class Parent(Grandparent):
        pass

    class Model(Parent):
        def __call__(self, x):
            return cubic(self.scale, x)

    model = Model()
    yield model
    Grandparent.scale = 3.0
    yield model
    Parent.scale = 5.0
    yield model


@story
def an_attribute_of_a_metaclass_is_changed():
    class Meta(type):
        scale = 2.0

    class Model(metaclass=Meta):
        pass

    def f(x):
        return cubic(Model.scale, x)

    yield f
    Meta.scale = 3.0
    yield f


@story
def the_default_of_a_captured_dataclass_field_is_a_class_attribute():
    class Model(eqx.Module):
        w: jax.Array
        scale = 2.0

        def __call__(self, x):
            return cubic(self.scale * self.w, x)

    model = Model(jnp.ones(3))
    yield model
    Model.scale = 3.0
    yield model


@story
def attributes_come_from_a_dict_behind_getattr():
    class Lazy:
        def __init__(self, table):
            self.__dict__["table"] = table

        def __getattr__(self, name):
            try:
                return self.table[name]
            except KeyError:
                raise AttributeError(name) from None

    table = {"scale": 2.0}
    lazy = Lazy(table)

    def f(x):
        return cubic(lazy.scale, x)

    yield f
    table["scale"] = 3.0
    yield f


@story
def attributes_come_from_getattribute():
    outside = {"scale": 2.0}

    class Model:
        scale = 100.0

        def __getattribute__(self, name):
            return outside[name]

    model = Model()

    def f(x):
        return cubic(model.scale, x)

    yield f
    outside["scale"] = 3.0
    yield f


@story
def an_object_answers_to_every_name():
    class Anything:
        value = 2.0

        def __getattr__(self, name):
            return self.value

    anything = Anything()

    def f(x):
        return cubic(anything.scale, x)

    yield f
    anything.value = 3.0
    yield f


@story
def a_descriptor_reads_from_elsewhere():
    store = {"scale": 2.0}

    class Stored:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner):
            return store[self.name]

    class Model:
        scale = Stored()

    model = Model()

    def f(x):
        return cubic(model.scale, x)

    yield f
    store["scale"] = 3.0
    yield f


@story
def a_cached_property_keeps_its_first_value():
    class Model:
        base = 2.0

        @functools.cached_property
        def scale(self):
            return self.base**2

    model = Model()

    def f(x):
        return cubic(model.scale, x)

    yield f
    model.base = 3.0
    yield f  # the object itself remembers the old value
    del model.scale
    yield f


@story
def what_a_class_says_of_itself_is_read():
    class Model:
        """One."""

        scale: float = 2.0

    def by_doc(x):
        return cubic(float(len(Model.__doc__)), x)

    def by_annotations(x):
        return cubic(1.0 + len(Model.__annotations__), x)

    def by_name(x):
        return cubic(float(len(Model.__name__)), x)

    functions = (by_doc, by_annotations, by_name)
    yield from functions
    Model.__doc__, Model.__name__ = "A longer text.", "Other"
    Model.__annotations__["power"] = int
    yield from functions


@story
def the_metadata_of_a_dataclass_field_is_mutated():
    metadata = {"scale": 2.0}

    @dataclasses.dataclass
    class Model:
        w: float = dataclasses.field(default=1.0, metadata=metadata)

    model = Model()

    def f(x):
        (field,) = dataclasses.fields(model)
        return cubic(field.metadata["scale"], x)

    yield f
    metadata["scale"] = 3.0
    yield f


@story
def the_method_of_a_dataclass_made_in_a_notebook_is_replaced():
    cell = notebook(
        """
        import dataclasses
        c = 2.0
        @dataclasses.dataclass
        class Model:
            w: float = 1.0
            def loss(self, x): return c * self.w * jnp.sum(x**3)
        model = Model()
        def f(x): return model.loss(x)
        """
    )
    yield cell["f"]
    cell["c"] = 3.0
    yield cell["f"]
    run_cell("Model.loss = lambda self, x: jnp.sum(jnp.sin(self.w * x))", cell)
    yield cell["f"]


@story
def the_property_of_an_enum_reads_a_global():
    cell = notebook(
        """
        import enum
        table = {"A": 2.0}
        class Kind(enum.Enum):
            A = "A"
            @property
            def scale(self): return table[self.value]
            def weight(self): return table[self.value]
        def f(x): return Kind.A.scale * jnp.sum(x**3)
        def g(x, kind=Kind.A): return kind.scale * jnp.sum(x**3)
        def h(x, kind=Kind.A): return kind.weight() * jnp.sum(x**3)
        """
    )
    yield from (cell["f"], cell["g"], cell["h"])
    cell["table"]["A"] = 3.0
    yield from (cell["f"], cell["g"], cell["h"])


@story
def a_dict_is_keyed_by_objects():
    class Key:
        pass

    key, other = Key(), Key()
    registry = {key: jnp.full(3, 2.0), other: jnp.full(3, 5.0)}

    def f(x):
        return cubic(registry[key], x)

    yield f
    registry[key] = jnp.full(3, 3.0)
    yield f
    key = other
    yield f


@story
def an_object_is_recognized_by_its_identity():
    class Node:
        w = 2.0

    def make(a, b):
        return lambda x: cubic(a.w * (2.0 if a is b else 3.0), x)

    node = Node()
    node.w = jnp.full(3, 2.0)
    other = Node()
    other.w = jnp.full(3, 2.0)
    yield make(node, node)
    yield make(node, other)


# ----- Methods


@story
def the_bound_method_of_another_object():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        def loss(self, x):
            return cubic(self.scale, x)

    yield Model(jnp.full(3, 2.0)).loss
    yield Model(jnp.full(3, 3.0)).loss
    yield Model(2.0).loss
    yield Model(3.0).loss


@story
def a_method_is_replaced_on_the_class():
    class Model:
        def loss(self, x):
            return jnp.sum(self.layer(x))

        def layer(self, x):
            return x**3

    model = Model()
    f = model.loss
    yield f
    Model.layer = lambda self, x: jnp.sin(x)
    yield f
    Model.loss = lambda self, x: jnp.sum(x**4)
    yield f  # bound before: still the old method
    yield model.loss


@story
def a_method_is_replaced_on_the_object():
    class Model:
        def loss(self, x):
            return jnp.sum(self.layer(x))

        def layer(self, x):
            return x**3

    model = Model()
    yield model.loss
    model.layer = jnp.sin
    yield model.loss
    del model.layer
    yield model.loss


@story
def a_method_of_a_base_class_is_replaced():
    class Base:
        def layer(self, x):
            return x**3

    class Middle(Base):
        pass

    class Model(Middle):
        def layer(self, x):
            return 2.0 * super().layer(x)

        def loss(self, x):
            return jnp.sum(self.layer(x))

    model = Model()
    yield model.loss
    Base.layer = lambda self, x: jnp.sin(x)
    yield model.loss
    Middle.layer = lambda self, x: jnp.cos(x)
    yield model.loss


@story
def an_object_changes_its_class():
    class Sine:
        scale = 2.0

        def layer(self, x):
            return self.scale * jnp.sin(x)

    class Cosine(Sine):
        def layer(self, x):
            return self.scale * jnp.cos(x)

    model = Sine()

    def f(x):
        return jnp.sum(model.layer(x))

    yield f
    model.__class__ = Cosine
    yield f


@story
def a_class_changes_its_bases():
    class Sine:
        def layer(self, x):
            return jnp.sin(x)

    class Cosine:
        def layer(self, x):
            return jnp.cos(x)

    class Model(Sine):
        pass

    model = Model()

    def f(x):
        return jnp.sum(model.layer(x))

    yield f
    Model.__bases__ = (Cosine,)
    yield f


@story
def a_callable_object_is_changed():
    class Loss:
        def __init__(self, scale):
            self.scale = scale

        def __call__(self, x):
            return cubic(self.scale, x)

    loss = Loss(jnp.full(3, 2.0))
    yield loss
    loss.scale = jnp.full(3, 3.0)
    yield loss
    yield Loss(jnp.full(3, 4.0))
    Loss.__call__ = lambda self, x: jnp.sum(jnp.sin(self.scale * x))
    yield loss


@story
def a_method_reads_a_global():
    cell = notebook(
        """
        c = 2.0
        class Model:
            def loss(self, x): return c * jnp.sum(x**3)
            @classmethod
            def of_class(cls, x): return cls.power(x) * c
            @staticmethod
            def of_none(x): return c * jnp.sum(x**3)
            @staticmethod
            def power(x): return jnp.sum(x**4)
        model = Model()
        """
    )
    model = cell["model"]
    for name in ("loss", "of_class", "of_none"):
        cell["c"] = 2.0
        yield getattr(model, name)
        cell["c"] = 3.0
        yield getattr(model, name)


@story
def a_class_method_reads_a_class_attribute():
    class Model:
        scale = 2.0

        @classmethod
        def loss(cls, x):
            return cubic(cls.scale, x)

    class Child(Model):
        pass

    yield Model.loss
    yield Child.loss
    Model.scale = 3.0
    yield Model.loss
    yield Child.loss
    Child.scale = 5.0
    yield Child.loss


@story
def a_partial_method_is_changed():
    class Model:
        def power(self, n, x):
            return jnp.sum(x**n)

        loss = functools.partialmethod(power, 3)

    model = Model()
    yield model.loss
    Model.loss = functools.partialmethod(Model.power, 4)
    yield model.loss


@story
def a_class_is_the_function():
    class Wrapper:
        scale = 2.0

        def __new__(cls, x):
            return cubic(cls.scale, x)

    yield Wrapper
    Wrapper.scale = 3.0
    yield Wrapper


# ----- Objects that behave like something else


@story
def an_object_turns_itself_into_an_array():
    class Scale:
        def __init__(self, value):
            self.value = value

        def __jax_array__(self):
            return jnp.full(3, self.value)

    scale = Scale(2.0)

    def f(x):
        return cubic(jnp.asarray(scale), x)

    yield f
    scale.value = 3.0
    yield f


@story
def an_object_overloads_operators():
    class Scale:
        value = 2.0

        def __rmul__(self, other):
            return self.value * other

        def __float__(self):
            return self.value

        def __iter__(self):
            return iter([self.value])

        def __len__(self):
            return int(self.value)

    scale = Scale()

    def f(x):
        return jnp.sum((x**3) * scale) * float(scale) * sum(scale) * len(scale)

    yield f
    scale.value = 3.0
    yield f


@story
def an_object_is_a_context():
    stack = [1.0]

    class Scaled:
        by = 2.0

        def __enter__(self):
            stack.append(self.by)
            return self.by

        def __exit__(self, *error):
            stack.pop()

    scaled = Scaled()

    def f(x):
        with scaled as by:
            return cubic(by * stack[-1], x)

    yield f
    scaled.by = 3.0
    yield f


@story
def an_object_equals_every_other():
    class Same:
        def __init__(self, scale):
            self.scale = scale

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

    def make(same):
        return lambda x: cubic(same.scale, x)

    yield make(Same(2.0))
    yield make(Same(3.0))


@story
def an_object_cannot_be_compared_or_hashed():
    class Difficult:
        __hash__ = None
        scale = 2.0

        def __eq__(self, other):
            return jnp.array([True, False])

        def __bool__(self):
            raise ValueError("neither true nor false")

        def __repr__(self):
            raise ValueError("no name")

    difficult = Difficult()

    def f(x):
        return cubic(difficult.scale, x)

    yield f
    difficult.scale = 3.0
    yield f
    difficult = Difficult()
    yield f


@story
def an_object_lies_about_its_class():
    class Proxy:
        def __init__(self, target):
            self.target = target

        @property
        def __class__(self):
            return type(self.target)

        def __getattr__(self, name):
            return getattr(self.target, name)

        def __getitem__(self, key):
            return self.target[key]

        def __len__(self):
            return len(self.target)

        def __iter__(self):
            return iter(self.target)

    proxy = Proxy([2.0])

    def f(x):
        return cubic(proxy[0], x)

    def g(x):
        return jnp.sum(x ** len(proxy))

    yield f
    proxy.target[0] = 3.0
    yield f
    proxy.target = {0: 5.0}
    yield f
    proxy.target = (7.0, 7.0, 7.0)
    yield f
    yield g


@story
def a_mock_returns_something_else():
    scale = unittest.mock.Mock(return_value=2.0)

    def f(x):
        return cubic(scale(), x)

    yield f
    scale.return_value = 3.0
    yield f


@story
def a_polynomial_of_numpy_is_changed():
    polynomial = np.polynomial.Polynomial([0.0, 2.0])

    def f(x):
        return cubic(float(polynomial(1.0)), x)

    yield f
    polynomial.coef[1] = 3.0
    yield f


@story
def a_sparse_matrix_of_scipy_is_changed():
    import scipy.sparse

    matrix = scipy.sparse.csr_array(np.diag([1.0, 2.0, 3.0]))

    def f(x):
        return jnp.sum(jnp.sin(matrix.toarray() @ x))

    yield f
    matrix.data[:] = 5.0
    yield f


# ----- Modules of equinox


@story
def a_module_is_replaced_by_another():
    class Model(eqx.Module):
        w: jax.Array
        power: int = eqx.field(static=True)

        def __call__(self, x):
            return jnp.sum(self.w * x**self.power)

        def loss(self, x):
            return 2.0 * self(x)

    for model in (
        Model(jnp.full(3, 2.0), 3),
        Model(jnp.full(3, 3.0), 3),
        Model(jnp.full(3, 3.0), 4),
    ):
        yield model
        yield model.loss
        yield lambda x, model=model: model.loss(jnp.sin(x))


@story
def the_methods_of_a_module_read_globals_and_functions():
    cell = notebook(
        """
        c = 2.0
        def layer(y): return y**3
        class Model(eqx.Module):
            w: jax.Array
            def __call__(self, x): return c * jnp.sum(layer(self.w * x))
            def loss(self, x): return self(x)
            @property
            def scaled(self): return c * self.w
        model = Model(jnp.arange(1.0, 4.0))
        def captured(x): return model(x)
        def captured_property(x): return jnp.sum(model.scaled * x**3)
        def as_point(model): return model(jnp.arange(3.0))
        def as_point_property(model): return jnp.sum(model.scaled**3)
        def as_constant(x, model): return model(x)
        """,
        eqx=eqx,
    )
    model = cell["model"]
    steps = [
        (model, X),
        (model.loss, X),
        (cell["captured"], X),
        (cell["captured_property"], X),
        (cell["as_point"], model),
        (cell["as_point_property"], model),
        (cell["as_constant"], X, model),
    ]
    for step in steps:
        cell["c"] = 2.0
        run_cell("def layer(y): return y**3", cell)
        yield step
        cell["c"] = 3.0
        yield step
        run_cell("def layer(y): return jnp.sin(y)", cell)
        yield step


@story
def the_method_of_a_module_is_replaced_on_its_class():
    class Model(eqx.Module):
        w: jax.Array

        def layer(self, x):
            return self.w * x**3

        def __call__(self, x):
            return jnp.sum(self.layer(x))

    model = Model(jnp.arange(1.0, 4.0))

    def of_point(model):
        return model(jnp.ones(3)) ** 2

    yield model
    yield of_point, model
    Model.layer = lambda self, x: jnp.sin(self.w * x)
    yield model
    yield of_point, model


@story
def a_module_holds_what_can_be_mutated():
    class Model(eqx.Module):
        scales: list
        table: dict
        act: Any

        def __call__(self, x):
            return jnp.sum(self.scales[0] * self.table["c"] * self.act(x))

    scale = 1.0
    model = Model([2.0], {"c": jnp.array(2.0)}, lambda y: scale * y**3)

    yield model
    model.scales[0] = 3.0
    yield model
    model.table["c"] = jnp.array(5.0)
    yield model
    scale = 7.0
    yield model


@story
def the_static_fields_of_modules_look_alike():
    class Model(eqx.Module):
        w: jax.Array
        kind: Any = eqx.field(static=True)

        def __call__(self, x):
            return cubic(self.w * len(repr(self.kind)), x)

    def of_point(model):
        return jnp.sum(model.w**3) * len(repr(model.kind))

    def with_constant(x, model):
        return model(x)

    w = jnp.full(3, 2.0)
    for kind in (1, True, 1.0, 0.0, -0.0, (1,), (True,)):
        model = Model(w, kind)
        yield model
        yield lambda x, model=model: model(x)
        yield of_point, model
        yield with_constant, X, model


@story
def a_static_field_is_a_function_that_reads_something():
    scale = 2.0

    class Model(eqx.Module):
        w: jax.Array
        act: Any = eqx.field(static=True)

        def __call__(self, x):
            return jnp.sum(self.act(self.w * x))

    def of_point(model):
        return model(jnp.ones(3))

    def with_constant(x, model):
        return model(x)

    model = Model(jnp.full(3, 2.0), lambda y: scale * y**3)
    for scale in (2.0, 3.0):  # noqa: B007, the cell that `act` reads
        yield model
        yield of_point, model
        yield with_constant, X, model


@story
def a_static_field_is_an_object_that_is_changed():
    class Settings:
        scale = 2.0

    class Model(eqx.Module):
        w: jax.Array
        settings: Settings = eqx.field(static=True)

        def __call__(self, x):
            return cubic(self.settings.scale * self.w, x)

    def of_point(model):
        return jnp.sum(model.settings.scale * model.w**3)

    def with_constant(x, model):
        return model(x)

    settings = Settings()
    model = Model(jnp.full(3, 2.0), settings)
    for scale in (2.0, 3.0):
        settings.scale = scale
        yield model
        yield of_point, model
        yield with_constant, X, model


@story
def layers_of_equinox_are_exchanged():
    a, b = (eqx.nn.MLP(3, "scalar", 4, 1, key=jax.random.key(i)) for i in (0, 1))
    c = eqx.nn.MLP(3, "scalar", 4, 1, activation=jnp.tanh, key=jax.random.key(1))
    yield a
    yield b
    yield c
    yield eqx.nn.Sequential([eqx.nn.Lambda(jnp.sin), c])
    yield eqx.nn.Sequential([eqx.nn.Lambda(jnp.cos), c])
    scale = 2.0
    lambda_layer = eqx.nn.Sequential([eqx.nn.Lambda(lambda y: scale * y), c])
    yield lambda_layer
    scale = 3.0
    yield lambda_layer


# ----- Registered trees


@story
def a_registered_class_forgets_an_attribute_when_flattened():
    @jax.tree_util.register_pytree_node_class
    class Scale:
        factor = 1.0

        def __init__(self, w):
            self.w = w

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    scale = Scale(jnp.full(3, 2.0))

    def f(x):
        return cubic(scale.factor * scale.w, x)

    def g(x, scale):
        return cubic(scale.factor * scale.w, x)

    yield f
    yield g, X, scale
    scale.factor = 3.0
    yield f
    yield g, X, scale


@story
def a_registered_class_computes_when_it_is_made():
    @jax.tree_util.register_pytree_node_class
    class Doubled:
        def __init__(self, w):
            self.w = 2.0 * w

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    def make(scale):
        return lambda x: cubic(scale.w, x)

    yield make(Doubled(jnp.full(3, 2.0)))
    yield make(Doubled(jnp.full(3, 3.0)))
    yield lambda x, scale: cubic(scale.w, x), X, Doubled(jnp.full(3, 2.0))


@story
def a_registered_class_wants_numbers_when_it_is_made():
    @jax.tree_util.register_pytree_node_class
    class Checked:
        def __init__(self, w):
            if float(w) < 0:
                raise ValueError("negative")
            self.w = w

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    def make(scale):
        return lambda x: cubic(scale.w, x)

    yield make(Checked(jnp.array(2.0)))
    yield make(Checked(jnp.array(3.0)))


@story
def the_static_part_of_a_registered_class_is_mutated():
    @jax.tree_util.register_pytree_node_class
    class Scale:
        def __init__(self, w, powers):
            self.w, self.powers = w, powers

        def tree_flatten(self):
            return (self.w,), self.powers

        @classmethod
        def tree_unflatten(cls, powers, children):
            return cls(*children, powers)

    scale = Scale(jnp.full(3, 2.0), [3])

    def f(x):
        return jnp.sum(scale.w * x ** scale.powers[0])

    yield f
    scale.powers[0] = 4
    yield f
    scale.w = jnp.full(3, 3.0)
    yield f


@story
def the_static_part_of_a_registered_class_compares_too_kindly():
    class Name(str):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

    @jax.tree_util.register_pytree_node_class
    class Scale:
        def __init__(self, w, name):
            self.w, self.name = w, name

        def tree_flatten(self):
            return (self.w,), self.name

        @classmethod
        def tree_unflatten(cls, name, children):
            return cls(*children, name)

    def make(scale):
        return lambda x: cubic(scale.w * len(scale.name), x)

    w = jnp.full(3, 2.0)
    yield make(Scale(w, Name("a")))
    yield make(Scale(w, Name("abc")))
    yield lambda x, scale: cubic(scale.w * len(scale.name), x), X, Scale(w, Name("a"))
    yield lambda x, scale: cubic(scale.w * len(scale.name), x), X, Scale(w, Name("ab"))


@story
def a_registered_dataclass_is_changed():
    @functools.partial(
        jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["power"]
    )
    @dataclasses.dataclass
    class Scale:
        w: Any
        power: int

    scale = Scale(jnp.full(3, 2.0), 3)

    def f(x):
        return jnp.sum(scale.w * x**scale.power)

    def g(x, scale):
        return jnp.sum(scale.w * x**scale.power)

    for change in ({}, {"power": 4}, {"w": jnp.full(3, 3.0)}):
        for name, value in change.items():
            setattr(scale, name, value)
        yield f
        yield g, X, scale


@story
def a_class_registered_as_static_is_changed():
    @jax.tree_util.register_static
    class Settings:
        scale = 2.0

    settings = Settings()

    def f(x):
        return cubic(settings.scale, x)

    def g(x, settings):
        return cubic(settings.scale, x)

    yield f
    yield g, X, settings
    settings.scale = 3.0
    yield f
    yield g, X, settings


@story
def the_method_of_a_registered_class_reads_a_global():
    cell = notebook(
        """
        c = 2.0
        @jax.tree_util.register_pytree_node_class
        class Model:
            def __init__(self, w): self.w = w
            def tree_flatten(self): return (self.w,), None
            @classmethod
            def tree_unflatten(cls, aux, children): return cls(*children)
            def loss(self, x): return c * jnp.sum(self.w * x**3)
        model = Model(jnp.arange(1.0, 4.0))
        def captured(x): return model.loss(x)
        def as_point(model): return model.loss(model.w)
        def as_constant(x, model): return model.loss(x)
        """
    )
    model = cell["model"]
    for step in (
        (model.loss, X),
        (cell["captured"], X),
        (cell["as_point"], model),
        (cell["as_constant"], X, model),
    ):
        cell["c"] = 2.0
        yield step
        cell["c"] = 3.0
        yield step


@story
def the_method_of_a_named_tuple_reads_a_global():
    cell = notebook(
        """
        from typing import Any, NamedTuple
        c = 2.0
        class Model(NamedTuple):
            w: Any
            def loss(self, x): return c * jnp.sum(self.w * x**3)
        model = Model(jnp.arange(1.0, 4.0))
        def captured(x): return model.loss(x)
        def as_point(model): return model.loss(model.w)
        def as_constant(x, model): return model.loss(x)
        """
    )
    model = cell["model"]
    for step in (
        (model.loss, X),
        (cell["captured"], X),
        (cell["as_point"], model),
        (cell["as_constant"], X, model),
    ):
        cell["c"] = 2.0
        yield step
        cell["c"] = 3.0
        yield step
