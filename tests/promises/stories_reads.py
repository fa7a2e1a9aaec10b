"""Stories of objects of which a function reads a part: that part is seen."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.promises.telling import X, cubic, notebook, run_cell, story


class Config:
    def __init__(self, rate):
        self.rate = rate
        self.notes = []

    @property
    def doubled(self):
        return 2 * self.rate

    def scaled(self, factor):
        return factor * self.rate


class Base:
    shift = 1.0

    def factor(self):
        return self.scale

    def loss(self, x):
        return cubic(self.factor() * self.config.rate, x) + self.shift * jnp.sum(x**2)


class Trainer(Base):
    def __init__(self):
        self.step = 0
        self.history = []
        self.scale = 2.0
        self.config = Config(1.0)
        self.weights = jnp.full(3, 2.0)
        self.data = np.full(3, 1.5)

    def by_property(self, x):
        return cubic(self.config.doubled * self.twice, x)

    @property
    def twice(self):
        return 2 * self.scale

    def by_array(self, x):
        return jnp.sum(self.weights * self.data * x**3)

    def by_inner_function(self, x):
        def inner(y):
            return self.scale * y

        return jnp.sum(jax.vmap(lambda y: inner(y) + self.config.scaled(y))(x) ** 2)

    def by_bound_method(self, x):
        return jnp.sum(jax.vmap(self.one)(x))

    def one(self, y):
        return self.scale * y**3

    def deep(self, x):
        return self.loss(x) * self.by_array(x)

    def itself(self, x):
        return helper(self, x)

    def by_name(self, x):
        return cubic(getattr(self, "scale"), x)  # noqa: B009

    def listed(self, x):
        return cubic(sum(v for v in vars(self).values() if isinstance(v, float)), x)

    def fit(self):
        self.step += 1
        self.history.append(self.step)


class Derived(Trainer):
    def factor(self):
        return 3.0 * super().factor()


class Outer:
    def __init__(self):
        self.trainer = Trainer()

    def loss(self, x):
        return self.trainer.loss(x) + self.trainer.config.rate * jnp.sum(x**2)


def helper(trainer, x):
    return cubic(trainer.scale * trainer.config.rate, x)


def change(trainer):
    """Change, one after the other, all that a trainer has."""
    yield
    trainer.fit()
    yield
    trainer.scale = 3.0
    yield
    trainer.config.rate = 5.0
    yield
    trainer.config.notes.append(1)
    yield
    trainer.config = Config(7.0)
    yield
    trainer.shift = 4.0
    yield
    del trainer.shift
    yield
    trainer.weights = jnp.full(3, 4.0)
    yield
    trainer.data[1] = 4.0
    yield
    trainer.weights = 5.0
    yield
    trainer.history = None
    yield


METHODS = (
    *("loss", "by_property", "by_array", "by_inner_function", "by_bound_method"),
    *("deep", "itself", "by_name", "listed"),
)


def _of_method(name, kind):
    def bound():
        trainer = kind()
        for _ in change(trainer):
            yield getattr(trainer, name)

    def captured():
        trainer = kind()
        f = {
            "loss": lambda x: trainer.loss(x),
            "by_property": lambda x: trainer.by_property(x),
            "by_array": lambda x: trainer.by_array(x),
            "by_inner_function": lambda x: trainer.by_inner_function(x),
            "by_bound_method": lambda x: trainer.by_bound_method(x),
            "deep": lambda x: trainer.deep(x),
            "itself": lambda x: trainer.itself(x),
            "by_name": lambda x: trainer.by_name(x),
            "listed": lambda x: trainer.listed(x),
        }[name]
        for _ in change(trainer):
            yield f

    bound.__name__ = f"the_method_{name}_of_a_{kind.__name__}_reads_a_part"
    captured.__name__ = f"the_method_{name}_of_a_captured_{kind.__name__}_reads_a_part"
    story(bound)
    story(captured)


for _name in METHODS:
    _of_method(_name, Trainer)
for _name in ("loss", "deep"):
    _of_method(_name, Derived)


@story
def an_object_of_an_object_is_read():
    outer = Outer()
    f = lambda x: outer.trainer.loss(x) + outer.trainer.config.rate * jnp.sum(x**2)
    yield f
    yield outer.loss
    outer.trainer.config.rate = 2.0
    yield f
    yield outer.loss
    outer.trainer = Trainer()
    outer.trainer.scale = 5.0
    yield f
    yield outer.loss


@story
def a_method_is_assigned_to_an_instance():
    trainer = Trainer()
    f = lambda x: trainer.loss(x)
    yield f
    trainer.factor = lambda: 7.0
    yield f
    trainer.loss = lambda x: cubic(9.0, x)
    yield f
    yield trainer.loss
    del trainer.loss
    yield f


@story
def a_method_of_a_class_is_replaced():
    class Model(Trainer):
        pass

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    Model.factor = lambda self: 7.0
    yield f
    Model.loss = lambda self, x: cubic(self.scale, x)
    yield f
    Model.scale = property(lambda self: 11.0, lambda self, value: None)
    yield f
    Model.__getattribute__ = lambda self, name: (
        13.0 if name == "scale" else object.__getattribute__(self, name)
    )
    yield f


@story
def an_attribute_is_read_where_there_was_none():
    class Model:
        scale = 2.0

        def loss(self, x):
            return cubic(self.scale, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model.scale = 3.0
    yield f
    del model.scale, Model.scale
    yield f
    Model.__getattr__ = lambda self, name: 5.0
    yield f


@story
def a_base_of_the_class_is_replaced():
    class One:
        def factor(self):
            return 2.0

    class Two:
        def factor(self):
            return 5.0

    class Model(One):
        def loss(self, x):
            return cubic(self.factor(), x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    yield model.loss
    Model.__bases__ = (Two,)
    yield f
    yield model.loss


@story
def an_object_gets_another_class():
    trainer = Trainer()
    f = lambda x: trainer.loss(x)
    yield f
    trainer.__class__ = Derived
    yield f


@story
def two_names_stand_for_one_object_and_for_two():
    one = two = Trainer()

    def f(x):
        if one is two:
            return one.loss(x)
        return one.loss(x) + 2 * two.loss(x)

    yield f
    two = Trainer()
    yield f
    two.config.rate = 5.0
    yield f


@story
def two_names_are_read_by_parts():
    one = two = Trainer()

    def f(x):
        return one.loss(x) + 2 * two.loss(x)

    yield f
    two = Trainer()
    yield f
    two.config.rate = 5.0
    yield f
    one.config = two.config
    yield f
    one.config.rate = 7.0
    yield f


@story
def an_object_is_read_by_a_part_and_passed_on():
    trainer = Trainer()

    def f(x):
        return trainer.by_array(x) + helper(trainer, x)

    yield f
    trainer.config.rate = 2.0
    yield f
    trainer.weights = jnp.full(3, 7.0)
    yield f


@story
def a_part_and_the_whole_are_read_by_two_functions():
    trainer = Trainer()
    other = lambda x: helper(trainer, x)

    def f(x):
        return trainer.by_array(x) + other(x)

    yield f
    trainer.config.rate = 2.0
    yield f
    trainer.weights = jnp.full(3, 7.0)
    yield f


@story
def a_global_object_is_read_by_a_part():
    cell = notebook(
        """
        def f(x):
            return trainer.loss(x) + jnp.sum(trainer.weights * x**2)
        """,
        trainer=Trainer(),
    )
    trainer = cell["trainer"]
    yield cell["f"]
    trainer.fit()
    yield cell["f"]
    trainer.config.rate = 3.0
    yield cell["f"]
    trainer.weights = jnp.full(3, 7.0)
    yield cell["f"]
    run_cell("trainer = type(trainer)()", cell)
    yield cell["f"]


@story(effects=True)
def a_call_writes_a_part_that_it_does_not_read():
    class Model:
        def __init__(self):
            self.scale, self.last, self.seen = 2.0, 0.0, []

        def loss(self, x):
            self.last = self.scale
            return cubic(self.scale, x)

    model = Model()

    def f(x):
        before = cubic(model.last, x)
        return before + model.loss(x)

    yield f
    model.scale = 3.0
    yield f
    yield f


@story(effects=True)
def a_call_counts_on_an_object():
    class Model:
        def __init__(self):
            self.scale, self.count = 2.0, 0

        def loss(self, x):
            self.count += 1
            return cubic(self.scale * self.count, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    yield f
    yield model.loss


@story(effects=True)
def a_call_appends_to_a_part():
    trainer = Trainer()

    def f(x):
        trainer.history.append(1.0)
        return cubic(len(trainer.history) * trainer.scale, x)

    yield f
    yield f


@story
def self_is_bound_anew():
    other = Trainer()

    class Model:
        def __init__(self):
            self.scale = 2.0

        def loss(self, x):
            self = other
            return cubic(self.scale, x)

    model = Model()
    yield model.loss
    other.scale = 5.0
    yield model.loss


@story
def self_is_in_a_conditional_expression():
    class Model:
        def __init__(self):
            self.scale, self.other, self.use = 2.0, Config(5.0), True

        def loss(self, x):
            source = self if self.use else self.other
            return cubic((self.other if self.use else self).rate, x) + jnp.sum(
                x**2
            ) * len(str(type(source).__mro__))

        rate = 3.0

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model.other.rate = 7.0
    yield f
    model.use = False
    yield f
    model.rate = 11.0
    yield f


@story
def a_comprehension_and_a_generator_read_self():
    class Model:
        def __init__(self):
            self.scale, self.count, self.terms = 2.0, 2, (1.0, 2.0)

        def loss(self, x):
            terms = [self.scale * t for t in self.terms]
            more = sum(self.scale * k for k in range(self.count))
            return cubic(sum(terms) + more, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model.scale = 3.0
    yield f
    model.count = 4
    yield f
    model.terms = (3.0,)
    yield f


@story
def a_cached_property_and_a_class_method_are_read():
    class Model:
        rate = 2.0

        def __init__(self):
            self.scale = 2.0

        @functools.cached_property
        def square(self):
            return self.scale**2

        @classmethod
        def of_class(cls):
            return cls.rate

        @staticmethod
        def of_none():
            return Config(2.0).rate

        def loss(self, x):
            return cubic(self.square * self.of_class() * self.of_none(), x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model = Model()
    model.scale = 5.0
    yield f
    Model.rate = 3.0
    yield f


@story
def a_dataclass_is_read_by_a_part():
    @dataclasses.dataclass
    class Model:
        scale: float = 2.0
        notes: list = dataclasses.field(default_factory=list)

        def loss(self, x):
            return cubic(self.scale, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model.notes.append(1)
    yield f
    model.scale = 3.0
    yield f


@story
def a_method_is_decorated():
    def twice(f):
        @functools.wraps(f)
        def call(self, *args):
            return 2 * f(self, *args)

        return call

    class Model:
        def __init__(self):
            self.scale = 2.0

        @twice
        def loss(self, x):
            return cubic(self.scale, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    yield model.loss
    model.scale = 3.0
    yield f
    yield model.loss


@story
def a_private_attribute_is_read():
    class Model:
        def __init__(self):
            self.__scale = 2.0

        def set(self, scale):
            self.__scale = scale

        def loss(self, x):
            return cubic(self.__scale, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model.set(3.0)
    yield f


@story
def an_attribute_decides_by_an_exception():
    class Model:
        scale = 2.0

        def loss(self, x):
            try:
                return cubic(self.other, x)
            except AttributeError:
                return cubic(self.scale, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model.other = 5.0
    yield f


@story
def two_arguments_are_loaded_at_once():
    class Model:
        def __init__(self):
            self.scale = 2.0

        def use(self, other, x):
            return cubic(other.scale, x)

        def loss(self, x):
            first = self
            return first.use(self, x) + cubic(self.scale, x)

    model = Model()
    f = lambda x: model.loss(x)
    yield f
    model.scale = 3.0
    yield f


@story(changes=False)
def the_point_is_an_object_of_the_function():
    trainer = Trainer()
    yield trainer.loss, X
    trainer.fit()
    yield trainer.loss, X
