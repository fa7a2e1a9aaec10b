"""Stories of training states, frozen nodes of trees: a function reads a part."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tests.promises.telling import cubic, story


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["step", "params", "extra"],
    meta_fields=["apply_fn"],
)
@dataclasses.dataclass(frozen=True)
class State:
    """As a `TrainState` of flax."""

    step: Any
    params: Any
    apply_fn: Any
    extra: Any = None

    @property
    def doubled(self):
        return 2 * self.step

    def loss(self, x):
        return self.apply_fn(self.params, x) * self.step

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)


class Task:
    def __init__(self, state):
        self.state = state

    def loss(self, x):
        return self.state.apply_fn(self.state.params["scale"], x)


def scaled(scale, x):
    return cubic(2.0, x) * jnp.sum(scale)


def make(**changes):
    first = State(1, {"scale": jnp.full(3, 2.0), "rate": 3.0}, scaled)
    return first.replace(**changes)


def other(scale, x):
    return cubic(5.0, x) * jnp.sum(scale**2)


def states():
    """Yield states that differ in one field each."""
    state = make()
    yield state
    for changes in (
        {"step": 2},
        {"params": {"scale": jnp.full(3, 3.0), "rate": 3.0}},
        {"params": {"scale": jnp.full(3, 3.0), "rate": 4.0}},
        {"apply_fn": other},
        {"extra": jnp.ones(3)},
        {"params": {"scale": 4.0, "rate": 4.0}},
        {"apply_fn": lambda scale, x: cubic(scale, x)},
    ):
        state = state.replace(**changes)
        yield state


@story
def a_state_is_read_by_its_function():
    for state in states():
        yield lambda x, state=state: state.apply_fn(1.0, x)
        yield lambda x: state.apply_fn(1.0, x)  # noqa: B023


@story
def a_state_is_read_by_its_parameters():
    for state in states():
        yield lambda x: state.apply_fn(state.params["scale"], x)  # noqa: B023


@story
def a_state_is_read_by_a_number_of_python():
    for state in states():
        yield lambda x: cubic(state.step, x)  # noqa: B023


@story
def a_state_is_read_by_a_property_and_by_a_method():
    for state in states():
        yield lambda x: cubic(state.doubled, x)  # noqa: B023
        if isinstance(state.params, jax.Array):
            yield state.loss


@story
def a_state_is_a_default_that_is_given():
    def f(x, state=make(), *, kept=make()):  # noqa: B008
        return state.apply_fn(kept.params["scale"], x)

    yield f
    f.__defaults__ = (make(apply_fn=other),)
    yield f
    f.__kwdefaults__ = {"kept": make(params={"scale": jnp.full(3, 7.0)})}
    yield f


@story
def a_default_is_assigned_anew_in_the_body():
    def f(x, state=make()):  # noqa: B008
        if state.step:
            state = state.replace(apply_fn=other)
        return state.apply_fn(1.0, x)

    yield f
    f.__defaults__ = (make(step=0),)
    yield f


@story
def a_state_within_an_object_is_read():
    task = Task(make())
    f = lambda x: task.loss(x)
    for state in states():
        task.state = state
        yield f
        yield task.loss


@story
def a_state_is_read_by_a_part_and_as_a_whole():
    state = make()
    middle = lambda x: cubic(sum(map(jnp.sum, jax.tree.leaves(state))), x)
    begin = lambda x: state.apply_fn(1.0, x)
    rest = lambda x: state.apply_fn(2.0, x)
    for state in states():  # noqa: B007
        yield lambda x: begin(x) + middle(x) + rest(x)
        yield lambda x: middle(x) + begin(x)
        yield begin


@story
def two_names_stand_for_one_state_and_for_two():
    one = two = make()
    same = lambda x: cubic(1.0 if one is two else 2.0, x)
    f = lambda x: one.apply_fn(one.params["scale"], x) + two.apply_fn(1.0, x) + same(x)
    yield f
    two = make()
    yield f
    two = make(apply_fn=other)
    yield f
    one = two
    yield f


@story
def the_class_of_a_state_gets_a_property():
    class Derived(State):
        pass

    fields = {"data_fields": ["step", "params"], "meta_fields": ["apply_fn"]}
    jax.tree_util.register_dataclass(Derived, **fields, drop_fields=["extra"])
    state = Derived(1, {"scale": jnp.ones(3)}, scaled)
    f = lambda x: state.apply_fn(1.0, x)
    yield f
    Derived.apply_fn = property(lambda self: other)
    yield f


@story
def a_state_is_changed_behind_its_back():
    state = make()
    f = lambda x: state.apply_fn(state.params["scale"], x)
    yield f
    state.params["scale"] = jnp.full(3, 5.0)
    yield f
    object.__setattr__(state, "apply_fn", other)
    yield f
    vars(state)["params"] = {"scale": 7.0}
    yield f
